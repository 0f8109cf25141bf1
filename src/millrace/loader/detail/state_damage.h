// SPDX-License-Identifier: Apache-2.0
#pragma once

// Gives access to the damaged units and shards in a loader state of any order. Pure functions; thread-safe.

#include <span>
#include <string>
#include <vector>

#include "millrace/base/status.h"
#include "millrace/order/mixture.h"

namespace millrace::loader {

std::vector<order::QuarantinedUnit>& ledger_of(order::LoaderState& state);
std::vector<order::DamagedShard>& damaged_shards_of(order::LoaderState& state);

// Returns the damaged units of `state` and of `others`. Errors: invalid_argument (not a state, or a state of another
// order).
[[nodiscard]] Result<std::vector<order::QuarantinedUnit>> ledger_with(const order::LoaderState& state,
                                                                      std::span<const std::string> others);

// Returns `error`. If a shard is damaged differently now than when a state was written, which changes the order, it
// returns an error that names this shard instead. `then`: the damaged shards of the state; `now`: those of the
// dataset.
Error with_damage(Error error, std::span<const order::DamagedShard> then, std::span<const order::DamagedShard> now);

}  // namespace millrace::loader
