// SPDX-License-Identifier: Apache-2.0
#pragma once

// prepare() with its working sizes as arguments, so that tests can show that the output bytes do not depend on them.

#include "millrace/prepare/detail/pipeline.h"
#include "millrace/prepare/prepare.h"

namespace millrace::prepare {

// Uses the sizes in `pipeline`; the number of threads comes from `options`.
[[nodiscard]] Result<PrepareReport> prepare_task(const PrepareOptions& options, PipelineOptions pipeline,
                                                 std::stop_token stop, Progress* progress, Metrics* metrics);

}  // namespace millrace::prepare
