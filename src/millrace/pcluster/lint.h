// SPDX-License-Identifier: Apache-2.0
#pragma once

// Checks a ParallelCluster file without an AWS account: its schema and the rules of rules.h. Thread-safe.

#include <string>
#include <string_view>
#include <vector>

#include "millrace/lint/findings.h"
#include "millrace/pcluster/version.h"

namespace millrace::pcluster {

// A job script that runs on the cluster; scripts.h lists the facts that are read from it.
struct Script {
  std::string file;  // its name in findings
  std::string text;
};

struct ConfigLintOptions {
  std::string file;          // its name in findings
  Version version;           // the ParallelCluster version that will read the file
  std::string cluster_name;  // empty: unknown
  std::string facts_file;    // its name in errors
  std::string facts;         // facts about the account (facts.h), as YAML; empty: unknown
  std::vector<Script> scripts;
};

// Returns the findings, sorted by place; suppressed ones are marked. Errors: invalid_argument if the facts cannot be
// read.
[[nodiscard]] Result<std::vector<Finding>> lint_config(std::string_view text, const ConfigLintOptions& options);

}  // namespace millrace::pcluster
