// SPDX-License-Identifier: Apache-2.0
// Any bytes as a batch script and as the output of env: they are linted, and every finding stands in the text.
#include "invariants.h"
#include "millrace/jobs/env_lint.h"
#include "millrace/jobs/lint.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace millrace;
  using namespace millrace::jobs;
  using millrace::tokenizer::require;
  // SAFETY: char may alias any object.
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const ScriptFile file{"a.sbatch", text};
  const auto lines = static_cast<int64_t>(shell::split_lines(text).size());
  for (const auto& findings : {lint_jobs(std::span(&file, 1)), lint_environment(file, {.nodes = 32, .efa = true})}) {
    for (const millrace::Finding& finding : findings) {
      require(finding.rule != nullptr, "a finding has a rule");
      require(finding.line >= 1 && finding.line <= lines + 1 && finding.column >= 1, "a finding stands in the text");
    }
  }
  return shell::parse(text).problems.empty() ? 0 : -1;
}
