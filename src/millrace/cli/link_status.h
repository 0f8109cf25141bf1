// SPDX-License-Identifier: Apache-2.0
#pragma once

// Prints the status of a link as text and JSON.

#include "millrace/cli/command.h"
#include "millrace/link/config.h"

namespace millrace::cli {

// Counts a finding when the link has a problem. Errors: those of reading the link's state.
[[nodiscard]] Status print_link_status(const link::LinkConfig& config, const link::LinkHome& home, Context& context);

}  // namespace millrace::cli
