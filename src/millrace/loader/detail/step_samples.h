// SPDX-License-Identifier: Apache-2.0
#pragma once

// Computes the samples of a step from the order and the indexes. Reads no sample.

#include <span>
#include <stop_token>
#include <vector>

#include "millrace/base/status.h"
#include "millrace/loader/detail/dataset.h"
#include "millrace/loader/provenance.h"

namespace millrace::loader {

// Returns the rows of each rank of `options.world_size` in the first batch after `before`, skipped or not. Rows in
// `quarantined` show their replacements. Errors: invalid_argument (no batch follows), those of SampleSource::plan.
[[nodiscard]] Result<std::vector<std::vector<RowParts>>> step_samples(
    const LoaderOptions& options, const Dataset& dataset, Start before,
    std::span<const order::QuarantinedUnit> quarantined, const std::stop_token& stop);

}  // namespace millrace::loader
