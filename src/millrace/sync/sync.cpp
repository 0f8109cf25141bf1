// SPDX-License-Identifier: Apache-2.0
#include "millrace/sync/sync.h"

#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

#include "millrace/sync/detail/sync_run.h"

namespace millrace::sync {
namespace {

// The key without symbolic links, as far as it is there.
std::string real_key(const Location& at) {
  if (!at.storage->capabilities().is_local()) return at.key;
  std::error_code error;
  const std::string real = std::filesystem::weakly_canonical("/" + at.key, error).string();
  return error ? at.key : real.substr(1);
}

// Whether `inner` lies in `outer`, or is it.
bool is_within(const Location& inner, const Location& outer) {
  if (inner.storage != outer.storage && inner.storage->name() != outer.storage->name()) return false;
  const std::string in = real_key(inner), out = real_key(outer);
  return out.empty() || in == out || in.starts_with(out + "/");
}

}  // namespace

Status check_apart(const Location& source, const Location& target, const SyncOptions& options) {
  const bool overlaps = is_within(target, source) || (options.delete_extra && is_within(source, target));
  if (!overlaps) return {};
  return fail(ErrorCode::kInvalidArgument, "{} and {} overlap: one is inside the other", source.url, target.url);
}

Status check_changes(const Location& target, const ObjectChanges& changes) {
  if (changes.are_none() || target.storage->capabilities().headers) return {};
  return fail(ErrorCode::kInvalidArgument,
              "{}: headers, metadata and tags are kept by s3:// only; leave out the flags that set them", target.url);
}

std::string_view event_name(SyncEvent::Kind kind) {
  switch (kind) {
    case SyncEvent::Kind::kCopied:
      return "copy";
    case SyncEvent::Kind::kSkipped:
      return "skip";
    case SyncEvent::Kind::kDeleted:
      return "delete";
    case SyncEvent::Kind::kExtra:
      return "extra";
    case SyncEvent::Kind::kPassed:
      return "pass";
    case SyncEvent::Kind::kRefused:
      return "refuse";
    case SyncEvent::Kind::kFailed:
      break;
  }
  return "fail";
}

Status SyncReport::status() const {
  RETURN_IF_ERROR(end);
  if (first_failure) {
    Error error = *first_failure;
    return tl::unexpected(error.add_context(fmt::format("{} of {} files failed, the first", failed + refused,
                                                        failed + refused + copied_files + skipped_files)));
  }
  if (not_deleted.empty()) return {};
  return fail(ErrorCode::kInvalidArgument, "nothing was deleted: {}", not_deleted);
}

Result<SyncReport> sync(const Location& source, const Location& target, const SyncOptions& options,
                        std::stop_token stop, Progress* progress) {
  RETURN_IF_ERROR(check_apart(source, target, options));
  RETURN_IF_ERROR(check_changes(target, options.transfer.object));
  const bool between_stores = source.storage->capabilities().headers && target.storage->capabilities().headers;
  SyncOptions used = options;
  // A record says that bytes are equal, not what an object has beside them, which goes with the source.
  if (options.remove_source && between_stores) used.record = false;
  return SyncRun(source, target, used, stop, progress).run();
}

Result<SyncReport> sync(const std::string& source, const std::string& target, const SyncOptions& options,
                        std::stop_token stop, Progress* progress) {
  ASSIGN_OR_RETURN(const Location from, open_url(source));
  ASSIGN_OR_RETURN(const Location to, open_url(target));
  return sync(from, to, options, std::move(stop), progress);
}

}  // namespace millrace::sync
