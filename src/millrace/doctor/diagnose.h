// SPDX-License-Identifier: Apache-2.0
#pragma once

// What holds, with the evidence. Rules are data (rules.cpp); each has a check that looks at the facts and stays silent
// without evidence. Pure functions; thread-safe.

#include <span>
#include <string>
#include <vector>

#include "millrace/doctor/facts.h"
#include "millrace/lint/findings.h"

namespace millrace::doctor {

std::span<const Rule> doctor_rules();  // the most useful first

struct Verdict {
  const Rule* rule = nullptr;         // never null
  std::vector<std::string> evidence;  // never empty
  std::string advice;                 // for this case; "": the rule's
};

// In the order of the rules: errors, then warnings.
std::vector<Verdict> diagnose(const Facts& facts);

// GB/s that a bus bandwidth of nccl-tests cannot pass, and where the figure comes from. 0: unknown.
struct LinkLimit {
  double gb_per_s = 0;
  std::string source;
};
LinkLimit link_limit(const NcclRun& run, const std::string& instance);

}  // namespace millrace::doctor
