// SPDX-License-Identifier: Apache-2.0
#include "millrace/checkpoint/commit/retention.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "millrace/base/log.h"
#include "millrace/checkpoint/checkpoint.h"
#include "millrace/checkpoint/io/damage.h"
#include "millrace/checkpoint/records/keys.h"
#include "millrace/checkpoint/records/records.h"

namespace millrace::checkpoint {

namespace {

bool is_newer(const std::string& attempt, const std::string& than) {
  return *restart_of(attempt) > *restart_of(than);
}

// What the committed steps of a folder refer to. Reads their manifests at the first question.
class References {
 public:
  References(const Location& root, KnownSteps* known) : root_(root), known_(known) {}

  // What the manifest of a step says, read once. nullopt: it is not committed. Errors: those of storage.
  Result<std::optional<StepInfo>> info_of(int64_t step) {
    const auto manifest = root_.storage->stat(step_location(root_, step).child(kManifestName).key);
    if (!manifest) {
      if (manifest.error().code() == ErrorCode::kNotFound) return std::nullopt;
      return tl::unexpected<Error>(manifest.error());
    }
    if (known_ != nullptr) {
      const auto known = known_->find(step);
      if (known != known_->end() && !manifest->version.empty() && known->second.first == manifest->version)
        return known->second.second;
    }
    const auto stored = read_manifest(root_, step);
    if (!stored) {
      const Error& error = stored.error();
      if (error.code() == ErrorCode::kNotFound) return std::nullopt;
      if (!is_damage(error) && error.code() != ErrorCode::kUnsupported) return tl::unexpected<Error>(error);
      return StepInfo{.step = step, .damage = error};
    }
    StepInfo info = step_info(stored->manifest);
    if (known_ != nullptr) (*known_)[step] = {stored->version, info};
    return info;
  }

  // Whether a committed step refers to files of `step`, of this attempt or (empty) of any.
  Result<bool> holds(int64_t step, const std::string& attempt = "") {
    RETURN_IF_ERROR(learn());
    if (std::ranges::any_of(silent_, [&](int64_t each) { return each > step; })) return true;
    return std::ranges::any_of(bases_of_, [&](const auto& each) {
      return std::ranges::any_of(each.second, [&](const Ancestor& base) {
        return base.step == step && (attempt.empty() || base.attempt == attempt);
      });
    });
  }

  // The step is committed no more.
  void removed(int64_t step) {
    bases_of_.erase(step);
    std::erase(silent_, step);
  }

 private:
  Status learn() {
    if (is_learnt_) return {};
    bases_of_.clear();  // of a try that failed
    silent_.clear();
    ASSIGN_OR_RETURN(const auto steps, list_step_directories(root_));
    for (const int64_t step : steps) {
      ASSIGN_OR_RETURN(const auto info, info_of(step));
      if (!info) continue;
      if (!info->damage) {
        bases_of_[step] = info->bases;
      } else if (info->damage->code() != ErrorCode::kCorruption) {
        silent_.push_back(step);
      }
    }
    is_learnt_ = true;  // only now: a step that was missed would look as if nothing referred to another
    return {};
  }

  const Location& root_;
  KnownSteps* const known_;
  bool is_learnt_ = false;
  std::map<int64_t, std::vector<Ancestor>> bases_of_;
  // Whose manifests are whole, but not for this build or this process: they may refer to any earlier step.
  std::vector<int64_t> silent_;
};

class Cleaner {
 public:
  Cleaner(const Location& root, int64_t step, const std::string& attempt, KnownSteps* known,
          std::function<void()> alive = {})
      : root_(root), step_(step), attempt_(attempt), references_(root, known), alive_(std::move(alive)) {}

  Status first_error() const { return first_; }
  void keep(Status status) {
    if (first_ && !status) first_ = std::move(status);
  }

