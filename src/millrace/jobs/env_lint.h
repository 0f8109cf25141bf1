// SPDX-License-Identifier: Apache-2.0
#pragma once

// Checks the rules EN01 to EN18 on the variables of NCCL, libfabric, the OFI plugin and torch, wherever they are set:
// in a job script, a sourced script, or the output of `env`. Pure functions; thread-safe.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/jobs/facts.h"
#include "millrace/jobs/lint.h"
#include "millrace/lint/findings.h"

namespace millrace::jobs {

std::span<const Rule> env_rules();
// The EN rules and the rules about ignoring.
std::span<const Rule> all_env_rules();

// One assignment of a variable.
struct EnvVariable {
  std::string name;
  std::optional<std::string> value;  // nullopt: unknown before the script runs
  std::string written;               // the value as written in the text
  Place place;
  bool in_script = false;  // false: in a running environment
  bool in_batch = false;   // in the batch shell of a job, so all tasks get the same value
  bool exported = true;    // programs see it
  bool expanded = false;   // the script uses the value itself
};

struct EnvContext {
  int64_t nodes = 0;                 // 0: not known
  bool efa = false;                  // the traffic goes over EFA
  std::optional<bool> has_efa = {};  // whether the instance type has EFA, if known
  std::string instance = {};
  bool all_exported = false;  // the file is sourced with `set -a` or read by another program
};

// Returns the assignments in a job's text, including `env A=1 ...` and `srun --export=A=1`.
std::vector<EnvVariable> variables_of(const Job& job);
// Parses the lines NAME=value that `env` prints; nullopt for any other text.
std::optional<std::vector<EnvVariable>> parse_environment(std::string_view text);

std::vector<Finding> check_environment(std::string_view file, std::span<const EnvVariable> variables,
                                       const EnvContext& context);

// Checks a script or the output of `env`, which it tells apart by the lines. The findings are sorted, without
// suppressed ones. Accepts any bytes.
std::vector<Finding> lint_environment(const ScriptFile& file, const EnvContext& context);

// --- names (env_names.cpp)

struct EnvName {
  std::string_view name;
  std::string_view gone = {};  // "removed in 2.5" or "deprecated since 2.17"; empty: in use
  std::string_view use_instead = {};
};
// Returns null when no program reads such a variable.
const EnvName* find_env_name(std::string_view name);
// Whether the name begins like the names in the table.
bool is_table_prefix(std::string_view name);
// Returns the known name with the smallest edit distance; "" when none is close.
std::string_view nearest_env_name(std::string_view name);

}  // namespace millrace::jobs
