// SPDX-License-Identifier: Apache-2.0
#include "millrace/sync/detail/record_keeper.h"

#include <algorithm>
#include <span>
#include <utility>

#include "millrace/base/log.h"

namespace millrace::sync {
namespace {

constexpr int kSaveShare = 20;  // a choice: saving while the sync runs takes a twentieth of its time at most

}  // namespace

RecordKeeper::RecordKeeper(Storage& storage, std::string key, const Options& options)
    : storage_(storage),
      key_(std::move(key)),
      partial_key_(key_ + ".part"),
      options_(options),
      next_save_(Clock::now() + options.save_every) {
  if (!options.writes) return;
  if (auto writer = RecordWriter::create()) {
    writer_ = std::move(*writer);
  } else {
    log(LogLevel::kWarning, "no record is kept: {}", writer.error().to_string());
  }
}

std::unique_ptr<RecordReader> RecordKeeper::open_last() {
  if (writes()) {  // a killed run may have left what it had so far
    if (const auto merged = merge_records(storage_, key_, partial_key_); !merged) {
      log(LogLevel::kWarning, "what a killed sync had recorded is not used: {}", merged.error().to_string());
    }
  }
  if (!options_.reads) return nullptr;
  auto opened = RecordReader::open(storage_, key_);
  if (opened) return std::move(*opened);
  if (opened.error().code() != ErrorCode::kNotFound) {
    log(LogLevel::kWarning, "the record of the last sync is not used: {}", opened.error().to_string());
    has_changed_ = true;
  }
  return nullptr;
}

void RecordKeeper::keep(const RecordEntry& entry) {
  if (!writes()) return;
  if (const auto added = writer_->add(entry); !added) {
    log(LogLevel::kWarning, "no record is kept: {}", added.error().to_string());
    writer_.reset();
  }
}

void RecordKeeper::save_so_far() {
  if (!is_to_be_saved() || Clock::now() < next_save_) return;
  const auto start = Clock::now();
  if (const auto saved = writer_->commit(storage_, partial_key_); !saved) {
    log(LogLevel::kWarning, "the record is not kept while the sync runs: {}", saved.error().to_string());
    next_save_ = Clock::time_point::max();
    return;
  }
  saved_so_far_ = true;
  next_save_ = Clock::now() + std::max<Clock::duration>(options_.save_every, kSaveShare * (Clock::now() - start));
}

void RecordKeeper::save() {
  if (!writes()) return;
  if (const auto saved = writer_->commit(storage_, key_); !saved) {
    log(LogLevel::kWarning, "no record is kept: {}", saved.error().to_string());
  } else if (saved_so_far_) {
    static_cast<void>(storage_.remove(std::span<const std::string>(&partial_key_, 1)));
  }
}

}  // namespace millrace::sync
