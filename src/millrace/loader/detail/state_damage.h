// SPDX-License-Identifier: Apache-2.0
#pragma once

// The damaged units and shards in a loader state of any order. Pure functions; thread-safe.

#include <span>
#include <string>
#include <vector>

#include "millrace/base/status.h"
#include "millrace/order/mixture.h"

namespace millrace::loader {

std::vector<order::QuarantinedUnit>& ledger_of(order::LoaderState& state);
std::vector<order::DamagedShard>& damaged_shards_of(order::LoaderState& state);

// The damaged units of `state`, and of `others`. Errors: invalid_argument (not a state; one of another order).
[[nodiscard]] Result<std::vector<order::QuarantinedUnit>> ledger_with(const order::LoaderState& state,
                                                                      std::span<const std::string> others);

// `error`, or one that names a shard that was damaged in another way when a state was written: the order is another one
// then. `then`: the damaged shards of the state, `now`: those of the dataset.
Error with_damage(Error error, std::span<const order::DamagedShard> then, std::span<const order::DamagedShard> now);

}  // namespace millrace::loader
