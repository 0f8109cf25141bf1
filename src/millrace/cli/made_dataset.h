// SPDX-License-Identifier: Apache-2.0
#pragma once

// Prints the results of the verbs that make robot datasets: convert, split, merge and delete.

#include <functional>
#include <string>
#include <vector>

#include "millrace/cli/command.h"
#include "millrace/cli/output.h"
#include "millrace/lerobot/convert.h"

namespace millrace::cli {

using MakeDatasets = std::function<Result<std::vector<lerobot::MadeDataset>>(const lerobot::MakeOptions&)>;

// Runs `make` with a display of progress, and prints one result for each dataset: `head` (type and sources), then the
// keys of the dataset. After a stop, notes which part of `target` is kept.
[[nodiscard]] Status print_made(const std::string& verb, const Json& head, const std::string& target, bool dry_run,
                                const MakeDatasets& make, Context& context);

// Adds --dry-run.
void add_dry_run_flag(CLI::App& app, bool& dry_run);

}  // namespace millrace::cli
