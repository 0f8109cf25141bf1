// SPDX-License-Identifier: Apache-2.0
#pragma once

// What a job itself left of its end, for jobs that Slurm has forgotten: the file of a script of `job new train`
// (docs/format/ledger.md), or the record of mr.Run (record.h). Values; functions are thread-safe.

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
  std::string file;   // that tells it
  std::string state;  // "COMPLETED", "FAILED", "CANCELLED"
  // "StoppedBySlurm": it was cancelled, preempted or at its limit, which the job itself cannot tell apart. Else the
  // exception that ended the training, or "".
  std::string reason;
  std::optional<int64_t> exit;            // the script's status
  std::optional<int64_t> last_step;       // of the training
  std::string nodes;                      // a host list
  std::optional<int64_t> started, ended;  // UTC seconds since 1970
};

// The text of a script's file. Errors: corruption (no such object), unsupported (a newer version).
[[nodiscard]] Result<LeftEnd> parse_left_end(std::string_view text);

// "ended-1234.json", in the folder of the log.
std::string left_end_name(std::string_view job_id);

// By the name of the run; runs that left nothing are not in it. Reads a file of each run, and of each training that the
// ledger knows the first and last lines. Files that cannot be read, or are older than the run, count as none.
std::map<std::string, LeftEnd> find_left_ends(const Ledger& ledger, std::span<const LedgerRun* const> runs);

}  // namespace millrace::jobs
