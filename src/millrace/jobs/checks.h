// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the check functions of the SB rules share. One function a rule, or a few rules that look at the same thing.

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "millrace/jobs/facts.h"
#include "millrace/jobs/lint.h"

namespace millrace::jobs {

class JobReport {
 public:
  JobReport(std::string file, std::span<const Rule> rules) : file_(std::move(file)), rules_(rules) {}
  // `fix` empty: the rule's. REQUIRES: `id` is one of the rules.
  void add(std::string_view id, Place place, std::string message, std::string fix = {},
           std::optional<Severity> severity = {});
  std::vector<Finding>& findings() { return findings_; }

 private:
  std::string file_;
  std::span<const Rule> rules_;
  std::vector<Finding> findings_;
};

using JobCheck = void (*)(const Job&, const JobContext&, JobReport&);

std::span<const JobCheck> option_checks();  // of what #SBATCH lines say
std::span<const JobCheck> step_checks();    // of what the steps are given
std::span<const JobCheck> body_checks();    // of the shell code around them

// Where findings about the whole job stand: its first #SBATCH line.
Place job_place(const Job& job);
// The partition the job asks for, when the cluster is known and has it; the only one where it asks for none.
const ClusterFacts::Partition* partition_of(const Job& job, const JobContext& context);
// The value of `--name value` or `--name=value` among a command's words, with its place.
const shell::Word* argument_after(std::span<const shell::Word> words, std::span<const std::string_view> names,
                                  std::string& value, const Job& job);

}  // namespace millrace::jobs
