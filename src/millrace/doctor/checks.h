// SPDX-License-Identifier: Apache-2.0
#pragma once

// The checks behind the rules, for diagnose(). Each check only adds verdicts for which it has evidence. Pure.

#include <string>
#include <string_view>
#include <vector>

#include "millrace/doctor/diagnose.h"

namespace millrace::doctor {

class Verdicts {
 public:
  // Adds one line of evidence for a rule. REQUIRES: the rule exists.
  void add(std::string_view rule, std::string evidence);
  // Sets advice for this case, which replaces the rule's. Later calls for the same rule are ignored.
  void advise(std::string_view rule, std::string advice);
  bool holds(std::string_view rule) const;
  bool any_error() const;
  // Returns the verdicts in the order of the rules.
  std::vector<Verdict> take();

 private:
  Verdict& of(std::string_view rule);
  std::vector<Verdict> verdicts_;
};

void check_logs(const Facts& facts, Verdicts& verdicts);
// Advises a batch size for rule DR01, from the record. REQUIRES: the rule holds.
void advise_batch(const Facts& facts, Verdicts& verdicts);
void check_processes(const Facts& facts, Verdicts& verdicts);
void check_mounts(const Facts& facts, Verdicts& verdicts);
void check_nccl(const Facts& facts, Verdicts& verdicts);
void check_record(const Facts& facts, Verdicts& verdicts);
void check_nodes(const Facts& facts, Verdicts& verdicts);
void check_ranks(const Facts& facts, Verdicts& verdicts);
void check_flights(const Facts& facts, Verdicts& verdicts);
void check_shown(const Facts& facts, Verdicts& verdicts);

// Returns "rank 3, process 4711 of node-2".
std::string process_name(const ProcessFacts& process);
// Returns "2026-11-25T21:00:00Z" for seconds since 1970.
std::string moment(double seconds);
// Returns "37 %".
std::string percent(double share);

}  // namespace millrace::doctor
