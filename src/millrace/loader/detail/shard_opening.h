// SPDX-License-Identifier: Apache-2.0
#pragma once

// Makes the functions that open the datasets of LoaderOptions. Values.

#include <vector>

#include "millrace/base/status.h"
#include "millrace/loader/options.h"

namespace millrace::loader {

// Returns one function for each dataset: MixtureSource::open if it is set, else a function that finds and opens the
// shards. Opens nothing itself. Errors: invalid_argument (no shards were named).
[[nodiscard]] Result<std::vector<OpenSource>> sources_of(const LoaderOptions& options);

}  // namespace millrace::loader
