// SPDX-License-Identifier: Apache-2.0
#pragma once

// The checks behind the rules, for diagnose(). Each adds a verdict where it has evidence, and nothing else. Pure.

#include <string>
#include <string_view>
#include <vector>

#include "millrace/doctor/diagnose.h"

namespace millrace::doctor {

class Verdicts {
 public:
  // One line of evidence for a rule. REQUIRES: there is such a rule.
  void add(std::string_view rule, std::string evidence);
  // Advice for this case, in place of the rule's. The first one counts.
  void advise(std::string_view rule, std::string advice);
  bool holds(std::string_view rule) const;
  bool any_error() const;
  // In the order of the rules.
  std::vector<Verdict> take();

 private:
  Verdict& of(std::string_view rule);
  std::vector<Verdict> verdicts_;
};

void check_logs(const Facts& facts, Verdicts& verdicts);
// Advises a batch size for DR01, from the record. REQUIRES: it holds.
void advise_batch(const Facts& facts, Verdicts& verdicts);
void check_processes(const Facts& facts, Verdicts& verdicts);
void check_mounts(const Facts& facts, Verdicts& verdicts);
void check_nccl(const Facts& facts, Verdicts& verdicts);
void check_record(const Facts& facts, Verdicts& verdicts);
void check_nodes(const Facts& facts, Verdicts& verdicts);
void check_ranks(const Facts& facts, Verdicts& verdicts);
void check_flights(const Facts& facts, Verdicts& verdicts);
void check_shown(const Facts& facts, Verdicts& verdicts);

// "rank 3, process 4711 of node-2"
std::string process_name(const ProcessFacts& process);
// "2026-11-25T21:00:00Z" of seconds since 1970.
std::string moment(double seconds);
// "37 %"
std::string percent(double share);

}  // namespace millrace::doctor
