// SPDX-License-Identifier: Apache-2.0
// What the loaders and checkpointers of running processes show of themselves.
#include <fmt/format.h>

#include <algorithm>

#include "millrace/base/text/units.h"
#include "millrace/doctor/checks.h"

namespace millrace::doctor {

namespace {

constexpr double kSecondsPerNs = 1e-9;

double shown_seconds(const PublishedProcess& shown, Published row) {
  return static_cast<double>(shown.value(row)) * kSecondsPerNs;
}

void check_wait(const ProcessFacts& process, double lived, Verdicts& verdicts) {
  constexpr double kWaits = 0.05, kLeastSeconds = 2;
  constexpr int64_t kLeastBatches = 10;
  const int64_t batches = process.shown.value(Published::kBatches);
  const double waited = shown_seconds(process.shown, Published::kWaitNs);
  if (lived < kLeastSeconds || batches < kLeastBatches || waited < lived * kWaits) return;
  const double now = waited - shown_seconds(process.shown_first, Published::kWaitNs);
  verdicts.add("DR17", fmt::format("{}: it waited {} of {} ({}) for {} batches, and {} of the last {}; {} were ready "
                                   "when it took the last one",
                                   process_name(process), format_duration(waited), format_duration(lived),
                                   percent(waited / lived), format_count(batches),
                                   percent(std::min(1.0, now / std::max(process.shown_s, 1e-3))),
                                   format_duration(process.shown_s), process.shown.value(Published::kQueueBatches)));
}

void check_saves(const ProcessFacts& process, double lived, Verdicts& verdicts) {
  constexpr double kCostly = 0.05;
  constexpr int64_t kLeastSaves = 2;
  const int64_t saves = process.shown.value(Published::kSaves);
  const double stood = shown_seconds(process.shown, Published::kStallNs);
  if (saves < kLeastSaves || stood < lived * kCostly) return;
  verdicts.add("DR18",
               fmt::format("{}: {} checkpoints kept training for {} of {} ({}); {} are under way, with {}",
                           process_name(process), format_count(saves), format_duration(stood), format_duration(lived),
                           percent(stood / lived), process.shown.value(Published::kSavesUnderWay),
                           format_bytes(process.shown.value(Published::kUnwrittenBytes))));
}

// A long save or evaluation is no standstill, so the bar is high.
void check_last_batch(const ProcessFacts& process, double now, Verdicts& verdicts) {
  constexpr double kTimes = 20, kLeastSeconds = 120;
  constexpr int64_t kLeastBatches = 3;
  const int64_t batches = process.shown.value(Published::kBatches);
  if (batches < kLeastBatches || process.shown.value(Published::kSavesUnderWay) > 0) return;
  const double last = shown_seconds(process.shown, Published::kLastBatchNs);
  const double each =
      (last - static_cast<double>(process.shown.begun_ns) * kSecondsPerNs) / static_cast<double>(batches);
  const double silence = now - last;
  if (silence < std::max(kTimes * each, kLeastSeconds)) return;
  verdicts.add("DR10",
               fmt::format("{}: it took its last batch at {}, {} ago; before, one every {}", process_name(process),
                           moment(last), format_duration(silence), format_duration(each)));
}

}  // namespace

void check_shown(const Facts& facts, Verdicts& verdicts) {
  for (const ProcessFacts& process : facts.processes) {
    if (process.shown.values.empty()) continue;
    const double lived = facts.now - static_cast<double>(process.shown.begun_ns) * kSecondsPerNs;
    // A record tells the same of the whole run.
    if (!facts.record) check_wait(process, lived, verdicts);
    if (!facts.record) check_saves(process, lived, verdicts);
    check_last_batch(process, facts.now, verdicts);
  }
}

}  // namespace millrace::doctor
