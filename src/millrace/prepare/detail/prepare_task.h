// SPDX-License-Identifier: Apache-2.0
#pragma once

// prepare() with the sizes it works in given, so that tests can show that output bytes do not depend on them.

#include "millrace/prepare/detail/pipeline.h"
#include "millrace/prepare/prepare.h"

namespace millrace::prepare {

// `pipeline` without its threads, which come from `options`.
[[nodiscard]] Result<PrepareReport> prepare_task(const PrepareOptions& options, PipelineOptions pipeline,
                                                 std::stop_token stop, Progress* progress, Metrics* metrics);

}  // namespace millrace::prepare
