// SPDX-License-Identifier: Apache-2.0
#include "millrace/sync/detail/sync_streams.h"

#include <algorithm>
#include <utility>

#include "millrace/sync/detail/etag_match.h"

namespace millrace::sync {
namespace {

// Between file systems rsync's rule; between objects of S3, the MD5 that it has of them.
const char* proof_of_equality(const Storage& from, const ObjectInfo& source, const Storage& to,
                              const ObjectInfo& target) {
  const bool have_times = from.capabilities().folders && to.capabilities().folders;
  if (have_times && source.modified == target.modified) return "the same size and time";
  const std::string_view etag = etag_of(from, source);
  return !etag.empty() && etag == etag_of(to, target) ? "the same size and ETag" : nullptr;
}

}  // namespace

SyncStreams::SyncStreams(const Location& from, const Location& to, const SyncOptions& options,
                         std::unique_ptr<RecordReader> reader, const std::stop_token& stop)
    : source(from, {.follow_links = options.follow_links,
                    .empty_folders = from.storage->capabilities().folders &&
                                     (to.storage->capabilities().folders || options.transfer.posix),
                    .filter = &options.filter,
                    .stop = stop,
                    .range = options.range}),
      target(to, {.filter = &options.filter, .stop = stop, .range = options.range}),
      record(std::move(reader)),
      plan([this] { return source.next(); }, [this] { return target.next(); },
           [this]() -> Result<std::optional<RecordEntry>> {
             if (!record) return std::nullopt;
             return record->next();
           },
           [&filter = options.filter](std::string_view path) { return !filter.passes(path); },
           {.compare = options.compare,
            .delete_extra = options.delete_extra,
            .target_folders = to.storage->capabilities().folders,
            .attributes = options.transfer.posix,
            .cheap_source = from.storage->capabilities().is_local(),
            .cheap_target = to.storage->capabilities().is_local(),
            .proof = [from = from.storage, to = to.storage](const ObjectInfo& here, const ObjectInfo& there) {
              return proof_of_equality(*from, here, *to, there);
            }}) {}

void SyncTotals::add(const Action& action) {
  const auto is = [&](Action::Kind kind) { return action.kind == kind; };
  if (!is(Action::Kind::kCopy) && !is(Action::Kind::kCompare) && !is(Action::Kind::kAttributes)) return;
  ++files;
  if (is(Action::Kind::kAttributes)) return;  // few of them move anything
  bytes += action.size;
  if (is(Action::Kind::kCompare)) return;
  grows += action.size - action.target.size;
  largest = std::max(largest, action.target.size);
}

}  // namespace millrace::sync
