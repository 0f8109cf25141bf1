// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "millrace/base/text/json_members.h"
#include "millrace/base/text/units.h"
#include "millrace/doctor/checks.h"
#include "millrace/plan/checkpoints.h"

namespace millrace::doctor {

namespace {

using jobs::RecordPoint;
using jobs::RecordStart;
using jobs::TrainingRecord;

double count_in(const nlohmann::ordered_json& counters, const char* name) {
  return number_at(counters, name).value_or(0);
}

void check_loss(const TrainingRecord& record, Verdicts& verdicts) {
  for (const auto& [name, points] : record.values) {
    if (name.find("loss") == std::string::npos || points.empty() || std::isfinite(points.back().value)) continue;
    auto first = points.end() - 1;
    while (first != points.begin() && !std::isfinite((first - 1)->value)) --first;
    std::string before;
    if (first != points.begin())
      before = fmt::format("; it was {:g} at step {}", (first - 1)->value, (first - 1)->step);
    verdicts.add("DR16", fmt::format("{} is {} from step {} on ({}){}", name, first->value, first->step,
                                     moment(first->time), before));
  }
}

// What the loader's counters say of the newest start. As `loader.report()`, from the outside.
void check_loader(const TrainingRecord& record, Verdicts& verdicts) {
  constexpr double kWaits = 0.05, kBusy = 0.7, kLeastSeconds = 2, kLeastBatches = 10;
  const RecordStart& start = record.starts.back();
  const double seconds = start.last - start.begun;
  const double waited = count_in(start.loader, "wait_seconds"), batches = count_in(start.loader, "batches");
  if (seconds < kLeastSeconds || batches < kLeastBatches || waited < seconds * kWaits) return;
  const double read = count_in(start.loader, "read_seconds"), decode = count_in(start.loader, "decode_seconds"),
               collate = count_in(start.loader, "collate_seconds"), encode = count_in(start.loader, "encode_seconds");
  verdicts.add("DR17",
               fmt::format("training waited {} of {} ({}) for {:.0f} batches, up to {}", format_duration(waited),
                           format_duration(seconds), percent(waited / seconds), batches, moment(start.last)));
  verdicts.add("DR17", fmt::format("stages, summed over threads: read {}, decode {}, encode {}, collate {}",
                                   format_duration(read), format_duration(decode), format_duration(encode),
                                   format_duration(collate)));
  const double bytes = count_in(start.loader, "read_bytes");
  if (bytes > 0) {
    verdicts.add("DR17", fmt::format("it read {}, which is {}", format_bytes(static_cast<int64_t>(bytes)),
                                     format_rate(bytes / seconds)));
  }
  const double hits = count_in(start.loader, "cache_hit_bytes"), misses = count_in(start.loader, "cache_miss_bytes");
  if (hits + misses > 0) verdicts.add("DR17", fmt::format("the cache had {} of it", percent(hits / (hits + misses))));
  const double threads = std::max(1.0, static_cast<double>(parse_whole(record.fact("config/num_threads")).value_or(1)));
  const double worked = decode + collate + encode;
  if (worked >= kBusy * threads * seconds) {
    const char* stage = decode >= collate && decode >= encode ? "decode" : encode >= collate ? "encode" : "collate";
    verdicts.advise("DR17", fmt::format("The limit is {}: give the loader more threads (num_threads) and the task more "
                                        "processors (--cpus-per-task).",
                                        stage));
  } else if (hits + misses > 0) {
    verdicts.advise("DR17",
                    "The limit is read: the cache fills, or is too small; more memory_bytes reads further ahead.");
  } else {
    verdicts.advise("DR17",
                    "The limit is read: a faster storage, cache= on NVMe, or more memory_bytes to read further "
                    "ahead. `millrace job new storage-test` measures the mount.");
  }
}

void check_checkpoints(const TrainingRecord& record, Verdicts& verdicts) {
  constexpr double kCostly = 0.05, kRare = 3, kLeastSaves = 2, kHour = 3600;
  const RecordStart& start = record.starts.back();
  if (!start.checkpointer.is_object()) return;
  const double seconds = start.last - start.begun;
  const double saves = count_in(start.checkpointer, "saves"), stalled = count_in(start.checkpointer, "stall_seconds");
  if (saves == 0) {
    if (seconds > 6 * kHour) {
      verdicts.add("DR19", fmt::format("no checkpoint in {}", format_duration(seconds)));
    }
    return;
  }
  if (saves < kLeastSaves || seconds <= 0) return;
  const double cost = stalled / saves, interval = seconds / saves;
  const std::string numbers = fmt::format("{:.0f} checkpoints, one every {}; each kept training for {}", saves,
                                          format_duration(interval), format_duration(cost));
  plan::CheckpointOptions options;
  options.bytes = std::max(1.0, count_in(start.checkpointer, "write_bytes") / saves);
  options.stall_s = std::max(cost, 1e-3);
  options.gpus = std::max<int64_t>(1, parse_whole(record.fact("gpus")).value_or(1));
  const auto plan = plan::plan_checkpoints(options);
  const double best = plan && plan->daly_s ? *plan->daly_s : 0;
  const std::string advised =
      best > 0 ? fmt::format("By Daly's formula one every {} is best for {} GPUs", format_duration(best), options.gpus)
               : "";
  if (stalled >= kCostly * seconds) {
    verdicts.add("DR18", fmt::format("{}, {} of the time", numbers, percent(stalled / seconds)));
    if (best > interval) verdicts.advise("DR18", advised + ". Write to NVMe first (tiers=).");
  } else if (best > 0 && interval > kRare * best && interval > kHour) {
    verdicts.add("DR19", numbers);
    verdicts.advise("DR19", advised + ".");
  }
}

void check_starts(const TrainingRecord& record, Verdicts& verdicts) {
  constexpr size_t kRepeats = 2;
  if (record.status() == "completed") return;
  int64_t most = -1;
  size_t in_vain = 0;
  for (const RecordStart& start : record.starts) {
    in_vain = start.last_step > most ? 0 : in_vain + 1;
    most = std::max(most, start.last_step);
  }
  if (in_vain < kRepeats) return;
  verdicts.add("DR28", fmt::format("the last {} of {} starts did not come past step {}", in_vain, record.starts.size(),
                                   most < 0 ? "0" : format_count(most)));
  for (size_t i = record.starts.size() - std::min<size_t>(in_vain, 3); i < record.starts.size(); ++i) {
    const RecordStart& start = record.starts[i];
    verdicts.add("DR28", fmt::format("{}: ran {}, last step {}, {}", moment(start.begun),
                                     format_duration(start.last - start.begun), start.last_step,
                                     start.end.empty() ? "killed" : start.end + " " + start.error));
  }
}

// The time between steps is that of its last hundred.
void check_progress(const Facts& facts, Verdicts& verdicts) {
  constexpr double kTimes = 10, kLeastSeconds = 60;
  const TrainingRecord& record = *facts.record;
  const bool runs = !facts.processes.empty() || facts.job_state == "RUNNING";
  if (!runs || !record.status().empty()) return;
  const std::vector<RecordPoint>* steps = nullptr;
  for (const auto& [name, points] : record.values) {
    if (steps == nullptr || points.size() > steps->size()) steps = &points;
  }
  if (steps == nullptr || steps->size() < 3) return;
  std::vector<double> times;
  for (size_t i = steps->size() - std::min<size_t>(steps->size() - 1, 100); i < steps->size(); ++i) {
    times.push_back((*steps)[i].time - (*steps)[i - 1].time);
  }
  std::nth_element(times.begin(), times.begin() + static_cast<ptrdiff_t>(times.size() / 2), times.end());
  const double typical = times[times.size() / 2], silence = facts.now - steps->back().time;
  if (silence < std::max(kTimes * typical, kLeastSeconds)) return;
  verdicts.add("DR10", fmt::format("the last step was {} at {}, {} ago; a step took {}", steps->back().step,
                                   moment(steps->back().time), format_duration(silence), format_duration(typical)));
  for (const ProcessFacts& process : facts.processes) {
    if (process.rank < 0 && facts.processes.size() > 1) continue;
    verdicts.add("DR10", fmt::format("{}: state {}, {:.2f} s of processor time in {:.1f} s; {}", process_name(process),
                                     process.states, process.cpu_s, process.watched_s,
                                     process.stack.empty() ? "no stack: " + process.no_stack : "in " + process.stack));
  }
}

void check_end(const Facts& facts, Verdicts& verdicts) {
  const bool failed = facts.record && facts.record->status() == "failed";
  const bool job_failed = facts.job_state == "FAILED";
  bool traceback = false;
  for (const LogFacts& log : facts.logs) traceback = traceback || log.of.contains("DR15");
  const bool ended_well = (facts.record && facts.record->status() == "completed") || facts.job_state == "COMPLETED";
  if (ended_well || verdicts.any_error() || !(failed || job_failed || traceback)) return;
  if (failed) {
    verdicts.add("DR15", fmt::format("the record ends with {} at {}, behind step {}", facts.record->starts.back().error,
                                     moment(facts.record->starts.back().last), facts.record->starts.back().last_step));
  }
  if (job_failed) verdicts.add("DR15", "Slurm says FAILED");
  for (const LogFacts& log : facts.logs) {
    if (!log.first_error.empty()) verdicts.add("DR15", log.first_error);
  }
  if (traceback && !verdicts.holds("DR15")) {
    for (const LogFacts& log : facts.logs) {
      for (const LogHit& hit : log.hits) {
        if (hit.rule == "DR15") verdicts.add("DR15", fmt::format("{}:{}: {}", hit.file, hit.line, hit.text));
      }
    }
  }
}

}  // namespace

void check_record(const Facts& facts, Verdicts& verdicts) {
  if (facts.record) {
    check_loss(*facts.record, verdicts);
    check_loader(*facts.record, verdicts);
    check_checkpoints(*facts.record, verdicts);
    check_starts(*facts.record, verdicts);
    check_progress(facts, verdicts);
  }
  check_end(facts, verdicts);
}

}  // namespace millrace::doctor
