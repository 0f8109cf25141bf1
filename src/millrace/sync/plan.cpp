// SPDX-License-Identifier: Apache-2.0
#include "millrace/sync/plan.h"

#include <algorithm>
#include <utility>

#include "millrace/sync/transfer.h"

namespace millrace::sync {

void Plan::Above::pass(const Entry& entry) {
  while (!open_.empty() && !entry.path.starts_with(open_.back().first)) open_.pop_back();
  std::string path = entry.path;
  while (path.ends_with('/')) path.pop_back();
  const bool is_folder = entry.kind == Entry::Kind::kMarker || entry.kind == Entry::Kind::kFolder;
  if (!is_folder && !path.empty()) open_.emplace_back(std::move(path), entry.kind);
}

std::optional<Entry::Kind> Plan::Above::of(std::string_view path) const {
  for (const auto& [above, kind] : open_) {
    if (path.size() > above.size() && path[above.size()] == '/' && path.starts_with(above)) return kind;
  }
  return std::nullopt;
}

Plan::Plan(Entries source, Entries target, Records records, std::function<bool(std::string_view)> left_out,
           const PlanOptions& options)
    : next_source_(std::move(source)),
      next_target_(std::move(target)),
      next_record_(std::move(records)),
      left_out_(std::move(left_out)),
      options_(options) {}

void Plan::fill_record() {
  if (recorded_ || record_ended_) return;
  auto record = next_record_();
  if (record) {
    recorded_ = std::move(*record);
  } else {
    record_problem_ = record.error().to_string();
  }
  record_ended_ = !recorded_;
}

// Where no side has folders, a key need not be a path.
void Plan::accept_any_key(std::optional<Entry>& entry) const {
  if (entry && entry->kind == Entry::Kind::kIllegal && !options_.target_folders) entry->kind = Entry::Kind::kFile;
}

Status Plan::fill() {
  if (!source_ && !source_ended_) {
    ASSIGN_OR_RETURN(source_, next_source_());
    source_ended_ = !source_;
    accept_any_key(source_);
    if (source_ && source_->kind == Entry::Kind::kFile) ++source_files_;
  }
  if (!target_ && !target_ended_) {
    ASSIGN_OR_RETURN(target_, next_target_());
    target_ended_ = !target_;
    accept_any_key(target_);
  }
  fill_record();
  return {};
}

std::optional<RecordEntry> Plan::rest_of_record() {
  fill_record();
  return std::exchange(recorded_, std::nullopt);
}

Result<std::optional<Action>> Plan::next() {
  for (;;) {
    RETURN_IF_ERROR(fill());
    const std::string* least = nullptr;
    const auto look = [&](const std::string& path) {
      if (least == nullptr || path < *least) least = &path;
    };
    if (source_) look(source_->path);
    if (target_) look(target_->path);
    if (recorded_) look(recorded_->path);
    if (least == nullptr) return std::nullopt;
    std::string path = *least;
    const auto take = [&](auto& from) {
      std::remove_reference_t<decltype(from)> taken;
      if (from && from->path == path) from.swap(taken);
      return taken;
    };
    auto source = take(source_);
    auto target = take(target_);
    auto recorded = take(recorded_);
    if (source || target) return decide(std::move(path), std::move(source), std::move(target), std::move(recorded));
    if (!left_out_(path)) continue;  // gone from both sides
    return Action{.kind = Action::Kind::kKeep, .path = std::move(path), .recorded = std::move(recorded)};
  }
}

Action Plan::decide(std::string path, std::optional<Entry> source, std::optional<Entry> target,
                    std::optional<RecordEntry> recorded) {
  Action action{.path = std::move(path), .recorded = std::move(recorded)};
  // Each side's own way down, before either is asked about what lies above.
  if (source) source_above_.pass(*source);
  if (target) target_above_.pass(*target);
  if (source) {
    action.source = source->info;
    action.size = source->info.size;
    if (target) action.target = target->info;
    decide_source(action, *source, target);
  } else {
    action.target = target->info;
    action.size = target->info.size;
    decide_target(action, *target);
  }
  return action;
}

void Plan::decide_source(Action& action, const Entry& source, const std::optional<Entry>& target) const {
  using Kind = Action::Kind;
  const auto say = [&](Kind kind, std::string reason) {
    action.kind = kind;
    action.reason = std::move(reason);
  };
  if (source.kind == Entry::Kind::kIllegal) return say(Kind::kRefuse, "the key is no legal path");
  if (source.kind == Entry::Kind::kUnreadable) return say(Kind::kUnreadable, "permission denied");
  const bool is_folder = source.kind == Entry::Kind::kFolder;
  if (source.kind != Entry::Kind::kFile && !is_folder)
    return say(Kind::kPass, std::string(entry_kind_name(source.kind)));
  if (is_folder) action.kind = Kind::kFolder;
  if (options_.target_folders && source_above_.of(action.path)) {
    return say(Kind::kRefuse, "the source has a file of the name of its folder");
  }
  if (const auto above = target_above_.of(action.path);
      above && (options_.target_folders || *above != Entry::Kind::kFile)) {
    const bool is_file = *above == Entry::Kind::kFile;
    action.after_deletes = is_file && options_.delete_extra;
    if (action.after_deletes) return say(is_folder ? Kind::kFolder : Kind::kCopy, "a file is where its folder belongs");
    return say(Kind::kRefuse, "at the target " + std::string(entry_kind_name(*above)) + " is where its folder belongs" +
                                  (is_file ? ": --delete removes it" : ""));
  }
  if (is_folder) return;
  if (!target) return say(Kind::kCopy, "not at the target");
  if (target->kind == Entry::Kind::kFile) return decide_files(action);
  if (target->kind == Entry::Kind::kLink) return say(Kind::kCopy, "a symbolic link at the target");
  say(Kind::kRefuse, "at the target is " + std::string(entry_kind_name(target->kind)));
}

void Plan::decide_files(Action& action) const {
  using Kind = Action::Kind;
  const auto say = [&](Kind kind, const char* reason) {
    action.kind = kind;
    action.reason = reason;
  };
  const auto equal = [&](const char* reason) { say(options_.attributes ? Kind::kAttributes : Kind::kSkip, reason); };
  const ObjectInfo& source = action.source;
  const ObjectInfo& target = action.target;
  const auto& recorded = action.recorded;
  if (source.size != target.size) return say(Kind::kCopy, "another size");
  if (options_.compare == CompareBy::kSize) return equal("the same size");
  if (options_.compare == CompareBy::kChecksum) return say(Kind::kCompare, "by content");
  if (recorded && recorded->size == source.size) {
    const bool same_source = is_version(recorded->source, source);
    const bool same_target = is_version(recorded->target, target);
    if (same_source && same_target) {
      return recorded->attributes ? say(Kind::kSkip, "unchanged since the last sync")
                                  : equal("unchanged since the last sync");
    }
    if (options_.compare == CompareBy::kNone) return say(Kind::kCopy, "asked for");
    if (same_source) return say(Kind::kCopy, "changed at the target since the last sync");
    if (same_target && recorded->hash && options_.cheap_source) {
      action.known_target = true;
      return say(Kind::kCompare, "another time since the last sync");
    }
    return say(Kind::kCopy, "changed since the last sync");
  }
  if (options_.compare == CompareBy::kNone) return say(Kind::kCopy, "asked for");
  if (const char* const proof = options_.proof ? options_.proof(source, target) : nullptr) return equal(proof);
  // A copy moves only what differs. That it compares small files too is worth while where both are here.
  const bool compares = options_.cheap_source && options_.cheap_target && source.size <= kBlockBytes;
  say(compares ? Kind::kCompare : Kind::kCopy, "not known to be the same");
}

void Plan::decide_target(Action& action, const Entry& target) const {
  using Kind = Action::Kind;
  const bool is_file = target.kind == Entry::Kind::kFile;
  if (!options_.delete_extra || !is_file) {
    action.kind = Kind::kExtra;
    action.reason = is_file ? "only at the target" : std::string(entry_kind_name(target.kind));
  } else if (const auto above = source_above_.of(action.path); above && *above != Entry::Kind::kFile) {
    action.kind = Kind::kExtra;
    action.reason = "at the source " + std::string(entry_kind_name(*above)) + " is in its folder's place";
  } else {
    action.kind = Kind::kDelete;
    action.reason = "not at the source";
  }
}

}  // namespace millrace::sync
