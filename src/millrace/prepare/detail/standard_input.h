// SPDX-License-Identifier: Apache-2.0
#pragma once

// Makes standard input readable more than once. A pipe can be read only once, and reading a Parquet table starts at
// its end. So standard input is copied into an unnamed file in $TMPDIR, which vanishes with the process.

#include <memory>
#include <stop_token>

#include "millrace/base/hash/hash.h"
#include "millrace/base/io/io.h"
#include "millrace/base/status.h"

namespace millrace::prepare {

struct SpooledInput {
  std::shared_ptr<const RandomReader> reader;  // thread-safe
  Hash128 hash;                                // XXH3-128 of the content
};

// Copies standard input to its end. Errors: resource_exhausted ($TMPDIR is full), cancelled, those of the system.
[[nodiscard]] Result<SpooledInput> spool_standard_input(const std::stop_token& stop);

}  // namespace millrace::prepare
