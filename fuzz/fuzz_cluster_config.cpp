// SPDX-License-Identifier: Apache-2.0
// Whatever a cluster file says, it is checked to the end, twice with the same findings, each at a place in the file.
#include <algorithm>

#include "invariants.h"
#include "millrace/pcluster/lint.h"
#include "millrace/pcluster/new.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace millrace;
  using tokenizer::require;
  // SAFETY: char may alias any object.
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const pcluster::ConfigLintOptions options{.file = "c.yaml", .scripts = {{"job.sh", std::string(text)}}};
  const auto findings = pcluster::lint_config(text, options);
  const auto again = pcluster::lint_config(text, options);
  require(findings && again && findings->size() == again->size(), "the same findings again");
  const int64_t lines = 2 + std::count_if(text.begin(), text.end(), [](char c) { return c == '\n' || c == '\r'; });
  for (const Finding& finding : *findings) {
    require(finding.line >= 0 && finding.line <= lines, "a finding lies in the file");
    static_cast<void>(finding_text(finding));
  }
  static_cast<void>(pcluster::lint_config("A: 1\n", {.file = "c.yaml", .facts_file = "f", .facts = std::string(text)}));
  static_cast<void>(pcluster::new_config(text, "spec.yaml", {}));
  return findings->size() < 40 ? 0 : -1;
}
