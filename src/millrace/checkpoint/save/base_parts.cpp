// SPDX-License-Identifier: Apache-2.0
#include "millrace/checkpoint/save/base_parts.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace millrace::checkpoint {

namespace {

// Whether every tier of `needed` is one of `tiers`.
bool includes(const BaseParts::Tiers& tiers, const BaseParts::Tiers& needed) {
  for (size_t i = 0; i < needed.size(); ++i) {
    if (needed[i] && !tiers[i]) return false;
  }
  return true;
}

BaseParts::Tiers tiers_of(const Save& save) {
  BaseParts::Tiers tiers;
  for (size_t tier = 0; tier < save.tiers(); ++tier) tiers.push_back(save.goes_to(tier));
  return tiers;
}

bool is_durable(const Save& save, std::optional<size_t> but_for = std::nullopt) {
  for (size_t tier = 0; tier < save.tiers(); ++tier) {
    if (save.goes_to(tier) && tier != but_for && save.state(tier) != TierState::kDurable) return false;
  }
  return true;
}

}  // namespace

void BaseParts::add(std::shared_ptr<Save> save, std::shared_ptr<const PartRecord> part) {
  MutexLock lock(mutex_);
  const bool is_known =
      std::ranges::any_of(under_way_, [&](const UnderWay& each) { return each.save->step() == save->step(); });
  chosen_.erase(save->step());
  if (!is_known) under_way_.push_back({std::move(save), std::move(part)});
}

void BaseParts::adopt(Tiers tiers, std::shared_ptr<const PartRecord> part) {
  MutexLock lock(mutex_);
  take({std::move(tiers), std::move(part)});
}

void BaseParts::forget(int64_t step) {
  MutexLock lock(mutex_);
  bases_.clear();
  chosen_.erase(step);
}

void BaseParts::close() {
  MutexLock lock(mutex_);
  bases_.clear();
  chosen_.clear();
  under_way_.clear();
}

void BaseParts::take(Base base) {
  const auto replaces = [](const Base& a, const Base& b) {
    return a.part->step > b.part->step && includes(a.tiers, b.tiers);
  };
  if (std::ranges::any_of(bases_, [&](const Base& each) { return replaces(each, base); })) return;
  std::erase_if(bases_, [&](const Base& each) { return replaces(base, each); });
  bases_.push_back(std::move(base));
}

void BaseParts::settle() {
  std::deque<UnderWay> left;
  for (UnderWay& each : under_way_) {
    if (!each.save->done()) {
      left.push_back(std::move(each));
    } else if (is_durable(*each.save)) {
      take({tiers_of(*each.save), std::move(each.part)});
    } else {
      bases_.clear();  // what a tier has is not known for certain any more
    }
  }
  under_way_ = std::move(left);
}

std::shared_ptr<const PartRecord> BaseParts::find(const Tiers& needed) {
  MutexLock lock(mutex_);
  settle();
  return newest(needed);
}

std::shared_ptr<const PartRecord> BaseParts::choose(int64_t step, const Tiers& needed) {
  MutexLock lock(mutex_);
  settle();
  auto chosen = newest(needed);
  if (chosen) chosen_[step] = chosen;
  return chosen;
}

std::shared_ptr<const PartRecord> BaseParts::newest(const Tiers& needed) {
  std::shared_ptr<const PartRecord> found;
  for (const Base& base : bases_) {
    if (includes(base.tiers, needed) && (!found || base.part->step > found->step)) found = base.part;
  }
  return found;
}

std::vector<int64_t> BaseParts::needed_in(size_t tier, const Save& ended) {
  MutexLock lock(mutex_);
  settle();
  const bool ends_everywhere = is_durable(ended, tier);
  const Tiers of_ended = tiers_of(ended);
  std::vector<int64_t> steps;
  const auto need_sources = [&](const PartRecord& part) {
    for (const PartSource& source : part.sources) steps.push_back(source.step);
  };
  for (const Base& base : bases_) {
    if (!base.tiers[tier] || (ends_everywhere && includes(of_ended, base.tiers))) continue;
    steps.push_back(base.part->step);
    need_sources(*base.part);
  }
  for (const auto& [step, part] : chosen_) {
    steps.push_back(part->step);
    need_sources(*part);
  }
  for (const UnderWay& each : under_way_) need_sources(*each.part);
  return steps;
}

}  // namespace millrace::checkpoint
