// SPDX-License-Identifier: Apache-2.0
#include "millrace/checkpoint/detail/retention.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "millrace/checkpoint/checkpoint.h"
#include "millrace/checkpoint/detail/keys.h"
#include "millrace/checkpoint/detail/records.h"

namespace millrace::checkpoint {

namespace {

bool is_newer(const std::string& attempt, const std::string& than) {
  return *restart_of(attempt) > *restart_of(than);
}

class Cleaner {
 public:
  Cleaner(const Location& root, int64_t step, const std::string& attempt)
      : root_(root), step_(step), attempt_(attempt) {}

  Status first_error() const { return first_; }
  void keep(Status status) {
    if (first_ && !status) first_ = std::move(status);
  }

  Status remove_old_steps(const Retention& retention) {
    ASSIGN_OR_RETURN(const auto directories, list_step_directories(root_));
    std::vector<int64_t> committed;
    for (const int64_t step : directories) {
      // Later steps are those of a run that went further before it was set back: not in this line.
      if (step > step_) break;
      const auto manifest = root_.storage->stat(step_location(root_, step).child(kManifestName).key);
      if (manifest) committed.push_back(step);
      if (!manifest && manifest.error().code() != ErrorCode::kNotFound) return tl::unexpected<Error>(manifest.error());
    }
    for (const int64_t step : steps_to_remove(committed, retention.keep_last, retention.keep_every))
      keep(remove_step(step));
    return {};
  }

  // Attempts at `step` that can commit no more and that no manifest names.
  Status remove_abandoned(int64_t step) {
    const Location directory = step_location(root_, step);
    ASSIGN_OR_RETURN(const Level level, list_level(directory));
    std::vector<std::string> dead;
    for (const std::string& name : level.directories) {
      if (restart_of(name) && (is_newer(attempt_, name) || (name == attempt_ && step < step_))) dead.push_back(name);
    }
    const bool half_removed = std::any_of(level.objects.begin(), level.objects.end(),
                                          [](const ObjectInfo& object) { return object.key == kRemovingName; });
    if (dead.empty() && !half_removed) return {};
    const auto stored = read_manifest(root_, step);
    if (!stored && stored.error().code() != ErrorCode::kNotFound) return tl::unexpected<Error>(stored.error());
    for (const std::string& name : dead) {
      if (stored && stored->manifest.attempt == name) continue;
      ASSIGN_OR_RETURN(const auto keys, list_keys(directory.child(name)));
      keep(root_.storage->remove(keys));
    }
    if (half_removed) keep(remove_one(directory.child(kRemovingName)));
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

 private:
  // The manifest first, and for good: a crash in between leaves files without a manifest, never the reverse.
  Status remove_step(int64_t step) {
    const Location directory = step_location(root_, step);
    const auto stored = read_manifest(root_, step);
    if (stored && is_newer(stored->manifest.attempt, attempt_)) return {};
    RETURN_IF_ERROR(remove_one(directory.child(kManifestName)));
    if (root_.storage->capabilities().durable) {
      // A durable commit syncs its directory, and with it the removal.
      RETURN_IF_ERROR(write_object(*root_.storage, directory.child(kRemovingName).key, ""));
    }
    ASSIGN_OR_RETURN(const auto keys, list_keys(directory));
    return root_.storage->remove(keys);
  }

  Status remove_one(const Location& location) { return root_.storage->remove(std::vector<std::string>{location.key}); }

  const Location& root_;
  const int64_t step_;
  const std::string& attempt_;
  Status first_;
};

}  // namespace

Status clean_up(const Location& root, int64_t step, const std::string& attempt, const Retention& retention,
                bool sweep) {
  Cleaner cleaner(root, step, attempt);
  if (retention.keep_last > 0) cleaner.keep(cleaner.remove_old_steps(retention));
  if (!sweep) {
    cleaner.keep(cleaner.remove_abandoned(step));
    return cleaner.first_error();
  }
  ASSIGN_OR_RETURN(const auto directories, list_step_directories(root));
  for (const int64_t each : directories) cleaner.keep(cleaner.remove_abandoned(each));
  cleaner.keep(cleaner.abort_dead_uploads());
  return cleaner.first_error();
}

}  // namespace millrace::checkpoint
