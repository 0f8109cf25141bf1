// SPDX-License-Identifier: Apache-2.0
#include "millrace/sync/cp.h"

#include <cerrno>
#include <chrono>
#include <utility>

#include "millrace/base/io/path.h"
#include "millrace/base/metrics.h"
#include "millrace/sync/removal.h"

namespace millrace::sync {
namespace {

// Where an object named `name` goes that is copied to `url`.
Result<Location> place_for(const std::string& url, std::string_view name) {
  ASSIGN_OR_RETURN(Location target, open_url(url));
  bool into = target.key.empty() || url.ends_with('/');
  if (!into && target.storage->capabilities().folders) {
    const auto there = target.storage->stat(target.key);
    into = !there && there.error().sys_errno() == EISDIR;
  }
  return into ? target.child(name) : target;
}

Status remove_moved(const Found& source, const TransferReport& moved) {
  Storage& storage = *source.location.storage;
  ASSIGN_OR_RETURN(const ObjectInfo now, storage.stat(source.object.key));
  if (now.version != source.object.version) {
    return fail(ErrorCode::kCorruption, "{}: changed after it was copied to {}, and stays", source.location.url,
                moved.object.key);
  }
  Status removed;
  Removal removal(storage, false, [&](const std::string&, int64_t, const Status& status) { removed = status; });
  removal.add(std::string(base_name(now.key)), now.key, now.size);
  removal.flush();
  return removed;
}

Result<SyncReport> cp_object(const Found& source, const std::string& target_url, const SyncOptions& options,
                             std::stop_token stop, Progress* progress) {
  const auto start = Clock::now();
  SyncReport report;
  const std::string name(base_name(source.object.key));
  ASSIGN_OR_RETURN(const Location target, place_for(target_url, name));
  if (target.storage->name() == source.location.storage->name() && target.key == source.object.key) {
    return fail(ErrorCode::kInvalidArgument, "{} and {} are the same object", source.location.url, target.url);
  }
  RETURN_IF_ERROR(check_changes(target, options.transfer.object));
  if (progress != nullptr) progress->set_totals(source.object.size, 1);
  const int64_t retries = process_metrics().count(Metric::kRetries);
  TransferOptions transfer = options.transfer;
  transfer.dry_run = options.dry_run;
  if (target.storage->capabilities().folders) {
    if (auto there = target.storage->stat(target.key)) transfer.target = *std::move(there);
  }
  ASSIGN_OR_RETURN(const auto engine, TransferEngine::create(options.engine));
  const Location from{source.location.storage, source.object.key, source.location.url};
  const auto moved = engine->copy(from, source.object, target, transfer, std::move(stop), progress);
  if (!moved && moved.error().code() == ErrorCode::kCancelled) {
    report.end = tl::unexpected<Error>(moved.error());
    return report;
  }
  if (!moved) return tl::unexpected<Error>(moved.error());
  if (progress != nullptr) progress->add(0, 1);
  report.moved_bytes = moved->moved_bytes;
  report.server_bytes = moved->copied_bytes;
  report.resumed_bytes = moved->resumed_bytes;
  (moved->unchanged ? report.skipped_files : report.copied_files) = 1;
  (moved->unchanged ? report.skipped_bytes : report.copied_bytes) = source.object.size;
  report.retries = process_metrics().count(Metric::kRetries) - retries;
  report.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  if (options.remove_source && !options.dry_run) {
    RETURN_IF_ERROR(remove_moved(source, *moved));
    report.removed_files = 1;
  }
  if (options.on_event) {
    options.on_event({moved->unchanged ? SyncEvent::Kind::kSkipped : SyncEvent::Kind::kCopied, name,
                      moved->unchanged ? "the same content" : "asked for", source.object.size, moved->moved_bytes});
  }
  return report;
}

}  // namespace

Result<Found> find(const std::string& url, FindAs as) {
  ASSIGN_OR_RETURN(Location location, open_url(url));
  Found found{std::move(location), true, {}};
  if (found.location.key.empty()) return found;
  Storage& storage = *found.location.storage;
  if (found.location.has_slash && as == FindAs::kObject) {
    if (auto marker = storage.stat(found.location.object_key())) {
      return Found{std::move(found.location), false, *std::move(marker)};
    }
  }
  auto object = storage.stat(found.location.key);
  const bool folders = storage.capabilities().folders;
  const auto has_any_below = [&]() -> Result<bool> {
    const auto below = storage.list(prefix_of(found.location), {.max_keys = 1});
    if (!below && below.error().code() == ErrorCode::kUnsupported) return false;  // a web server
    if (!below) return tl::unexpected<Error>(below.error());
    return !below->objects.empty() || !below->prefixes.empty();
  };
  if (object && as == FindAs::kFolder && !folders) {
    ASSIGN_OR_RETURN(const bool is_folder, has_any_below());
    if (is_folder) return found;
  }
  if (object && !url.ends_with('/')) {
    found.is_folder = false;
    found.object = *std::move(object);
    return found;
  }
  if (!object && object.error().code() == ErrorCode::kInvalidArgument && folders) return found;
  if (object && folders) return fail(ErrorCode::kInvalidArgument, "{} is a file, not a folder", url_to_show(url));
  if (!object && object.error().code() != ErrorCode::kNotFound) return tl::unexpected<Error>(std::move(object).error());
  if (!folders) {
    ASSIGN_OR_RETURN(const bool is_folder, has_any_below());
    if (is_folder) return found;
  }
  if (object) return fail(ErrorCode::kNotFound, "{}: nothing is below it", url_to_show(url));
  return tl::unexpected<Error>(std::move(object).error());
}

Result<SyncReport> cp(const std::string& source, const std::string& target, bool recursive, const SyncOptions& options,
                      std::stop_token stop, Progress* progress) {
  ASSIGN_OR_RETURN(const Found found, find(source, recursive ? FindAs::kFolder : FindAs::kObject));
  if (!found.is_folder) return cp_object(found, target, options, std::move(stop), progress);
  if (!recursive) {
    return fail(ErrorCode::kInvalidArgument, "{} is a folder: --recursive copies what is in it", url_to_show(source));
  }
  SyncOptions all = options;
  all.compare = CompareBy::kNone;
  all.delete_extra = false;
  if (!options.transfer.object.are_none()) all.record = false;  // it does not know what else an object has
  return sync(source, target, all, std::move(stop), progress);
}

Result<SyncReport> mv(const std::string& source, const std::string& target, bool recursive, const SyncOptions& options,
                      std::stop_token stop, Progress* progress) {
  if (options.follow_links) {
    return fail(ErrorCode::kInvalidArgument, "mv follows no links: what they lead to is somewhere else");
  }
  SyncOptions moving = options;
  moving.remove_source = true;
  return cp(source, target, recursive, moving, std::move(stop), progress);
}

}  // namespace millrace::sync
