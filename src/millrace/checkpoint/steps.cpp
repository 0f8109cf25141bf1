// SPDX-License-Identifier: Apache-2.0
// Decisions about whole steps: which rank writes a tensor, which steps are removed, which exist.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <queue>
#include <random>
#include <utility>

#include "millrace/base/text/units.h"
#include "millrace/checkpoint/checkpoint.h"
#include "millrace/checkpoint/io/damage.h"
#include "millrace/checkpoint/records/keys.h"
#include "millrace/checkpoint/records/records.h"

namespace millrace::checkpoint {

Result<std::string> make_attempt(const Location& root, const std::string& nonce) {
  ASSIGN_OR_RETURN(const auto steps, list_step_directories(root));
  int64_t restart = 0;
  for (const int64_t step : steps) {
    ASSIGN_OR_RETURN(const Level level, list_level(step_location(root, step)));
    for (const std::string& name : level.directories) {
      if (nonce.empty() || !name.ends_with("-" + nonce)) restart = std::max(restart, restart_of(name).value_or(-1) + 1);
    }
  }
  const std::string attempt =
      fmt::format("r{:04}-{}", restart, nonce.empty() ? fmt::format("{:08x}", std::random_device()()) : nonce);
  if (!restart_of(attempt)) return fail(ErrorCode::kInvalidArgument, "'{}' is no nonce of an attempt", nonce);
  return attempt;
}

Result<std::string> make_equal_attempt(const Location& root) {
  ASSIGN_OR_RETURN(const auto names, list_step_names(root));
  int64_t restart = 0;
  for (const StepNames& each : names) {
    for (const std::string& attempt : each.attempts) restart = std::max(restart, *restart_of(attempt));
  }
  return fmt::format("r{:04}-{:08x}", restart, std::random_device()());
}

std::vector<int64_t> assign_writers(std::span<const int64_t> bytes, int64_t world_size) {
  std::vector<size_t> largest_first(bytes.size());
  std::iota(largest_first.begin(), largest_first.end(), size_t{0});
  std::stable_sort(largest_first.begin(), largest_first.end(), [&](size_t a, size_t b) { return bytes[a] > bytes[b]; });

  using Load = std::pair<int64_t, int64_t>;  // bytes so far, rank
  std::priority_queue<Load, std::vector<Load>, std::greater<>> lightest;
  for (int64_t rank = 0; rank < world_size; ++rank) lightest.emplace(0, rank);
  std::vector<int64_t> writers(bytes.size());
  for (const size_t i : largest_first) {
    const auto [load, rank] = lightest.top();
    lightest.pop();
    writers[i] = rank;
    lightest.emplace(load + bytes[i], rank);
  }
  return writers;
}

Status check_keep_rules(const KeepRules& rules) {
  if (rules.last < 0 || rules.every < 0 || rules.best < 0 || rules.young.count() < 0 || rules.quota_bytes < 0)
    return fail(ErrorCode::kInvalidArgument, "checkpoint: a rule of what to keep is negative");
  if (rules.best > 0 && rules.monitor.empty())
    return fail(ErrorCode::kInvalidArgument, "checkpoint: to keep the best steps, name the metric that says which");
  return {};
}

namespace {

// Indices of the steps that the rule `best` holds, the best first.
std::vector<size_t> best_steps(std::span<const StepInfo> steps, const KeepRules& rules) {
  std::vector<std::pair<double, size_t>> ranked;
  for (size_t i = 0; i < steps.size() && rules.best > 0; ++i) {
    const auto metric = steps[i].metrics.find(rules.monitor);
    if (!steps[i].damage && !steps[i].is_left && metric != steps[i].metrics.end())
      ranked.emplace_back(rules.higher_is_better ? -metric->second : metric->second, i);
  }
  std::ranges::sort(ranked, [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first < b.first : a.second > b.second;
  });
  std::vector<size_t> best;
  for (const auto& [value, i] : ranked) {
    if (std::ssize(best) < rules.best) best.push_back(i);
  }
  return best;
}

// The newest step that stays and refers to files of the step at `i`; nullptr: none.
const StepInfo* referrer_of(std::span<const StepInfo> steps, std::span<const StepVerdict> verdicts, size_t i) {
  for (size_t other = steps.size(); other-- > i + 1;) {
    const auto refers = [&](const Ancestor& base) { return base.step == steps[i].step; };
    if (verdicts[other].stays && std::ranges::any_of(steps[other].bases, refers)) return &steps[other];
  }
  return nullptr;
}

// Takes steps that are held until the rest is within the quota. `good`: those of the line that are not damaged,
// ascending.
void apply_quota(std::span<const StepInfo> steps, const KeepRules& rules, std::span<const size_t> good,
                 std::span<const size_t> best, std::vector<StepVerdict>& verdicts) {
  int64_t bytes = 0;
  for (size_t i = 0; i < steps.size(); ++i) bytes += verdicts[i].stays ? steps[i].bytes : 0;
  const auto is_best = [&](size_t i) { return std::ranges::find(best, i) != best.end(); };
  const auto is_every = [&](size_t i) { return rules.every > 0 && steps[i].step % rules.every == 0; };
  std::vector<size_t> victims;
  for (size_t i = 0; i < steps.size(); ++i) {
    if (steps[i].is_left && !steps[i].damage) victims.push_back(i);
  }
  for (const bool every : {false, true}) {
    for (const size_t i : good) {
      if (!is_best(i) && is_every(i) == every) victims.push_back(i);
    }
  }
  victims.insert(victims.end(), best.rbegin(), best.rend());
  std::map<int64_t, int64_t> referrers;  // that stay, by the step that they refer to
  const auto count_referrer = [&](size_t i, int64_t count) {
    for (const Ancestor& base : steps[i].bases) referrers[base.step] += count;
  };
  for (size_t i = 0; i < steps.size(); ++i) count_referrer(i, verdicts[i].stays ? 1 : 0);
  for (size_t at = 0; at < victims.size() && bytes > rules.quota_bytes; ++at) {
    const size_t i = victims[at];
    if (!verdicts[i].stays || (!good.empty() && i == good.back()) || referrers[steps[i].step] > 0) continue;
    verdicts[i] = {false, fmt::format("over the quota of {}", format_bytes(rules.quota_bytes))};
    bytes -= steps[i].bytes;
    count_referrer(i, -1);
    if (!steps[i].bases.empty()) at = static_cast<size_t>(-1);  // a step that was held may go now: from the start
  }
}

// Judges a step that the line left behind; `head` is the line's newest step.
StepVerdict judge_left(const StepInfo& info, int64_t head, const KeepRules& rules, bool all,
                       std::chrono::sys_time<std::chrono::nanoseconds> now) {
  if (rules.drop_left) return {false, "left behind"};
  if (all) return {true, "left behind"};
  if (info.step > head) return {true, "left behind, and the line has not come so far"};
  if (rules.young.count() > 0 && now - info.committed < rules.young) return {true, "left behind, but young"};
  return {false, "left behind"};
}

}  // namespace

std::vector<StepVerdict> judge_steps(std::span<const StepInfo> steps, const KeepRules& rules,
                                     std::chrono::sys_time<std::chrono::nanoseconds> now) {
  std::vector<StepVerdict> verdicts(steps.size());
  std::vector<size_t> good;
  for (size_t i = 0; i < steps.size(); ++i) {
    if (steps[i].damage) {
      verdicts[i].why = "its manifest cannot be read";
    } else if (!steps[i].is_left) {
      good.push_back(i);
    }
  }
  const std::vector<size_t> best = best_steps(steps, rules);
  const bool all = rules.last == 0 && rules.best == 0 && rules.young.count() == 0;
  for (size_t place = 0; place < good.size(); ++place) {
    const StepInfo& info = steps[good[place]];
    StepVerdict& verdict = verdicts[good[place]];
    const auto behind = static_cast<int64_t>(good.size() - place);  // 1: the newest
    const auto at = std::ranges::find(best, good[place]);
    if (behind <= rules.last) {
      verdict.why = fmt::format("last {}", rules.last);
    } else if (at != best.end()) {
      verdict.why = fmt::format("best {} by {}: {}", rules.best, rules.monitor, info.metrics.at(rules.monitor));
    } else if (rules.every > 0 && info.step % rules.every == 0) {
      verdict.why = fmt::format("every {}", rules.every);
    } else if (rules.young.count() > 0 && now - info.committed < rules.young) {
      verdict.why = "young";
    } else if (behind == 1) {
      verdict.why = "newest";
    } else if (!all) {
      verdict = {false, "no rule holds it"};
    }
  }
  const int64_t head = good.empty() ? -1 : steps[good.back()].step;
  for (size_t i = 0; i < steps.size(); ++i) {
    if (steps[i].is_left && !steps[i].damage) verdicts[i] = judge_left(steps[i], head, rules, all, now);
  }
  hold_bases(steps, verdicts);
  if (rules.quota_bytes > 0) apply_quota(steps, rules, good, best, verdicts);
  return verdicts;
}

void hold_bases(std::span<const StepInfo> steps, std::span<StepVerdict> verdicts) {
  for (size_t i = steps.size(); i-- > 0;) {  // a base comes before what refers to it
    if (verdicts[i].stays) continue;
    if (const StepInfo* const referrer = referrer_of(steps, verdicts, i))
      verdicts[i] = {true, fmt::format("step {} refers to it", referrer->step)};
  }
}

Result<std::vector<int64_t>> list_step_numbers(const Location& root) {
  return list_step_directories(root);
}

namespace {

// The first file of the step that a listing shows to be missing or of another size; nullopt: none.
Result<std::optional<Error>> find_bad_file(const Location& root, const Manifest& manifest, bool missing_is_damage) {
  const Location folder = step_location(root, manifest.step).child(manifest.attempt);
  const RankPlaces places = manifest.places();
  std::vector<int64_t> ranks(manifest.parts.size());
  std::iota(ranks.begin(), ranks.end(), int64_t{0});
  ASSIGN_OR_RETURN(const auto objects, list_rank_files(folder, places, ranks));
  std::map<std::string_view, int64_t> sizes;
  for (const ObjectInfo& object : objects) sizes.emplace(object.key, object.size);
  std::optional<Error> first;
  int64_t more = 0;
  const auto check = [&](const std::string& name, int64_t bytes) {
    const auto found = sizes.find(name);
    if (found == sizes.end() ? !missing_is_damage : found->second == bytes) return;
    more += first ? 1 : 0;
    if (first) return;
    const std::string url = folder.child(name).url;
    first = found == sizes.end()
                ? Error(ErrorCode::kCorruption, fmt::format("{}: it is missing", url))
                : Error(ErrorCode::kCorruption,
                        fmt::format("{}: it has {} bytes, the manifest says {}", url, found->second, bytes));
  };
  for (const int64_t rank : ranks) {
    const ManifestPart& part = manifest.parts[static_cast<size_t>(rank)];
    check(places.file(rank), part.file_bytes);
    check(places.record(rank), part.bytes);
  }
  if (first && more > 0) first = Error(first->code(), fmt::format("{}; and {} more", first->message(), more));
  return first;
}

}  // namespace

namespace {

// The first step that `info` refers to and that is damaged, as far as listings of it show. `before`: the steps that
// were looked at. A folder of files stays without its step when another attempt replaced that.
Result<std::optional<Error>> find_bad_base(const Location& root, const StepInfo& info, std::span<const StepInfo> before,
                                           bool missing_is_damage) {
  for (const Ancestor& base : info.bases) {
    const auto found = std::ranges::find_if(
        before, [&](const StepInfo& each) { return each.step == base.step && each.attempt == base.attempt; });
    const std::string what = fmt::format("step {} of attempt {}, which it refers to", base.step, base.attempt);
    if (found != before.end() && found->file_damage) return std::optional(Error(*found->file_damage).add_context(what));
    if (found != before.end() || !missing_is_damage) continue;
    ASSIGN_OR_RETURN(const Level level, list_level(step_location(root, base.step).child(base.attempt)));
    if (level.objects.empty() && level.directories.empty())
      return std::optional(Error(ErrorCode::kCorruption, fmt::format("{}: {} is not there", root.url, what)));
  }
  return std::nullopt;
}

}  // namespace

Result<std::vector<StepInfo>> list_steps(const Location& root, const ListStepsOptions& options) {
  ASSIGN_OR_RETURN(const auto steps, list_step_directories(root));
  std::vector<StepInfo> infos;
  for (const int64_t step : steps) {
    auto stored = read_manifest(root, step);
    if (stored) {
      StepInfo info = step_info(stored->manifest);
      if (options.check_sizes) {
        ASSIGN_OR_RETURN(info.file_damage, find_bad_file(root, stored->manifest, options.missing_is_damage));
        if (!info.file_damage) {
          ASSIGN_OR_RETURN(info.file_damage, find_bad_base(root, info, infos, options.missing_is_damage));
        }
      }
      infos.push_back(std::move(info));
    } else if (is_damage(stored.error()) || stored.error().code() == ErrorCode::kUnsupported) {
      ASSIGN_OR_RETURN(const Level level, list_level(step_location(root, step)));
      StepInfo info{.step = step, .damage = std::move(stored).error()};
      for (const std::string& name : level.directories) {
        if (restart_of(name) && (info.attempt.empty() || *restart_of(name) > *restart_of(info.attempt)))
          info.attempt = name;
      }
      infos.push_back(std::move(info));
    } else if (stored.error().code() != ErrorCode::kNotFound) {
      return tl::unexpected<Error>(std::move(stored).error());
    }
  }
  mark_left(infos);
  return infos;
}

void mark_left(std::span<StepInfo> steps) {
  std::vector<StepNames> names;
  for (const StepInfo& info : steps)
    names.push_back({info.step, true, info.attempt.empty() ? std::vector<std::string>() : std::vector{info.attempt}});
  // Where a step was committed several times, the newest commit counts.
  std::map<int64_t, const StepInfo*> newest_of;
  for (const StepInfo& info : steps) {
    if (info.damage) continue;
    const StepInfo*& newest = newest_of[info.step];
    if (newest == nullptr || *restart_of(info.attempt) > *restart_of(newest->attempt)) newest = &info;
  }
  std::map<int64_t, std::string> line;
  LineWalk walk(names);
  while (const auto step = walk.next()) {
    const auto found = newest_of.find(*step);
    if (found == newest_of.end()) {
      line.emplace(*step, "");
      walk.damaged();
    } else if (walk.read(found->second->attempt, found->second->line)) {
      line.emplace(*step, found->second->attempt);
    }
  }
  for (StepInfo& info : steps) {
    const auto found = line.find(info.step);
    info.is_left = found == line.end() || (!info.damage && found->second != info.attempt);
  }
}

const StepInfo* newest_step(std::span<const StepInfo> steps) {
  for (auto info = steps.rbegin(); info != steps.rend(); ++info) {
    if (!info->is_left && !info->damage) return &*info;
  }
  return nullptr;
}

}  // namespace millrace::checkpoint
