// SPDX-License-Identifier: Apache-2.0
#pragma once

// The controller's details of one job. Functions are thread-safe.

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/status.h"
#include "millrace/slurm/slurm.h"

namespace millrace::slurm {

// One line of `scontrol -o show job`: a job, an element of an array, or the waiting elements of an array.
struct JobDetails {
  std::string number;  // the element's own number, used for %j: "75" for 73_2
  std::string array;   // "73"; "" for a single job
  std::string task;    // "2", or "3-100%2" for waiting elements; "" for a single job
  std::string name, user, state, reason;
  std::string output, error;            // files of the batch script; Slurm expands only some of %j and the like
  std::string work_dir, command, node;  // node: where the batch script runs
  int64_t restarts = 0;
  std::map<std::string, std::string, std::less<>> fields;  // all fields, as printed

  bool waits() const { return state == "PENDING"; }
  // Returns "73_2", "73_[3-100%2]" or "72".
  std::string id() const;
};

// Parses the lines. Error: corruption, a line without JobId.
[[nodiscard]] Result<std::vector<JobDetails>> parse_details(std::string_view text);
// Calls scontrol once. `id`: "73" (all elements of an array) or "73_2". Empty if Slurm does not know the job. Errors:
// as for slurm_answer (commands.h).
[[nodiscard]] Result<std::vector<JobDetails>> ask_details(const std::string& id, const AskOptions& options);

}  // namespace millrace::slurm
