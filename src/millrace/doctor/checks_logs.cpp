// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "millrace/base/text/units.h"
#include "millrace/doctor/checks.h"

namespace millrace::doctor {

namespace {

constexpr size_t kMostLines = 4;

// The number behind `word` in `text`; -1 without one.
int64_t number_behind(std::string_view text, std::string_view word) {
  const size_t at = text.find(word);
  if (at == std::string_view::npos) return -1;
  const size_t begin = at + word.size();
  const size_t end = std::min(text.find_first_not_of("0123456789", begin), text.size());
  return parse_whole(text.substr(begin, end - begin)).value_or(-1);
}

// Every line that names an error has been said to be of one of these runs.
bool completed(const Facts& facts) {
  return (facts.record && facts.record->status() == "completed") || facts.job_state == "COMPLETED";
}

// What does not end a run by itself, or comes after another error of the same log.
bool is_consequence(const LogFacts& log, const LogHit& hit) {
  static constexpr std::array<std::string_view, 4> kFollow{"DR11", "DR12", "DR14", "DR15"};
  const auto place = std::find(kFollow.begin(), kFollow.end(), hit.rule);
  if (place == kFollow.end()) return false;
  return std::any_of(log.hits.begin(), log.hits.end(), [&](const LogHit& other) {
    const bool is_cause = std::find(kFollow.begin(), kFollow.end(), other.rule) == kFollow.end();
    return is_cause && other.rule != "DR29" && other.line <= hit.line;
  });
}

std::string place_of(const LogHit& hit) {
  return fmt::format("{}:{}{}: {}", hit.file, hit.line, hit.rank >= 0 ? fmt::format(" (rank {})", hit.rank) : "",
                     hit.text);
}

// Which rank did not come: the one that enqueued least, or those that say nothing while others time out.
void add_missing_rank(const Facts& facts, Verdicts& verdicts) {
  std::map<int, int64_t> enqueued;
  std::set<int> timed_out;
  for (const LogFacts& log : facts.logs) {
    for (const LogHit& hit : log.hits) {
      if (hit.rule != "DR11" || hit.rank < 0) continue;
      timed_out.insert(hit.rank);
      const int64_t last = number_behind(hit.text, "last enqueued NCCL work: ");
      if (last >= 0) enqueued[hit.rank] = last;
    }
  }
  if (enqueued.size() >= 2) {
    const auto less = [](const auto& a, const auto& b) { return a.second < b.second; };
    const auto [least, most] = std::minmax_element(enqueued.begin(), enqueued.end(), less);
    if (least->second < most->second) {
      verdicts.add("DR11", fmt::format("rank {} is behind: it enqueued collective {} last, and rank {} {}",
                                       least->first, least->second, most->first, most->second));
    }
  }
  const auto world = facts.record ? parse_whole(facts.record->fact("world_size")).value_or(0) : 0;
  std::string silent;
  for (int rank = 0; rank < world && timed_out.size() * 2 > static_cast<size_t>(world); ++rank) {
    if (!timed_out.contains(rank)) silent += fmt::format("{}{}", silent.empty() ? "" : ", ", rank);
  }
  if (!silent.empty()) verdicts.add("DR11", "ranks that did not report a timeout, so did not wait: " + silent);
}

}  // namespace

void check_logs(const Facts& facts, Verdicts& verdicts) {
  // A run that completed has got over these.
  static constexpr std::array<std::string_view, 10> kEnds{"DR01", "DR02", "DR03", "DR04", "DR05",
                                                          "DR07", "DR11", "DR12", "DR14", "DR15"};
  std::map<std::string_view, size_t> shown;
  for (const LogFacts& log : facts.logs) {
    std::map<std::string_view, int64_t> of;
    for (const LogHit& hit : log.hits) {
      const bool is_end = std::find(kEnds.begin(), kEnds.end(), hit.rule) != kEnds.end();
      if (hit.rule == "DR15" || (is_end && completed(facts)) || is_consequence(log, hit)) continue;
      ++of[hit.rule];
      if (++shown[hit.rule] <= kMostLines) verdicts.add(hit.rule, place_of(hit));
    }
    for (const auto& [rule, count] : of) {
      const int64_t all = log.of.at(rule);
      if (all > count || shown[rule] > kMostLines) {
        verdicts.add(rule, fmt::format("{}: {} such lines in all", log.path, format_count(all)));
      }
    }
  }
  if (verdicts.holds("DR01")) advise_batch(facts, verdicts);
  if (verdicts.holds("DR11")) add_missing_rank(facts, verdicts);
  if (facts.job_state == "OUT_OF_MEMORY") {
    verdicts.add("DR02", "Slurm says OUT_OF_MEMORY");
    for (const std::string& line : facts.job_evidence) verdicts.add("DR02", line);
  }
  static constexpr std::array<std::string_view, 6> kEnded{"TIMEOUT",   "PREEMPTED", "NODE_FAIL",
                                                          "CANCELLED", "BOOT_FAIL", "DEADLINE"};
  if (std::find(kEnded.begin(), kEnded.end(), facts.job_state) != kEnded.end()) {
    verdicts.add("DR14", "Slurm says " + facts.job_state);
    for (const std::string& line : facts.job_evidence) verdicts.add("DR14", line);
  }
}

void check_processes(const Facts& facts, Verdicts& verdicts) {
  for (const ProcessFacts& process : facts.processes) {
    const auto all = [&](std::string_view letters) {
      return !process.states.empty() && process.states.find_first_not_of(letters) == std::string::npos;
    };
    const std::string name = process_name(process) + (process.command.empty() ? "" : " (" + process.command + ")");
    const std::string where = process.stack.empty() ? "" : "; it stands in " + process.stack;
    if (all("Tt"))
      verdicts.add("DR08", fmt::format("{}: stopped in each of {} looks{}", name, process.states.size(), where));
    if (all("D")) {
      verdicts.add("DR09",
                   fmt::format("{}: in the kernel in each of {} looks over {:.1f} s{}", name, process.states.size(),
                               process.watched_s, process.wait.empty() ? "" : ", last in " + process.wait));
    }
  }
}

void check_mounts(const Facts& facts, Verdicts& verdicts) {
  constexpr double kLittleShare = 0.02, kLittleBytes = 50e9, kFewShare = 0.01, kFewFiles = 10'000;
  double checkpoint = 0;
  if (facts.record) {
    const double saves = facts.record->counted("checkpointer", "saves");
    if (saves > 0) checkpoint = facts.record->counted("checkpointer", "write_bytes") / saves;
  }
  for (const MountFacts& mount : facts.mounts) {
    if (mount.bytes > 0 && mount.free_bytes < std::min(mount.bytes * kLittleShare, kLittleBytes)) {
      verdicts.add(
          "DR04", fmt::format("{}: {} of {} are free", mount.path, format_bytes(static_cast<int64_t>(mount.free_bytes)),
                              format_bytes(static_cast<int64_t>(mount.bytes))));
    } else if (checkpoint > 0 && mount.free_bytes < checkpoint && facts.record && mount.path == facts.record->folder) {
      verdicts.add("DR04", fmt::format("{}: {} are free, and a checkpoint of this run took {} a rank", mount.path,
                                       format_bytes(static_cast<int64_t>(mount.free_bytes)),
                                       format_bytes(static_cast<int64_t>(checkpoint))));
    }
    if (mount.files > 0 && mount.free_files < std::min(mount.files * kFewShare, kFewFiles)) {
      verdicts.add("DR06", fmt::format("{}: {} of {} files are left", mount.path,
                                       format_count(static_cast<int64_t>(mount.free_files)),
                                       format_count(static_cast<int64_t>(mount.files))));
    }
  }
}

void check_nccl(const Facts& facts, Verdicts& verdicts) {
  constexpr int64_t kLarge = int64_t{64} << 20;
  constexpr double kLow = 0.6, kBehind = 0.8;
  std::map<std::string, std::vector<std::pair<double, const NcclRun*>>> alike;
  for (const NcclRun& run : facts.nccl) {
    double best = 0;
    int64_t at = 0, wrong = 0;
    for (const NcclRow& row : run.rows) {
      wrong += row.wrong;
      if (row.bytes < kLarge || row.busbw <= best) continue;
      best = row.busbw;
      at = row.bytes;
    }
    const std::string name = fmt::format("{}: {}{} ranks on {} nodes", run.file,
                                         run.collective.empty() ? "" : run.collective + ", ", run.ranks, run.nodes);
    if (wrong > 0) verdicts.add("DR13", fmt::format("{}: {} values came out wrong", name, format_count(wrong)));
    if (best <= 0) continue;
    const LinkLimit limit = link_limit(run, facts.instance);
    if (limit.gb_per_s > 0 && best < limit.gb_per_s * kLow) {
      verdicts.add(
          "DR27",
          fmt::format("{}: at most {:.1f} GB/s bus bandwidth (at {} bytes), {} of {:.0f} GB/s one way ({})", name, best,
                      format_count(at), percent(best / limit.gb_per_s), limit.gb_per_s, limit.source));
    }
    alike[fmt::format("{}/{}/{}", run.collective, run.ranks, run.nodes)].push_back({best, &run});
  }
  // The same test of several pairs or groups of nodes: one that is behind has the slow node or link.
  for (auto& [kind, runs] : alike) {
    if (runs.size() < 3) continue;
    std::sort(runs.begin(), runs.end());
    const double median = runs[runs.size() / 2].first;
    if (runs.front().first < median * kBehind) {
      verdicts.add("DR22", fmt::format("{}: {:.1f} GB/s, and the median of {} such tests is {:.1f}",
                                       runs.front().second->file, runs.front().first, runs.size(), median));
    }
  }
}

}  // namespace millrace::doctor
