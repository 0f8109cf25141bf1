// SPDX-License-Identifier: Apache-2.0
#include "millrace/sync/removal.h"

#include <span>
#include <utility>

#include "millrace/sync/detail/sidecar.h"
#include "millrace/sync/transfer.h"

namespace millrace::sync {
namespace {

constexpr size_t kBatchKeys = 1000;  // the keys that S3 removes with one request

}  // namespace

void Removal::add(std::string path, std::string key, int64_t size) {
  paths_.push_back(std::move(path));
  keys_.push_back(std::move(key));
  sizes_.push_back(size);
  if (keys_.size() == kBatchKeys) flush();
}

void Removal::flush() {
  const bool removes = !dry_run_ && !keys_.empty();
  const Status all = removes ? storage_.remove(keys_) : Status();
  if (removes) remove_sidecars();
  for (size_t i = 0; i < keys_.size(); ++i) {
    // The batch tells only its first failure.
    done_(paths_[i], sizes_[i], all ? Status() : storage_.remove(std::span<const std::string>(&keys_[i], 1)));
  }
  paths_.clear();
  keys_.clear();
  sizes_.clear();
}

// Block hashes without an object do no harm, so a failure is none.
void Removal::remove_sidecars() {
  std::vector<std::string> sidecars;
  for (size_t i = 0; i < keys_.size(); ++i) {
    if (sizes_[i] > kBlockBytes && check_key(keys_[i])) sidecars.push_back(sidecar_key(keys_[i]));
  }
  if (!sidecars.empty()) static_cast<void>(storage_.remove(sidecars));
}

}  // namespace millrace::sync