  Status remove_old_steps(const Retention& retention) {
    ASSIGN_OR_RETURN(const auto directories, list_step_directories(root_));
    std::vector<StepInfo> committed;
    std::optional<Lineage> line;
    if (retention.line) line = continue_line(*retention.line, attempt_, step_);
    for (const int64_t step : directories) {
      // Later steps are those of a run that went further before it was set back: not in this line.
      if (step > step_) break;
      ASSIGN_OR_RETURN(auto info, look_at(step, retention));
      tell_alive();
      if (!info) continue;
      info->is_left = line && !info->attempt.empty() && !covers(*line, info->attempt, step);
      committed.push_back(std::move(*info));
    }
    const auto verdicts = judge_steps(committed, retention.keep, std::chrono::system_clock::now());
    for (size_t i = committed.size(); i-- > 0;) {  // a step goes before those that it refers to
      const int64_t step = committed[i].step;
      if (verdicts[i].stays || std::ranges::find(retention.busy, step) != retention.busy.end()) continue;
      keep(remove_step(step).map([](bool) {}));
    }
    if (retention.known != nullptr)
      std::erase_if(*retention.known, [&](const auto& each) {
        return std::ranges::none_of(committed, [&](const StepInfo& info) { return info.step == each.first; });
      });
    return {};
  }

  // Attempts at `step` that can commit no more and that no manifest names.
  Status remove_abandoned(int64_t step) {
    const Location directory = step_location(root_, step);
    ASSIGN_OR_RETURN(const Level level, list_level(directory));
    tell_alive();
    std::vector<std::string> dead;
    for (const std::string& name : level.directories) {
      if (restart_of(name) && (is_newer(attempt_, name) || (name == attempt_ && step < step_))) dead.push_back(name);
    }
    const bool half_removed = std::any_of(level.objects.begin(), level.objects.end(),
                                          [](const ObjectInfo& object) { return object.key == kRemovingName; });
    if (level.directories.empty() && level.objects.empty() && step < step_) remove_if_empty(directory);
    if (dead.empty() && !half_removed) return {};
    const auto stored = read_manifest(root_, step);
    if (!stored && stored.error().code() != ErrorCode::kNotFound) return tl::unexpected<Error>(stored.error());
    for (const std::string& name : dead) {
      if (stored && stored->manifest.attempt == name) continue;
      ASSIGN_OR_RETURN(const bool is_held, references_.holds(step, name));
      if (!is_held) keep(remove_folder(directory.child(name)));
    }
    if (half_removed) keep(remove_one(directory.child(kRemovingName)));
    if (!stored) remove_if_empty(directory);
    return {};
  }

  Status abort_dead_uploads() {
    if (!root_.storage->capabilities().list_uploads) return {};
    ASSIGN_OR_RETURN(auto uploads, root_.storage->list_uploads(root_.child("step-").key));
    if (!root_.storage->capabilities().knows_dead) {  // other ranks of this attempt are at work
      std::erase_if(uploads, [&](const ObjectInfo& upload) {
        return upload.key.find("/" + attempt_ + "/") != std::string::npos;
      });
    }
    return root_.storage->abort_uploads(uploads);
  }

  // The manifest first, and for good: a crash in between leaves files without a manifest, never the reverse. False: the
  // step stays, because a newer attempt or a newer version wrote it or a committed step refers to it.
  Result<bool> remove_step(int64_t step) {
    const Location directory = step_location(root_, step);
    const auto stored = read_manifest(root_, step);
    if (stored && is_newer(stored->manifest.attempt, attempt_)) return false;
    if (!stored && stored.error().code() == ErrorCode::kUnsupported) {
      log(LogLevel::kWarning, "checkpoint: {} stays: {}", directory.url, stored.error().to_string());
      return false;
    }
    ASSIGN_OR_RETURN(Level level, list_level(directory));
    std::erase_if(level.directories, [](const std::string& name) { return !restart_of(name); });
    // Files of other attempts may be referred to as well. Without any such step in the folder nothing more is read.
    if (!stored || stored->manifest.shares || level.directories.size() > 1) {
      ASSIGN_OR_RETURN(const bool is_held, references_.holds(step));
      if (is_held) return false;
    }
    RETURN_IF_ERROR(remove_one(directory.child(kManifestName)));
    if (root_.storage->capabilities().durable) {
      // A durable commit syncs its directory, and with it the removal.
      RETURN_IF_ERROR(write_object(*root_.storage, directory.child(kRemovingName).key, ""));
    }
    references_.removed(step);
    ASSIGN_OR_RETURN(level, list_level(directory));
    for (const std::string& name : level.directories) {
      if (restart_of(name) && is_newer(name, attempt_)) continue;  // it saves this step anew
      RETURN_IF_ERROR(remove_folder(directory.child(name)));
    }
    std::vector<std::string> files;
    for (const ObjectInfo& object : level.objects) files.push_back(directory.child(object.key).key);
    RETURN_IF_ERROR(root_.storage->remove(files));
    remove_if_empty(directory);
    return true;
  }

