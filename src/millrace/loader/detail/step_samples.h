// SPDX-License-Identifier: Apache-2.0
#pragma once

// The samples of a step, worked out from the order and the indexes. Reads no sample.

#include <span>
#include <stop_token>
#include <vector>

#include "millrace/base/status.h"
#include "millrace/loader/detail/dataset.h"
#include "millrace/loader/provenance.h"

namespace millrace::loader {

// The rows that each rank of `options.world_size` has in the first batch behind `before`, whether it is skipped or not,
// and what took the places of those that are `quarantined`. Errors: invalid_argument (no batch follows), those of
// SampleSource::plan.
[[nodiscard]] Result<std::vector<std::vector<RowParts>>> step_samples(
    const LoaderOptions& options, const Dataset& dataset, Start before,
    std::span<const order::QuarantinedUnit> quarantined, const std::stop_token& stop);

}  // namespace millrace::loader
