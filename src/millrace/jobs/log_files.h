// SPDX-License-Identifier: Apache-2.0
#pragma once

// Finds the output files of a job: the patterns of sbatch and srun, and the files that match them. Thread-safe.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/jobs/ledger.h"
#include "millrace/slurm/details.h"

namespace millrace::jobs {

// Values for the letters of a pattern. An empty text is unknown and matches anything.
struct LogNames {
  std::string number;    // %j
  std::string array;     // %A; for a single job its number
  std::string task;      // %a; for a single job 4294967294
  std::string name;      // %x
  std::string user;      // %u
  std::string restarts;  // %r
  bool step = false;     // a pattern of srun: %t, %n and %s differ by rank, node and step
};

// Converts a pattern of Slurm ("filename pattern" of sbatch(1)) to a pattern for glob(3). Unknown letters, and %N,
// become *. %3j pads numbers. A backslash in the pattern disables all letters.
std::string log_glob(std::string_view pattern, const LogNames& names);

// One stream of a job, including all its restarts.
struct LogPattern {
  std::string label;  // "12_3", "12 srun"; printed before each line if there are several streams
  std::string glob;   // absolute
};

// Returns --output and --error of the script's srun steps as absolute patterns, as far as the script's text tells
// them.
std::vector<std::string> step_patterns(std::string_view script_text, const std::string& work_dir);

// Returns the streams of a job as Slurm describes it. `run`: its run in the ledger, whose patterns are complete; may
// be null.
std::vector<LogPattern> log_patterns(const slurm::JobDetails& job, const RunRecord* run,
                                     const std::vector<std::string>& steps);
// Returns the log patterns of a run that Slurm has forgotten. `task`: one element of its array; "" for all.
std::vector<LogPattern> log_patterns(const RunRecord& run, const std::string& task,
                                     const std::vector<std::string>& steps);

// Returns the existing files that match, sorted.
std::vector<std::string> matching_files(const std::string& glob);

// Explains why a stream has no file yet: the job waits, its folder is missing, or it cannot be seen from here.
std::string why_no_file(const LogPattern& pattern, const slurm::JobDetails* job);

}  // namespace millrace::jobs
