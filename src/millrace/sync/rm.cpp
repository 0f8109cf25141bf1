// SPDX-License-Identifier: Apache-2.0
#include "millrace/sync/rm.h"

#include <chrono>
#include <utility>

#include "millrace/base/io/path.h"
#include "millrace/sync/cp.h"
#include "millrace/sync/entries.h"
#include "millrace/sync/ls.h"
#include "millrace/sync/removal.h"

namespace millrace::sync {
namespace {

void count(const std::string& path, int64_t size, const Status& removed, const RmOptions& options, RmReport& report) {
  if (removed) {
    ++report.objects;
    report.bytes += size;
    if (options.on_removed) options.on_removed(path, size);
    return;
  }
  ++report.failed;
  if (!report.first_failure) report.first_failure = removed.error();
}

Status remove_below(const Location& root, const RmOptions& options, const std::stop_token& stop, Removal& removal,
                    RmReport& report) {
  const bool is_whole = options.filter.empty();
  EntryWalk walk(root, {.hidden = is_whole, .own_marker = is_whole, .filter = &options.filter, .stop = stop});
  for (;;) {
    ASSIGN_OR_RETURN(auto entry, walk.next());
    if (!entry) return {};
    if (entry->kind == Entry::Kind::kUnreadable) {
      const auto denied = fail(ErrorCode::kPermissionDenied, "{}: it may not be read", root.child(entry->path).url);
      count(entry->path, 0, denied, options, report);
      continue;
    }
    if (entry->path.empty()) entry->path = std::string(base_name(root.key)) + "/";
    removal.add(std::move(entry->path), std::move(entry->info.key), entry->info.size);
  }
}

// What another program is still writing to goes too, where the storage cannot tell that it does.
Result<RmReport> rm_uploads(const Location& at, const RmOptions& options, const std::stop_token& stop) {
  RmReport report;
  ASSIGN_OR_RETURN(const auto uploads, list_uploads(at));
  for (const LsEntry& upload : uploads) {
    if (stop.stop_requested()) return fail(ErrorCode::kCancelled, "stopped");
    const Status aborted =
        options.dry_run ? Status() : at.storage->abort_uploads(std::span<const ObjectInfo>(&upload.info, 1));
    count(upload.path, upload.info.size, aborted, options, report);
  }
  return report;
}

}  // namespace

Result<RmReport> rm(const std::string& url, const RmOptions& options, std::stop_token stop, Progress* progress) {
  const auto start = Clock::now();
  ASSIGN_OR_RETURN(const Location typed, open_url(url));
  if (typed.key.empty() && !options.force_root) {
    return fail(ErrorCode::kInvalidArgument, "{} is everything that {} holds: --force-root removes it all the same",
                typed.url, typed.storage->name());
  }
  if (options.uploads) return rm_uploads(typed, options, stop);
  ASSIGN_OR_RETURN(const Found found, find(url, options.recursive ? FindAs::kFolder : FindAs::kObject));
  if (found.is_folder && !options.recursive) {
    return fail(ErrorCode::kInvalidArgument, "{} is a folder: --recursive removes what is in it", typed.url);
  }
  RmReport report;
  Removal removal(*found.location.storage, options.dry_run,
                  [&](const std::string& path, int64_t size, const Status& removed) {
                    if (progress != nullptr) progress->add(0, 1);
                    if (progress != nullptr && !removed) progress->add_failed();
                    count(path, size, removed, options, report);
                  });
  if (found.is_folder) {
    auto listed = remove_below(found.location, options, stop, removal, report);
    removal.flush();
    RETURN_IF_ERROR(std::move(listed));
  } else {
    removal.add(std::string(base_name(found.object.key)), found.object.key, found.object.size);
    removal.flush();
  }
  report.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  return report;
}

}  // namespace millrace::sync
