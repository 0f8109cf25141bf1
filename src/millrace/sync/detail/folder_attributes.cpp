// SPDX-License-Identifier: Apache-2.0
#include "millrace/sync/detail/folder_attributes.h"

#include <algorithm>
#include <utility>

#include "millrace/base/thread/executor.h"
#include "millrace/base/thread/sync.h"
#include "millrace/sync/detail/attributes.h"

namespace millrace::sync {
namespace {

constexpr int kAtOnce = 32;  // as EngineOptions::objects_at_once

int64_t depth_of(const std::string& path) {
  return std::ranges::count(path, '/');
}

}  // namespace

bool is_folder_marker(const ObjectInfo& object) {
  return object.kind == ObjectKind::kFile && object.size == 0 && object.key.ends_with('/');
}

void FolderAttributes::see(const Action& action) {
  const auto is = [&](Action::Kind kind) { return action.kind == kind; };
  const bool goes_along = is(Action::Kind::kCopy) || is(Action::Kind::kCompare) || is(Action::Kind::kAttributes) ||
                          is(Action::Kind::kSkip) || is(Action::Kind::kFolder) ||
                          (is(Action::Kind::kPass) && is_folder_marker(action.source));
  if (!goes_along) return;
  const std::string& path = action.path;
  for (size_t slash = path.find('/'); slash != path.npos; slash = path.find('/', slash + 1)) {
    add(std::string_view(path).substr(0, slash));
  }
}

// In byte order of the entries all of a folder come one after another.
void FolderAttributes::add(std::string_view path) {
  const std::string_view last = folders_.empty() ? std::string_view() : folders_.back();
  const bool is_open = last.starts_with(path) && (last.size() == path.size() || last[path.size()] == '/');
  if (!is_open) folders_.emplace_back(path);
}

FolderAttributes::Report FolderAttributes::carry(const Location& source, const Location& target, bool dry_run,
                                                 const std::stop_token& stop) const {
  std::vector<const std::string*> order;
  for (const std::string& path : folders_) order.push_back(&path);
  // The new mode of a folder may keep this user from those in it. Setting theirs changes none of its times.
  std::ranges::stable_sort(order, std::ranges::greater(), [](const std::string* path) { return depth_of(*path); });
  Report report;
  Mutex mutex;
  const bool has_owners = target.storage->capabilities().folders;
  const auto carry_one = [&](const std::string& path) -> Status {
    const std::string key = prefix_of(target) + path;
    ASSIGN_OR_RETURN(const auto wanted, source.storage->folder_attributes(prefix_of(source) + path));
    if (!wanted) return {};
    ASSIGN_OR_RETURN(const auto found, target.storage->folder_attributes(key));
    if (found && same_attributes(*target.storage, wanted, found)) return {};
    Status set = dry_run ? Status() : target.storage->set_folder_attributes(key, *wanted);
    const bool is_left = !set && has_owners && set.error().code() == ErrorCode::kPermissionDenied;
    if (!set && !is_left) return set;
    const MutexLock lock(mutex);
    ++(is_left ? report.left : report.set);
    if (is_left && !report.first_left) report.first_left = std::move(set).error();
    return {};
  };
  const bool are_local = source.storage->capabilities().is_local() && target.storage->capabilities().is_local();
  Executor threads(are_local ? 1 : kAtOnce, "mr-folders");
  for (size_t begin = 0; begin < order.size() && !stop.stop_requested();) {
    size_t end = begin;
    while (end < order.size() && depth_of(*order[end]) == depth_of(*order[begin])) ++end;
    std::vector<Status> statuses(end - begin);
    parallel_for(threads, std::ssize(statuses), [&](int64_t i) {
      if (!stop.stop_requested()) {
        statuses[static_cast<size_t>(i)] = carry_one(*order[begin + static_cast<size_t>(i)]);
      }
    });
    for (Status& status : statuses) {
      if (status || status.error().code() == ErrorCode::kCancelled) continue;
      ++report.failed;
      if (!report.first_failure) report.first_failure = std::move(status).error();
    }
    begin = end;
  }
  return report;
}

}  // namespace millrace::sync
