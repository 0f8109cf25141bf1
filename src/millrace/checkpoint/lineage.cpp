// SPDX-License-Identifier: Apache-2.0
#include "millrace/checkpoint/lineage.h"

#include <algorithm>
#include <utility>

#include "millrace/checkpoint/records/keys.h"

namespace millrace::checkpoint {

bool covers(const Lineage& line, std::string_view attempt, int64_t step) {
  int64_t above = -1;
  for (const Ancestor& each : line) {
    if (each.attempt == attempt && step > above && step <= each.step) return true;
    above = each.step;
  }
  return false;
}

Lineage lineage_below(Lineage line, int64_t step) {
  while (!line.empty() && line.back().step >= step) {
    const int64_t above = line.size() > 1 ? line[line.size() - 2].step : -1;
    if (step - 1 > above) {
      line.back().step = step - 1;
    } else {
      line.pop_back();
    }
  }
  return line;
}

Lineage continue_line(Lineage line, const std::string& attempt, int64_t step) {
  line = lineage_below(std::move(line), step);
  if (!line.empty() && line.back().attempt == attempt) {
    line.back().step = step;
  } else {
    line.push_back({attempt, step});
  }
  return line;
}

Result<std::vector<StepNames>> list_step_names(const Location& root) {
  ASSIGN_OR_RETURN(const auto steps, list_step_directories(root));
  std::vector<StepNames> names;
  for (const int64_t step : steps) {
    ASSIGN_OR_RETURN(Level level, list_level(step_location(root, step)));
    std::erase_if(level.directories, [](const std::string& name) { return !restart_of(name); });
    const bool is_committed =
        std::ranges::any_of(level.objects, [](const ObjectInfo& object) { return object.key == kManifestName; });
    names.push_back({step, is_committed, std::move(level.directories)});
  }
  return names;
}

LineWalk::LineWalk(std::span<const StepNames> names) {
  for (const StepNames& each : names) {
    if (each.is_committed) left_.try_emplace(each.step);
  }
  for (const StepNames& each : names) {
    const auto found = left_.find(each.step);
    if (found == left_.end()) continue;
    for (const std::string& attempt : each.attempts) {
      if (restart_of(attempt)) found->second.attempts.push_back(attempt);
    }
  }
}

const std::string* LineWalk::newest_of(int64_t step, const Entry& entry) const {
  const std::string* newest = nullptr;
  for (const std::string& attempt : entry.attempts) {
    if (line_ && !covers(*line_, attempt, step)) continue;
    if (newest == nullptr || *restart_of(attempt) > *restart_of(*newest)) newest = &attempt;
  }
  return newest;
}

std::optional<int64_t> LineWalk::next() {
  std::optional<std::pair<int64_t, int64_t>> best;  // restart, step
  for (const auto& [step, entry] : left_) {
    if (step >= bound_) break;
    const std::string* const attempt = newest_of(step, entry);
    // A manifest whose files are gone names an attempt that the folder does not show: it is looked at before older
    // ones.
    const bool is_unknown = entry.attempts.empty();
    if (attempt == nullptr && !is_unknown) continue;
    const std::pair rank{is_unknown ? INT64_MAX : *restart_of(*attempt), step};
    if (!best || rank > *best) best = rank;
  }
  if (!best) return std::nullopt;
  at_ = best->second;
  return at_;
}

bool LineWalk::read(const std::string& attempt, const std::optional<Lineage>& line) {
  const auto found = left_.find(at_);
  if (found == left_.end()) return false;
  Entry& entry = found->second;
  const std::string* const assumed = newest_of(at_, entry);
  if (!std::exchange(entry.is_known, true) && (assumed == nullptr || *assumed != attempt)) {
    entry.attempts = {attempt};  // another step may come before it now
    return false;
  }
  left_.erase(found);
  bound_ = at_;
  if (!line_ && line) line_ = line;
  return true;
}

void LineWalk::damaged() {
  const auto found = left_.find(at_);
  if (found == left_.end()) return;
  if (!found->second.attempts.empty()) bound_ = at_;  // else nobody knows of which attempt it is
  left_.erase(found);
}

void LineWalk::gone() {
  left_.erase(at_);
}

Lineage infer_lineage(std::span<const StepNames> names, const std::string& attempt, int64_t step) {
  std::vector<StepNames> older{{step, true, {attempt}}};
  for (const StepNames& each : names) {
    if (each.step >= step) continue;
    StepNames entry{each.step, each.is_committed, {}};
    for (const std::string& name : each.attempts) {
      if (*restart_of(name) <= *restart_of(attempt)) entry.attempts.push_back(name);
    }
    if (!entry.attempts.empty()) older.push_back(std::move(entry));
  }
  Lineage newest_first;
  LineWalk walk(older);
  while (const auto at = walk.next()) {
    const auto entry = std::ranges::find(older, *at, &StepNames::step);
    const std::string& name =
        *std::ranges::max_element(entry->attempts, {}, [](const std::string& each) { return *restart_of(each); });
    if (!walk.read(name, std::nullopt)) continue;
    if (newest_first.empty() || newest_first.back().attempt != name) newest_first.push_back({name, *at});
  }
  return {newest_first.rbegin(), newest_first.rend()};
}

}  // namespace millrace::checkpoint
