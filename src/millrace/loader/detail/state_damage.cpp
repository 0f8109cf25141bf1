// SPDX-License-Identifier: Apache-2.0
#include "millrace/loader/detail/state_damage.h"

#include <fmt/format.h>

#include <algorithm>
#include <type_traits>
#include <utility>
#include <variant>

namespace millrace::loader {

namespace {

bool have_one_order(const order::OrderState& a, const order::OrderState& b) {
  return a.source == b.source && a.options == b.options;
}
bool have_one_order(const order::MixtureState& a, const order::MixtureState& b) {
  return a.sources == b.sources;
}

}  // namespace

std::vector<order::QuarantinedUnit>& ledger_of(order::LoaderState& state) {
  return std::visit([](auto& of) -> std::vector<order::QuarantinedUnit>& { return of.quarantined; }, state);
}

std::vector<order::DamagedShard>& damaged_shards_of(order::LoaderState& state) {
  return std::visit([](auto& of) -> std::vector<order::DamagedShard>& { return of.damaged_shards; }, state);
}

Result<std::vector<order::QuarantinedUnit>> ledger_with(const order::LoaderState& state,
                                                        std::span<const std::string> others) {
  std::vector<order::QuarantinedUnit> all = std::visit([](const auto& of) { return of.quarantined; }, state);
  for (const std::string& text : others) {
    ASSIGN_OR_RETURN(const order::LoaderState other, order::parse_loader_state(text));
    const bool is_of_run = std::visit(
        [&](const auto& here) {
          const auto* const there = std::get_if<std::remove_cvref_t<decltype(here)>>(&other);
          if (there == nullptr || !have_one_order(here, *there)) return false;
          all.insert(all.end(), there->quarantined.begin(), there->quarantined.end());
          return true;
        },
        state);
    if (!is_of_run) {
      return fail(ErrorCode::kInvalidArgument,
                  "loader: a state of another dataset, seed or order says nothing of this one");
    }
  }
  return all;
}

Error with_damage(Error error, std::span<const order::DamagedShard> then, std::span<const order::DamagedShard> now) {
  const auto first_of = [](const auto& shards, const auto& others) {
    return std::ranges::find_if(shards, [&](const order::DamagedShard& shard) {
      return std::ranges::none_of(others, [&](const order::DamagedShard& other) {
        return other.source == shard.source && other.shard == shard.shard && other.samples == shard.samples;
      });
    });
  };
  std::string differs;
  if (const auto shard = first_of(then, now); shard != then.end()) {
    differs = fmt::format("{} had {} readable samples when the state was written, and has others now", shard->shard,
                          shard->samples);
  } else if (const auto other = first_of(now, then); other != now.end()) {
    differs = fmt::format("{} has {} readable samples, and had others when the state was written", other->shard,
                          other->samples);
  } else {
    return error;
  }
  return {error.code(), fmt::format("{} {}. The state goes with the file as it was", error.to_string(), differs),
          error.sys_errno()};
}

}  // namespace millrace::loader
