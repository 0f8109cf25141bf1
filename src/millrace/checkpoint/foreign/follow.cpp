// SPDX-License-Identifier: Apache-2.0
#include "millrace/checkpoint/foreign/follow.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <set>
#include <utility>

#include "millrace/base/hash/hash.h"
#include "millrace/base/log.h"
#include "millrace/base/thread/sync.h"
#include "millrace/checkpoint/records/keys.h"
#include "millrace/sync/rm.h"
#include "millrace/sync/sync.h"

namespace millrace::checkpoint {
namespace {

constexpr std::string_view kFolder = "checkpoint-";
constexpr std::string_view kLast = "trainer_state.json";

std::string folder_of(int64_t step) {
  return fmt::format("{}{}", kFolder, step);
}

// What is listed of a folder.
struct Seen {
  ForeignStep step;
  std::string names;  // with sizes and times
  bool has_last = false, has_latest = false, has_deepspeed = false;
};

void tell(const FollowOptions& options, FollowEvent::Kind kind, const ForeignStep& step, double seconds = 0) {
  if (options.on_event) options.on_event({kind, step, seconds});
}

// trainer_state.json comes when all else is there.
Status copy_whole(const Location& from, const Location& to, const std::stop_token& stop) {
  sync::SyncOptions options{.record = false};
  RETURN_IF_ERROR(options.filter.exclude(fmt::format("/{}", kLast)));
  ASSIGN_OR_RETURN(const auto all, sync::sync(from, to, options, stop));
  RETURN_IF_ERROR(all.status());
  ASSIGN_OR_RETURN(const auto last, sync::sync(from, to, {.record = false}, stop));
  return last.status();
}

Status remove_whole(const Location& root, const ForeignStep& step, const std::stop_token& stop) {
  const Location folder = root.child(folder_of(step.step));
  if (step.is_complete) {
    ASSIGN_OR_RETURN(const auto last, sync::rm(fmt::format("{}/{}", folder.url, kLast), {}, stop));
    if (last.first_failure) return tl::unexpected(*last.first_failure);
  }
  auto rest = sync::rm(folder.url, {.recursive = true}, stop);
  if (!rest && rest.error().code() != ErrorCode::kNotFound) return tl::unexpected(std::move(rest).error());
  if (rest && rest->first_failure) return tl::unexpected(*rest->first_failure);
  // The Trainer takes an empty folder for a checkpoint, too.
  return root.storage->remove_empty_folder(folder.key);
}

// A kill in the middle of remove_whole may leave a folder without a file, which no listing of files shows.
Status remove_empty_steps(const Location& root) {
  if (!root.storage->capabilities().folders) return {};
  const auto level = list_level(root);
  if (!level) return level.error().code() == ErrorCode::kNotFound ? Status() : tl::unexpected(level.error());
  for (const std::string& folder : level->directories) {
    if (trainer_step(folder)) static_cast<void>(root.storage->remove_empty_folder(root.child(folder).key));
  }
  return {};
}

const ForeignStep* find(const std::vector<ForeignStep>& steps, int64_t step) {
  const auto found = std::ranges::find(steps, step, &ForeignStep::step);
  return found == steps.end() ? nullptr : &*found;
}

int64_t newest_complete(const std::vector<ForeignStep>& steps) {
  int64_t newest = -1;
  for (const ForeignStep& each : steps) {
    if (each.is_complete) newest = std::max(newest, each.step);
  }
  return newest;
}

Status refuse_accelerate(const Location& root, const std::vector<ForeignStep>& steps) {
  const auto found = std::ranges::find_if(steps, &ForeignStep::is_accelerate);
  if (found == steps.end()) return {};
  return fail(ErrorCode::kUnsupported,
              "{}: Accelerate wrote it, and nothing tells whether it is complete: follow is for the Trainer's "
              "checkpoints, which end with {}; `millrace sync` copies the folder",
              root.child(folder_of(found->step)).url, kLast);
}

// Whether the two hold the same files with the same contents.
Result<bool> is_same(const Location& from, const Location& to, const std::stop_token& stop) {
  ASSIGN_OR_RETURN(const auto report, sync::sync(from, to, {.dry_run = true, .record = false}, stop));
  RETURN_IF_ERROR(report.status());
  return report.copied_files == 0 && report.extra_files == 0;
}

class Follower {
 public:
  Follower(const Location& source, const Location& target, const FollowOptions& options, std::stop_token stop)
      : source_(source), target_(target), options_(options), stop_(std::move(stop)) {}

