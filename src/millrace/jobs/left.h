// SPDX-License-Identifier: Apache-2.0
#pragma once

// Finds how a job ended from files that the job itself left, for jobs that Slurm has forgotten. A script of `job new
// train` leaves a file (docs/format/ledger.md); mr.Run leaves a record (record.h). Values; functions are thread-safe.

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "millrace/base/status.h"
#include "millrace/jobs/ledger.h"

namespace millrace::jobs {

struct LeftEnd {
  std::string file;   // the file that was read
  std::string state;  // "COMPLETED", "FAILED", "CANCELLED"
  // "StoppedBySlurm": the job was cancelled, preempted or out of time; the job cannot tell these apart. Otherwise the
  // exception that ended the training, or "".
  std::string reason;
  std::optional<int64_t> exit;            // the script's status
  std::optional<int64_t> last_step;       // last step of the training
  std::string nodes;                      // a host list
  std::optional<int64_t> started, ended;  // UTC seconds since 1970
};

// Parses the file that a script left. Errors: corruption (no such object), unsupported (a newer version).
[[nodiscard]] Result<LeftEnd> parse_left_end(std::string_view text);

// Returns the name of the file, "ended-1234.json", which is in the folder of the log.
std::string left_end_name(std::string_view job_id);

// Returns the ends by the name of the run. Runs that left nothing are absent. Reads one file for each run, and the
// first and last lines of each training that the ledger knows. Ignores files that cannot be read or are older than the
// run.
std::map<std::string, LeftEnd> find_left_ends(const Ledger& ledger, std::span<const LedgerRun* const> runs);

}  // namespace millrace::jobs
