// SPDX-License-Identifier: Apache-2.0
#include "millrace/sync/detail/action_runner.h"

#include <utility>

#include "millrace/sync/detail/attributes.h"
#include "millrace/sync/detail/content_hash.h"
#include "millrace/sync/detail/copy_plan.h"
#include "millrace/sync/verify.h"

namespace millrace::sync {
namespace {

using Kind = Action::Kind;

bool replaces_file(const Action& action) {
  return !action.target.key.empty() && action.target.kind == ObjectKind::kFile;
}

bool same_as_recorded(const Action& action) {
  return is_version(action.recorded->source, action.source) && is_version(action.recorded->target, action.target);
}

std::optional<Hash128> recorded_hash(const Action& action) {
  return action.recorded && same_as_recorded(action) ? action.recorded->hash : std::nullopt;
}

bool needs_comparison(const Action& action) {
  return action.kind == Kind::kCompare || action.kind == Kind::kAttributes;
}

}  // namespace

ActionRunner::ActionRunner(const Location& source, const Location& target, const SyncOptions& options,
                           TransferEngine& engine, bool batched, std::stop_token stop, Progress* progress, Ended ended)
    : source_(source),
      target_(target),
      options_(options),
      engine_(engine),
      batched_(batched),
      folders_(target.storage->capabilities().folders),
      stop_(std::move(stop)),
      progress_(progress),
      ended_(std::move(ended)) {}

bool ActionRunner::takes_time(const Action& action) const {
  return needs_comparison(action) || (action.kind == Kind::kCopy && (!options_.dry_run || replaces_file(action)));
}

void ActionRunner::settle(PendingAction& pending, PathSpool& deletes) const {
  using Became = SyncEvent::Kind;
  const Action& action = pending.action;
  switch (action.kind) {
    case Kind::kSkip:
      return settle_skip(pending);
    case Kind::kDelete:
      if (auto kept = deletes.add({action.path, action.size, {}}); !kept) pending.error = std::move(kept).error();
      pending.result = pending.error ? Became::kFailed : Became::kDeleted;
      return;
    case Kind::kExtra:
      pending.result = Became::kExtra;
      return;
    case Kind::kFolder:
      return settle_folder(pending);
    case Kind::kPass:
      pending.result = Became::kPassed;
      return;
    case Kind::kRefuse:
      pending.result = Became::kRefused;
      return;
    case Kind::kUnreadable:
      return pending.fail_with(
          Error(ErrorCode::kPermissionDenied, source_.child(action.path).url + ": " + action.reason), progress_);
    case Kind::kKeep:
      pending.entry = action.recorded;
      return;
    case Kind::kCopy:  // in a dry run, where no file is replaced
      pending.moved = estimated_report(*source_.storage, *target_.storage, action.size);
      return;
    case Kind::kCompare:
    case Kind::kAttributes:
      return;
  }
}

void ActionRunner::settle_folder(PendingAction& pending) const {
  pending.result = SyncEvent::Kind::kSkipped;
  if (!folders_) return;  // FolderAttributes makes an object for it
  std::string key = prefix_of(target_) + pending.action.path;
  key.pop_back();
  const auto there = target_.storage->stat(key);
  pending.is_new_folder = !there && there.error().code() == ErrorCode::kNotFound;
  if (options_.dry_run) return;
  if (Status made = target_.storage->make_folder(key); !made) pending.fail_with(std::move(made).error(), progress_);
}

void ActionRunner::settle_skip(PendingAction& pending) const {
  const Action& action = pending.action;
  pending.result = SyncEvent::Kind::kSkipped;
  pending.entry = entry_of(action, action.target, recorded_hash(action));
  if (!pending.entry || !action.recorded) return;
  pending.entry->attributes = same_as_recorded(action) && action.recorded->attributes;
}

void ActionRunner::start(const std::shared_ptr<PendingAction>& pending) {
  const Action& action = pending->action;
  CopyRequest request{.from = {source_.storage, action.source.key, source_.child(action.path).url},
                      .source = action.source,
                      .to = target_.child(action.path),
                      .options = options_for(action),
                      .stop = stop_,
                      .progress = progress_,
                      .done = [this, pending](Result<TransferReport> moved) {
                        take_copied(*pending, std::move(moved));
                        ended_(*pending);
                      }};
  pending->is_durable = request.options.durability == Durability::kDurable;
  if (needs_comparison(action)) {
    request.is_wanted = [this, pending] {
      if (is_to_be_copied(*pending)) return true;
      pending->is_durable = true;  // no file was written
      ended_(*pending);
      return false;
    };
  }
  engine_.start(std::move(request));
}

TransferOptions ActionRunner::options_for(const Action& action) const {
  TransferOptions options = options_.transfer;
  options.dry_run = options_.dry_run;
  if (replaces_file(action)) options.target = action.target;
  if (batched_ && action.size <= kBlockBytes && !options_.dry_run) options.durability = Durability::kVisible;
  return options;
}

// ---- on a thread of the engine

bool ActionRunner::is_to_be_copied(PendingAction& pending) const {
  const auto differs = stop_.stop_requested() ? fail(ErrorCode::kCancelled, "stopped") : difference(pending);
  if (!differs) {
    pending.fail_with(differs.error(), progress_);
    return false;
  }
  if (*differs != nullptr) {
    pending.action.reason = *differs;
    pending.entry.reset();
    return true;
  }
  pending.result = SyncEvent::Kind::kSkipped;
  if (progress_ != nullptr) progress_->add(0, 1);
  return false;
}

// For people, or nullptr for none.
Result<const char*> ActionRunner::difference(PendingAction& pending) const {
  Action& action = pending.action;
  if (action.kind == Kind::kCompare) {
    ASSIGN_OR_RETURN(const bool equal, compare(pending));
    if (!equal) return "other content";
    action.reason = "the same content";
  } else {
    pending.entry = entry_of(action, action.target, recorded_hash(action));
  }
  if (!options_.transfer.posix) return nullptr;
  ASSIGN_OR_RETURN(const ObjectInfo source, source_.storage->stat(action.source.key));
  ASSIGN_OR_RETURN(const ObjectInfo target, target_.storage->stat(action.target.key));
  const auto wanted = attributes_of_content(*source_.storage, source);
  return same_attributes(*target_.storage, wanted, target.posix) ? nullptr : "other owner, mode or times";
}

// True for the same content.
Result<bool> ActionRunner::compare(PendingAction& pending) const {
  const Action& action = pending.action;
  ASSIGN_OR_RETURN(const Hash128 source, hash_object(*source_.storage, action.source, stop_, progress_));
  Hash128 target;
  if (action.known_target) {
    target = *action.recorded->hash;
  } else {
    ASSIGN_OR_RETURN(target, hash_object(*target_.storage, action.target, stop_, nullptr));
  }
  if (source == target) pending.entry = entry_of(action, action.target, source);
  if (source != target && progress_ != nullptr) progress_->add(-action.source.size, 0);  // the copy counts it
  return source == target;
}

void ActionRunner::take_copied(PendingAction& pending, Result<TransferReport> moved) const {
  Action& action = pending.action;
  if (!moved) {
    pending.is_durable = true;  // no file was written that could be lost
    if (is_folder_in_its_place(action, moved.error())) {
      pending.is_blocked = options_.delete_extra && expects_folders_;
      moved = fail(ErrorCode::kInvalidArgument, "{}: a directory is in its place{}", target_.child(action.path).url,
                   options_.delete_extra ? ", and not empty" : ": --delete removes the files in it");
    }
    if (pending.is_blocked) return;
    return pending.fail_with(std::move(moved).error(), progress_);
  }
  pending.moved = std::move(*moved);
  if (pending.moved.unchanged) {
    pending.is_durable = true;
    pending.result = SyncEvent::Kind::kSkipped;
    action.reason = "the same content";
  }
  if (progress_ != nullptr) progress_->add(0, 1);
  if (options_.dry_run) return;
  ObjectInfo target = pending.moved.object;
  const bool knows_change = !target.changed.is_epoch();
  if (folders_ && options_.record && !knows_change) {
    if (auto now = target_.storage->stat(target.key); now && now->version == target.version) target = std::move(*now);
  }
  pending.entry = entry_of(action, target, pending.moved.hash);
}

bool ActionRunner::is_folder_in_its_place(const Action& action, const Error& error) const {
  if (!folders_ || error.code() != ErrorCode::kInvalidArgument) return false;
  const auto there = target_.storage->stat(prefix_of(target_) + action.path);
  return !there && there.error().code() == ErrorCode::kInvalidArgument;
}

std::optional<RecordEntry> ActionRunner::entry_of(const Action& action, const ObjectInfo& target,
                                                  std::optional<Hash128> hash) const {
  if (action.source.version.empty() || target.version.empty()) return std::nullopt;
  return RecordEntry{action.path, action.source.size,     recorded_version(action.source), recorded_version(target),
                     hash,        options_.transfer.posix};
}

}  // namespace millrace::sync
