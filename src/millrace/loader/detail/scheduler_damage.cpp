// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "millrace/base/log.h"
#include "millrace/loader/detail/scheduler_job.h"

// The part of the Scheduler that decodes samples, finds damaged units and puts others in their place.

namespace millrace::loader {

namespace {

// What is wrong with the data, and will be so the next time.
bool is_damage(const Error& error) {
  switch (error.code()) {
    case ErrorCode::kCorruption:
    case ErrorCode::kNotFound:
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kUnsupported:
    case ErrorCode::kOutOfRange:
      return true;
    default:
      return false;
  }
}

}  // namespace

// The units of a job whose blocks are ready that must be replaced, with what is wrong with each.
std::vector<std::pair<size_t, Error>> Scheduler::damaged_units(const Job& job) const {
  std::vector<std::pair<size_t, Error>> damaged;
  for (size_t row = 0; row < job.units.size(); ++row) {
    const Job::Unit& unit = job.units[row];
    if (unit.block == nullptr) continue;
    if (carries_places()) {
      if (auto reason = shared_.rejected.find(unit.place)) {
        damaged.emplace_back(row, Error(ErrorCode::kCorruption, *std::move(reason)));
        continue;
      }
    }
    if (unit.block->error) {
      if (is_damage(*unit.block->error)) damaged.emplace_back(row, *unit.block->error);
      continue;
    }
    if (unit.damage) damaged.emplace_back(row, *unit.damage);
    const Block& block = *unit.block->plan->block;
    if (unit.damage || !block.is_damaged()) continue;
    const Status status = block.check(unit.index, shared_.options.pack_seq_len());
    if (!status && is_damage(status.error())) damaged.emplace_back(row, status.error());
  }
  return damaged;
}

// False when the job waits for the blocks of what replaces its damaged units; it is collated once they are ready.
bool Scheduler::replace_damaged(const JobPtr& job) {
  if (shared_.options.on_bad != OnBad::kQuarantine) return true;
  for (;;) {
    const auto damaged = damaged_units(*job);
    if (damaged.empty()) return true;
    MutexLock lock(mutex_);
    if (is_stopped_) return false;
    for (const auto& [row, damage] : damaged) replace(job, row, damage);
    if (job->error) return true;
    if (job->blocks_left > 0) return false;
  }
}

void Scheduler::replace(const JobPtr& job, size_t row, const Error& damage) {
  const OrderCursor::Step::Unit& asked = job->step.units[row];
  const auto& [source, epoch, order] = job->step.orders[asked.order];
  Job::Unit& unit = job->units[row];
  if (unit.replacements == 0) {
    unit.in_ledger = job->quarantined.size();
    job->quarantined.push_back({.source = source,
                                .epoch = epoch,
                                .lane = asked.place.lane,
                                .block = asked.place.block,
                                .index = asked.place.index,
                                .reason = damage.message()});
  }
  unit.damage.reset();
  unit.sample.reset();
  const auto place = order->replacement(asked.place, unit.replacements++);
  job->quarantined[unit.in_ledger].attempts = unit.replacements;
  if (!place) {
    job->error = Error(damage.code(), fmt::format("{}; {} other rows that could take its place are damaged too",
                                                  job->quarantined[unit.in_ledger].reason, unit.replacements - 1));
    return;
  }
  // The first ones are in the same block, which live_ may have forgotten.
  if (unit.replacements > order::EpochOrder::kReplacementsInBlock) unit.block = live_block(*job, asked.order, *place);
  unit.index = place->index;
  unit.place = place_of(job->step, asked.order, *place);
  wait_for(job, unit.block);
  // Before the blocks of later jobs: those may hold memory until this job is done.
  if (const auto at = std::ranges::find(without_memory_, unit.block); at != without_memory_.end()) {
    without_memory_.erase(at);
    without_memory_.push_front(unit.block);
    unit.block->first_job = std::min(unit.block->first_job, job->number);
  }
  ask_for_plans();
}

// Errors: those of the newest damage, when there is too much.
Status Scheduler::check_quarantine(const Job& job) {
  const int64_t shards = std::ssize(shared_.dataset.damaged_shards);
  const int64_t bad = std::ssize(quarantined_) + std::ssize(job.quarantined);
  if (job.quarantined.empty() || bad + shards <= shared_.options.max_bad) return {};
  return fail(ErrorCode::kCorruption, "{} damaged rows{} were quarantined, max_bad is {}; the newest: {}", bad,
              shards > 0 ? fmt::format(" and {} shards", shards) : "", shared_.options.max_bad,
              job.quarantined.back().reason);
}

void Scheduler::keep_quarantined(const Job& job) {
  constexpr int64_t kLogged = 10;
  for (const order::QuarantinedUnit& unit : job.quarantined) {
    quarantined_.push_back(unit);
    const int64_t count = std::ssize(quarantined_);
    if (count <= kLogged) log(LogLevel::kWarning, "quarantined, another row takes its place: {}", unit.reason);
    if (count == kLogged) log(LogLevel::kWarning, "further quarantined rows are in the loader's state only");
  }
}

// Decodes the samples of a job whose blocks are ready. False when one that was read does not decode and gives its place
// to another.
bool Scheduler::decode_samples(Job& job) {
  if (!shared_.options.has_fields() || job.error) return true;
  MetricTimer timer(shared_.metrics, Metric::kDecodeSeconds);
  bool are_sound = true;
  for (Job::Unit& unit : job.units) {
    if (unit.block == nullptr || unit.sample != nullptr) continue;
    if (unit.block->error || !unit.block->plan->block->check(unit.index, 0)) continue;  // make_batch says so
    const Block::Row row = unit.block->plan->block->row(unit.index);
    auto sample = decode_sample(row.bytes, row.source, *shared_.options.fields);
    if (sample) {
      unit.sample = std::make_shared<const DecodedSample>(std::move(*sample));
      continue;
    }
    unit.damage = std::move(sample).error();
    if (shared_.options.on_bad == OnBad::kQuarantine && is_damage(*unit.damage)) are_sound = false;
  }
  return are_sound;
}

}  // namespace millrace::loader
