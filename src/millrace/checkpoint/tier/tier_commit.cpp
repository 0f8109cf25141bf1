// SPDX-License-Identifier: Apache-2.0
#include "millrace/checkpoint/tier/tier_commit.h"

#include <utility>

#include "millrace/base/log.h"
#include "millrace/checkpoint/records/failure.h"
#include "millrace/checkpoint/records/keys.h"

namespace millrace::checkpoint {

void follow_up(Core& core, size_t at, Save& save, const std::optional<Lineage>& line) {
  const int64_t step = save.step();
  Tier& tier = core.tiers[at];
  const Location latest = tier.options.root.child(kLatestName);
  if (auto written = write_object(*latest.storage, latest.key, step_name(step) + "\n", {}, Durability::kVisible);
      !written)
    log(LogLevel::kWarning, "checkpoint: step {} is committed, but `latest` is not moved: {}", step,
        written.error().to_string());
  save.removes(at);
  MutexLock lock(tier.cleaning);
  Retention retention{
      .keep = tier.options.keep, .line = line, .known = &tier.known, .alive = [&save, at] { save.alive(at); }};
  if (at == 0) retention.busy = core.busy_steps();
  if (core.options.refer_unchanged) {
    const auto needed = core.bases.needed_in(at, save);
    retention.busy.insert(retention.busy.end(), needed.begin(), needed.end());
  }
  const auto cleaned = clean_up(tier.options.root, step, core.options.attempt, retention, tier.sweep);
  tier.sweep = !cleaned.has_value();
  if (!cleaned)
    log(LogLevel::kWarning, "checkpoint: step {} is committed, but older files are left: {}", step,
        cleaned.error().to_string());
}

StepCommit commit_in(Core& core, size_t at, int64_t step, std::stop_token stop, std::function<void()> alive) {
  const SaverOptions& options = core.options;
  return {core.tiers[at].options.root,
          step,
          options.attempt,
          options.world_size,
          Clock::now() + options.commit_timeout,
          std::move(stop),
          std::move(alive)};
}

Status commit_part(const Core& core, const StepCommit& commit, WrittenRecord record, const Documents& documents) {
  if (core.options.rank != 0) return await_commit(commit);
  return commit_step(commit, std::move(record), *documents.state, documents.metrics, documents.line);
}

void tell_of_failure(const Core& core, size_t tier, int64_t step, const Error& cause) {
  const SaverOptions& options = core.options;
  const TierOptions& at = core.tiers[tier].options;
  if (options.world_size == 1 || at.node_local || cause.code() == ErrorCode::kAlreadyExists) return;
  const Location attempt = step_location(at.root, step).child(options.attempt);
  if (const Status told = write_failure(attempt, RankPlaces::of_new(options.world_size), options.rank, cause); !told)
    log(LogLevel::kWarning, "checkpoint: step {}: the other ranks are not told why this one failed: {}", step,
        told.error().to_string());
}

}  // namespace millrace::checkpoint
