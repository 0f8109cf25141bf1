// SPDX-License-Identifier: Apache-2.0
#pragma once

// Joins the ledger's runs with the current state in Slurm: one call of squeue for all runs, and one of sacct for the
// runs that the controller has forgotten. Functions are thread-safe.

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

// The source of a state.
enum class StateSource {
  kQueue,       // squeue, now
  kAccounting,  // sacct
  kLedger,      // an end that an earlier call recorded
  kJob,         // the files that the job itself left (left.h)
  kNone,        // unknown: Slurm forgot the job before anyone asked for its end
};
std::string_view source_name(StateSource source);  // "squeue", "sacct", "ledger", "job", "none"

// A job, or all jobs of an array.
struct RunState {
  std::string job_id;
  std::string name, user, partition;
  // For an array: RUNNING when an element runs, else PENDING when one waits, else the first end state other than
  // COMPLETED. Empty: unknown.
  std::string state;
  std::map<std::string, int64_t> tasks;   // number of jobs of an array by state; a single job counts as one
  std::vector<std::string> failed_tasks;  // ids of elements that ended other than COMPLETED
  std::string reason, dependency, nodes, exit;
  int64_t node_count = 0;
  std::optional<int64_t> submitted, started, ended, elapsed_s, limit_s;
  std::optional<int64_t> last_step;  // last step of its training, if the job itself recorded it
  StateSource source = StateSource::kNone;
  const LedgerRun* run =
      nullptr;  // null for a job that the ledger does not know; lives as long as the ledger's contents
};

// Whether all jobs of the run ended, so that its state no longer changes by itself.
bool has_ended(const RunState& state);

// Returns one state for each run, and one for each job in `queue` that is no run. `cluster`: the cluster that was
// asked; runs of other clusters are not joined. If Slurm used an id again, the id belongs to the newest run. `left`:
// the ends that jobs left, by the name of the run, for runs that no other source knows.
std::vector<RunState> join_runs(std::span<const LedgerRun> runs, std::span<const slurm::JobState> queue,
                                std::span<const slurm::JobState> accounting, std::string_view cluster,
                                const std::map<std::string, LeftEnd>& left = {});

struct AskedRuns {
  std::vector<RunState> states;  // in order of submission
  Status slurm;                  // an error if Slurm could not be asked; the states then come from the ledger
};

// Joins the runs and writes newly known ends to the ledger. If the ledger cannot be written, logs a line. `ids`: asks
// Slurm only for these jobs or elements of arrays ("12", "12_3"); empty: asks for all. REQUIRES: unless `ids` is
// empty, `contents` holds only runs of these jobs (runs_of).
AskedRuns ask_runs(const Ledger& ledger, const LedgerContents& contents, std::span<const std::string> ids,
                   const slurm::AskOptions& options);

// Returns the runs of these jobs, the newest of each id.
LedgerContents runs_of(const LedgerContents& contents, std::span<const std::string> ids);

// Converts user input to job ids ("12", "12_3"). The input is job ids, or ids or names of runs; a name means the
// newest run of that name. Error: not_found (a name that no run has).
[[nodiscard]] Result<std::vector<std::string>> job_ids(const Ledger& ledger, const LedgerContents& contents,
                                                       std::span<const std::string> typed);

}  // namespace millrace::jobs
