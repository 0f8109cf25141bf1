// SPDX-License-Identifier: Apache-2.0
#pragma once

// Finds the rules that hold, with the evidence. Rules are data (rules.cpp). Each has a check that reads the facts and
// adds nothing without evidence. Pure functions; thread-safe.

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
  std::string advice;                 // advice for this case; "": the rule's advice
};

// Returns the verdicts in the order of the rules: errors, then warnings.
std::vector<Verdict> diagnose(const Facts& facts);

// An upper limit in GB/s for the bus bandwidth of nccl-tests, and the source of the number. 0: unknown.
struct LinkLimit {
  double gb_per_s = 0;
  std::string source;
};
LinkLimit link_limit(const NcclRun& run, const std::string& instance);

}  // namespace millrace::doctor
