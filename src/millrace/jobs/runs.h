// SPDX-License-Identifier: Apache-2.0
#pragma once

// The ledger's runs joined with what Slurm knows now: one call of squeue for all, and one of sacct for the runs that
// the controller has forgotten. Functions are thread-safe.

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/jobs/ledger.h"
#include "millrace/jobs/left.h"
#include "millrace/slurm/queue.h"

namespace millrace::jobs {

// Where the state comes from.
enum class StateSource {
  kQueue,       // squeue, now
  kAccounting,  // sacct
  kLedger,      // an end that an earlier call wrote down
  kJob,         // the job itself, by what it left (left.h)
  kNone,        // Slurm has forgotten the job before anyone asked for its end
};
std::string_view source_name(StateSource source);  // "squeue", "sacct", "ledger", "job", "none"

// A job, or all jobs of an array.
struct RunState {
  std::string job_id;
  std::string name, user, partition;
  // For an array: RUNNING when an element runs, else PENDING when one waits, else the first end state other than
  // COMPLETED. Empty: unknown.
  std::string state;
  std::map<std::string, int64_t> tasks;   // jobs of an array by state; of a single job one
  std::vector<std::string> failed_tasks;  // ids of elements that ended otherwise than COMPLETED
  std::string reason, dependency, nodes, exit;
  int64_t node_count = 0;
  std::optional<int64_t> submitted, started, ended, elapsed_s, limit_s;
  std::optional<int64_t> last_step;  // of its training, where the job itself told it
  StateSource source = StateSource::kNone;
  const LedgerRun* run =
      nullptr;  // null for a job that the ledger does not know; lives as long as the ledger's contents
};

// Whether all of it ended, so that its state does not change by itself.
bool has_ended(const RunState& state);

// One state a run, and one for each job in `queue` that is no run. `cluster`: the one that was asked; runs of other
// clusters are not joined. An id that Slurm used again belongs to the newest run. `left`: what jobs left, by the name
// of the run, for those that nothing else knows.
std::vector<RunState> join_runs(std::span<const LedgerRun> runs, std::span<const slurm::JobState> queue,
                                std::span<const slurm::JobState> accounting, std::string_view cluster,
                                const std::map<std::string, LeftEnd>& left = {});

struct AskedRuns {
  std::vector<RunState> states;  // in order of submission
  Status slurm;                  // why Slurm could not be asked; states are then the ledger's
};

// Joins, and writes to the ledger the ends that it did not know yet; a ledger that cannot be written costs a log line.
// `ids`: ask Slurm only for these jobs or elements of arrays ("12", "12_3"); empty: for all. REQUIRES: `contents` holds
// no run of another job then (runs_of).
AskedRuns ask_runs(const Ledger& ledger, const LedgerContents& contents, std::span<const std::string> ids,
                   const slurm::AskOptions& options);

// The runs of these jobs, the newest of each id.
LedgerContents runs_of(const LedgerContents& contents, std::span<const std::string> ids);

// Job ids ("12", "12_3") of what a user typed: these, or the id or the name of a run; of a name the newest run's.
// Error: not_found, a name that no run has.
[[nodiscard]] Result<std::vector<std::string>> job_ids(const Ledger& ledger, const LedgerContents& contents,
                                                       std::span<const std::string> typed);

}  // namespace millrace::jobs
