// SPDX-License-Identifier: Apache-2.0
#pragma once

// How a job and its steps ended, from accounting. The parser is pure; all functions are thread-safe.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/status.h"
#include "millrace/slurm/slurm.h"

namespace millrace::slurm {

struct StepEnd {
  std::string id;    // "12": the job itself; its steps: "12.batch", "12.0"
  std::string name;  // name of the job, or the step's program
  std::string state;
  std::optional<int64_t> cancelled_by;  // a user's number
  std::string exit;                     // "0:9", status and signal
  // Peak memory of the largest task, as sampled by Slurm's accounting; it may have been higher between two samples.
  std::optional<int64_t> most_memory_bytes;
  std::string asked_memory;  // "8000M"
  std::string nodes;

  bool is_job() const { return id.find('.') == std::string::npos; }
};

// Parses `sacct -n -P -o kStepFormat`: one job or step per line. Error: corruption, a line with too few fields.
inline constexpr const char* kStepFormat = "JobID,State,ExitCode,MaxRSS,ReqMem,NodeList,JobName";
[[nodiscard]] Result<std::vector<StepEnd>> parse_steps(std::string_view text);
// Calls sacct once. Errors: unsupported (no accounting), and as for slurm_answer (commands.h).
[[nodiscard]] Result<std::vector<StepEnd>> ask_steps(const std::string& id, const AskOptions& options);

}  // namespace millrace::slurm
