// SPDX-License-Identifier: Apache-2.0
#pragma once

// Standard input as something that can be read twice. A pipe cannot be entered again, and a Parquet table begins to be
// read at its end: so it is copied into a file without a name in $TMPDIR, which goes with the process.

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

// Reads it to its end. Errors: resource_exhausted ($TMPDIR is full), cancelled, what the system says.
[[nodiscard]] Result<SpooledInput> spool_standard_input(const std::stop_token& stop);

}  // namespace millrace::prepare
