// SPDX-License-Identifier: Apache-2.0
#pragma once

// Functions that open the datasets named in LoaderOptions. Values.

#include <vector>

#include "millrace/base/status.h"
#include "millrace/loader/options.h"

namespace millrace::loader {

// One for each dataset: MixtureSource::open where it is given, else one that finds the shards and opens them. Opens
// nothing itself. Errors: invalid_argument (no shards were named).
[[nodiscard]] Result<std::vector<OpenSource>> sources_of(const LoaderOptions& options);

}  // namespace millrace::loader