  // True: what is complete is copied, and nothing is about to be.
  Result<bool> look() {
    ASSIGN_OR_RETURN(const auto here, foreign_steps(source_));
    RETURN_IF_ERROR(refuse_accelerate(source_, here));
    if (here.empty() && options_.once) {
      log(LogLevel::kWarning, "{} holds no {}N, so there is nothing to copy", source_.url, kFolder);
    }
    ASSIGN_OR_RETURN(const auto there, foreign_steps(target_));
    bool is_done = true;
    for (const ForeignStep& step : here) {
      const ForeignStep* const copy = find(there, step.step);
      const bool has_copy = copy != nullptr && copy->is_complete;
      if (!step.is_complete || (has_copy && is_of(*copy, step)) || is_too_old(step, here, there)) continue;
      if (!has_settled(step)) {
        is_done = false;
        continue;
      }
      RETURN_IF_ERROR(has_copy ? replace_step(step, *copy) : copy_step(step));
    }
    RETURN_IF_ERROR(prune(here));
    return is_done;
  }

 private:
  // There are `keep_last` newer ones: a copy would be removed at once.
  bool is_too_old(const ForeignStep& step, const std::vector<ForeignStep>& here,
                  const std::vector<ForeignStep>& there) const {
    if (options_.keep_last == 0) return false;
    std::set<int64_t> newer, newer_here;
    for (const auto* steps : {&here, &there}) {
      for (const ForeignStep& each : *steps) {
        if (!each.is_complete || each.step <= step.step) continue;
        newer.insert(each.step);
        if (steps == &here) newer_here.insert(each.step);
      }
    }
    if (std::ssize(newer) < options_.keep_last) return false;
    if (std::ssize(newer_here) < options_.keep_last && told_.insert(step.step).second) {
      log(LogLevel::kWarning,
          "{} is not copied: {} keeps {} newer ones that {} does not have, so the run went back; remove them, or "
          "choose another target",
          source_.child(folder_of(step.step)).url, target_.url, newer.size() - newer_here.size(), source_.url);
    }
    return true;
  }

  // Whether the copy was made of this step. The program may have written the number again after it went back.
  bool is_of(const ForeignStep& copy, const ForeignStep& step) const {
    const auto made = made_.find(step.step);
    return made != made_.end() ? made->second == step.state : step.newest <= copy.last;
  }

  bool has_settled(const ForeignStep& step) {
    const auto [known, is_new] = since_.try_emplace(step.step, std::pair(step.state, Clock::now()));
    if (!is_new && known->second.first != step.state) known->second = {step.state, Clock::now()};
    return Clock::now() - known->second.second >= options_.settle;
  }

  Status replace_step(const ForeignStep& step, const ForeignStep& copy) {
    const std::string folder = folder_of(step.step);
    ASSIGN_OR_RETURN(const bool same, is_same(source_.child(folder), target_.child(folder), stop_));
    if (same) {
      made_[step.step] = step.state;
      return {};
    }
    RETURN_IF_ERROR(remove_whole(target_, copy, stop_));
    tell(options_, FollowEvent::Kind::kRemoved, copy);
    return copy_step(step);
  }

  Status copy_step(const ForeignStep& step) {
    const auto begin = Clock::now();
    const std::string folder = folder_of(step.step);
    Status copied = copy_whole(source_.child(folder), target_.child(folder), stop_);
    if (!copied) {
      if (stop_.stop_requested()) return copied;
      ASSIGN_OR_RETURN(const auto here, foreign_steps(source_));
      const ForeignStep* const now = find(here, step.step);
      if (now != nullptr && now->is_complete) return copied;
      tell(options_, FollowEvent::Kind::kGone, step);
      return {};
    }
    made_[step.step] = step.state;
    tell(options_, FollowEvent::Kind::kCopied, step, std::chrono::duration<double>(Clock::now() - begin).count());
    return {};
  }

  // Removes from the target steps older than the last `keep_last`, and remains of copies that can no longer finish.
  Status prune(const std::vector<ForeignStep>& here) {
    RETURN_IF_ERROR(remove_empty_steps(target_));
    if (options_.keep_last == 0) return {};
    ASSIGN_OR_RETURN(const auto there, foreign_steps(target_));
    const auto complete = std::ranges::count_if(there, &ForeignStep::is_complete);
    int64_t too_many = complete - options_.keep_last;
    const int64_t newest = newest_complete(there);
    for (const ForeignStep& step : there) {
      const bool is_left = !step.is_complete && step.step < newest && find(here, step.step) == nullptr;
      const bool is_old = step.is_complete && too_many-- > 0;
      if (!is_left && !is_old) continue;
      RETURN_IF_ERROR(remove_whole(target_, step, stop_));
      tell(options_, FollowEvent::Kind::kRemoved, step);
    }
    return {};
  }