 private:
  // What is known of a committed step: its number alone where the rules ask no more. nullopt: it is not committed.
  Result<std::optional<StepInfo>> look_at(int64_t step, const Retention& retention) {
    const KeepRules& rules = retention.keep;
    if (rules.best == 0 && rules.young.count() == 0 && rules.quota_bytes == 0) {
      const auto manifest = root_.storage->stat(step_location(root_, step).child(kManifestName).key);
      if (!manifest) {
        if (manifest.error().code() == ErrorCode::kNotFound) return std::nullopt;
        return tl::unexpected<Error>(manifest.error());
      }
      if (!retention.line) return StepInfo{.step = step};
      ASSIGN_OR_RETURN(Level level, list_level(step_location(root_, step)));
      std::erase_if(level.directories, [](const std::string& name) { return !restart_of(name); });
      if (level.directories.size() == 1) return StepInfo{.step = step, .attempt = level.directories[0]};
    }
    return references_.info_of(step);
  }

  // All that is below `folder`, and where storage has folders, `folder` itself.
  Status remove_folder(const Location& folder) {
    ASSIGN_OR_RETURN(const auto keys, list_keys(folder));
    RETURN_IF_ERROR(root_.storage->remove(keys));
    tell_alive();
    remove_if_empty(folder);
    return {};
  }
  // One that is not empty is in use: a rank of another attempt begins to write there, or left an unfinished write.
  void remove_if_empty(const Location& folder) { static_cast<void>(root_.storage->remove_empty_folder(folder.key)); }

  Status remove_one(const Location& location) { return root_.storage->remove(std::vector<std::string>{location.key}); }

  void tell_alive() const {
    if (alive_) alive_();
  }

  const Location& root_;
  const int64_t step_;
  const std::string& attempt_;
  References references_;
  const std::function<void()> alive_;
  Status first_;
};

}  // namespace

Status clean_up(const Location& root, int64_t step, const std::string& attempt, const Retention& retention,
                bool sweep) {
  Cleaner cleaner(root, step, attempt, retention.known, retention.alive);
  const KeepRules& keep = retention.keep;
  if (keep.last > 0 || keep.best > 0 || keep.young.count() > 0 || keep.quota_bytes > 0)
    cleaner.keep(cleaner.remove_old_steps(retention));
  if (!sweep) {
    cleaner.keep(cleaner.remove_abandoned(step));
    return cleaner.first_error();
  }
  cleaner.keep(cleaner.abort_dead_uploads());  // first: they lie in the folders that are to go
  ASSIGN_OR_RETURN(const auto directories, list_step_directories(root));
  for (const int64_t each : directories) cleaner.keep(cleaner.remove_abandoned(each));
  return cleaner.first_error();
}

Status remove_step(const Location& root, int64_t step) {
  ASSIGN_OR_RETURN(const StoredManifest stored, read_manifest(root, step));
  ASSIGN_OR_RETURN(const bool is_removed, Cleaner(root, step, stored.manifest.attempt, nullptr).remove_step(step));
  if (is_removed) return {};
  return fail(ErrorCode::kAlreadyExists, "{}: it stays, because a committed step refers to its files",
              step_location(root, step).url);
}

Status check_bases(const Location& root, std::span<const Ancestor> bases, KnownSteps* known) {
  References references(root, known);
  for (const Ancestor& base : bases) {
    ASSIGN_OR_RETURN(const auto info, references.info_of(base.step));
    if (info && info->attempt == base.attempt) continue;
    ASSIGN_OR_RETURN(const bool is_held, references.holds(base.step, base.attempt));
    if (!is_held)
      return fail(ErrorCode::kNotFound,
                  "step {} of attempt {}, which ranks refer to, is not in {} any more; the next "
                  "save writes all",
                  base.step, base.attempt, root.url);
  }
  return {};
}

}  // namespace millrace::checkpoint
