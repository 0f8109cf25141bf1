// SPDX-License-Identifier: Apache-2.0
#pragma once

// All that the controller says of one job. Functions are thread-safe.

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/status.h"
#include "millrace/slurm/slurm.h"

namespace millrace::slurm {

// A line of `scontrol -o show job`: a job, an element of an array, or the elements that wait.
struct JobDetails {
  std::string number;  // of the element itself, which %j stands for: "75" of 73_2
  std::string array;   // "73"; "" for a single job
  std::string task;    // "2", or "3-100%2" of elements that wait; "" for a single job
  std::string name, user, state, reason;
  std::string output, error;            // of the batch script; Slurm expands only some of %j and the like
  std::string work_dir, command, node;  // node: where the batch script runs
  int64_t restarts = 0;
  std::map<std::string, std::string, std::less<>> fields;  // all, as printed

  bool waits() const { return state == "PENDING"; }
  // "73_2", "73_[3-100%2]", "72"
  std::string id() const;
};

// Error: corruption, a line without JobId.
[[nodiscard]] Result<std::vector<JobDetails>> parse_details(std::string_view text);
// One call of scontrol. `id`: "73" (all elements of an array) or "73_2". Empty when Slurm does not know the job.
// Errors: as of slurm_answer (commands.h).
[[nodiscard]] Result<std::vector<JobDetails>> ask_details(const std::string& id, const AskOptions& options);

}  // namespace millrace::slurm
