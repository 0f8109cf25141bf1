// SPDX-License-Identifier: Apache-2.0
#include "millrace/sync/rm.h"

#include <chrono>
#include <utility>
#include <vector>

#include "millrace/sync/cp.h"
#include "millrace/sync/detail/sidecar.h"
#include "millrace/sync/entries.h"
#include "millrace/sync/ls.h"

namespace millrace::sync {
namespace {

constexpr size_t kBatchKeys = 1000;  // what S3 takes in one request

class Remover {
 public:
  Remover(Storage& storage, const RmOptions& options, Progress* progress)
      : storage_(storage), options_(options), progress_(progress) {}

  void add(std::string path, const ObjectInfo& info) {
    paths_.push_back(std::move(path));
    sizes_.push_back(info.size);
    keys_.push_back(info.key);
    if (keys_.size() == kBatchKeys) flush();
  }

  void flush() {
    const Status all = options_.dry_run || keys_.empty() ? Status() : storage_.remove(keys_);
    if (!options_.dry_run) remove_sidecars();
    for (size_t i = 0; i < keys_.size(); ++i) {
      // The batch tells only its first failure.
      removed(i, all ? Status() : storage_.remove(std::span<const std::string>(&keys_[i], 1)));
    }
    paths_.clear();
    sizes_.clear();
    keys_.clear();
  }

  RmReport& report() { return report_; }

 private:
  // Block hashes without an object do no harm, so a failure is none.
  void remove_sidecars() {
    std::vector<std::string> sidecars;
    for (size_t i = 0; i < keys_.size(); ++i) {
      if (sizes_[i] > kBlockBytes && check_key(keys_[i])) sidecars.push_back(sidecar_key(keys_[i]));
    }
    if (!sidecars.empty()) static_cast<void>(storage_.remove(sidecars));
  }

  void removed(size_t i, Status status) {
    if (progress_ != nullptr) progress_->add(0, 1);
    if (status) {
      ++report_.objects;
      report_.bytes += sizes_[i];
      if (options_.on_removed) options_.on_removed(paths_[i], sizes_[i]);
      return;
    }
    ++report_.failed;
    if (progress_ != nullptr) progress_->add_failed();
    if (!report_.first_failure) report_.first_failure = std::move(status).error();
  }

  Storage& storage_;
  const RmOptions& options_;
  Progress* const progress_;
  std::vector<std::string> paths_, keys_;
  std::vector<int64_t> sizes_;
  RmReport report_;
};

Status remove_below(const Location& root, const RmOptions& options, const std::stop_token& stop, Remover& remover) {
  EntryWalk walk(root, {.hidden = options.filter.empty(), .filter = &options.filter, .stop = stop});
  for (;;) {
    ASSIGN_OR_RETURN(auto entry, walk.next());
    if (!entry) return {};
    remover.add(std::move(entry->path), entry->info);
  }
}

// What another program is still writing to goes too, where the storage cannot tell that it does.
Result<RmReport> rm_uploads(const Location& at, const RmOptions& options) {
  RmReport report;
  ASSIGN_OR_RETURN(const auto uploads, list_uploads(at));
  for (const ObjectInfo& upload : uploads) {
    const Status aborted =
        options.dry_run ? Status() : at.storage->abort_uploads(std::span<const ObjectInfo>(&upload, 1));
    if (!aborted) {
      ++report.failed;
      if (!report.first_failure) report.first_failure = aborted.error();
      continue;
    }
    ++report.objects;
    report.bytes += upload.size;
    if (options.on_removed) options.on_removed(upload.key, upload.size);
  }
  return report;
}

}  // namespace

Result<RmReport> rm(const std::string& url, const RmOptions& options, std::stop_token stop, Progress* progress) {
  const auto start = Clock::now();
  ASSIGN_OR_RETURN(const Location typed, open_url(url));
  if (options.uploads) return rm_uploads(typed, options);
  if (typed.key.empty() && !options.force_root) {
    return fail(ErrorCode::kInvalidArgument, "{} is everything that {} holds: --force-root removes it all the same",
                url, typed.storage->name());
  }
  ASSIGN_OR_RETURN(const Found found, find(url));
  if (found.is_folder && !options.recursive) {
    return fail(ErrorCode::kInvalidArgument, "{} is a folder: --recursive removes what is in it", url);
  }
  Remover remover(*found.location.storage, options, progress);
  if (found.is_folder) {
    auto listed = remove_below(found.location, options, stop, remover);
    remover.flush();
    RETURN_IF_ERROR(std::move(listed));
  } else {
    remover.add(std::string(name_of(found.object.key)), found.object);
    remover.flush();
  }
  remover.report().seconds = std::chrono::duration<double>(Clock::now() - start).count();
  return std::move(remover.report());
}

}  // namespace millrace::sync