  const Location& source_;
  const Location& target_;
  const FollowOptions& options_;
  const std::stop_token stop_;
  std::map<int64_t, std::pair<std::string, Clock::time_point>> since_;  // of each source step, its state
  std::map<int64_t, std::string> made_;  // states of source steps that the copies are known to be of
  mutable std::set<int64_t> told_;       // steps that a log line named
};

}  // namespace

std::optional<int64_t> trainer_step(std::string_view folder) {
  if (!folder.starts_with(kFolder)) return std::nullopt;
  folder.remove_prefix(kFolder.size());
  int64_t step = 0;
  const auto [end, error] = std::from_chars(folder.data(), folder.data() + folder.size(), step);
  if (error != std::errc() || end != folder.data() + folder.size() || folder != fmt::format("{}", step)) {
    return std::nullopt;
  }
  return step;
}

Result<std::vector<ForeignStep>> foreign_steps(const Location& root) {
  std::map<int64_t, Seen> seen;
  const std::string prefix = root.key.empty() ? std::string() : root.key + "/";
  const Status listed = for_each_object(*root.storage, prefix, [&](const ObjectInfo& object) -> Status {
    const std::string_view path = std::string_view(object.key).substr(prefix.size());
    const size_t slash = path.find('/');
    const auto number = slash == std::string_view::npos ? std::nullopt : trainer_step(path.substr(0, slash));
    if (!number) return {};
    Seen& each = seen[*number];
    const std::string_view name = path.substr(slash + 1);
    each.step.step = *number;
    ++each.step.files;
    each.step.bytes += object.size;
    each.names += fmt::format("{} {} {}\n", name, object.size, object.modified.ns_text());
    each.step.newest = std::max(each.step.newest, object.modified);
    if (name == kLast) each.step.last = object.modified;
    each.step.is_accelerate |= name.starts_with("random_states_") && name.ends_with(".pkl");
    each.has_last |= name == kLast;
    each.has_latest |= name == "latest";
    each.has_deepspeed |= name.starts_with("global_step");
    return {};
  });
  if (!listed && listed.error().code() != ErrorCode::kNotFound) {
    return with_context(Result<std::vector<ForeignStep>>(tl::unexpected(listed.error())), root.url);
  }
  std::vector<ForeignStep> steps;
  for (auto& [number, each] : seen) {
    each.step.is_accelerate &= !each.has_last;
    each.step.is_complete = each.has_last && (!each.has_latest || each.has_deepspeed);
    each.step.state = to_hex(xxh3_128(each.names));
    steps.push_back(std::move(each.step));
  }
  return steps;
}

Status follow_checkpoints(const Location& source, const Location& target, const FollowOptions& options,
                          const std::stop_token& stop) {
  Follower follower(source, target, options, stop);
  while (!stop.stop_requested()) {
    const auto done = follower.look();
    if (!done && (options.once || stop.stop_requested())) return tl::unexpected(done.error());
    if (!done) log(LogLevel::kWarning, "{}; it is tried again", done.error().to_string());
    if (options.once && *done) return {};
    static_cast<void>(
        sleep_until(Clock::now() + (options.once ? std::min(options.every, options.settle) : options.every), stop));
  }
  return {};
}

Result<std::optional<int64_t>> restore_checkpoint(const Location& source, const Location& target,
                                                  const FollowOptions& options, const std::stop_token& stop) {
  ASSIGN_OR_RETURN(const auto here, foreign_steps(source));
  RETURN_IF_ERROR(refuse_accelerate(source, here));
  ASSIGN_OR_RETURN(const auto there, foreign_steps(target));
  for (const ForeignStep& step : here) {
    if (step.is_complete) continue;
    RETURN_IF_ERROR(remove_whole(source, step, stop));
    tell(options, FollowEvent::Kind::kRemoved, step);
  }
  RETURN_IF_ERROR(remove_empty_steps(source));
  const int64_t local = newest_complete(here), remote = newest_complete(there);
  if (remote <= local) return local < 0 ? std::nullopt : std::optional(local);
  const auto begin = Clock::now();
  const std::string folder = folder_of(remote);
  RETURN_IF_ERROR(copy_whole(target.child(folder), source.child(folder), stop));
  tell(options, FollowEvent::Kind::kRestored, *find(there, remote),
       std::chrono::duration<double>(Clock::now() - begin).count());
  return remote;
}

}  // namespace millrace::checkpoint
