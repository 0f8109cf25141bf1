// SPDX-License-Identifier: Apache-2.0
#pragma once

// Shares helpers between the verbs about submitted jobs: the ledger, Slurm's time limit, states as text and JSON, and
// waiting.

#include <chrono>
#include <span>
#include <string>
#include <vector>

#include "millrace/cli/command.h"
#include "millrace/jobs/record.h"
#include "millrace/jobs/runs.h"

namespace millrace::cli {

// Returns the options for Slurm. A controller that does not answer is reported within ten seconds.
slurm::AskOptions slurm_options(const Context& context);

[[nodiscard]] Result<jobs::Ledger> open_ledger();
// Reads the contents of the ledger. Prints a note for each damaged file.
[[nodiscard]] Result<jobs::LedgerContents> read_ledger(const jobs::Ledger& ledger, Context& context);

// Finds the record that `typed` names: a folder with a record, the name of a run that the ledger knows, or the number
// of its job. A name means its newest run. Errors: not_found, those of reading.
[[nodiscard]] Result<jobs::TrainingRecord> find_record(const std::string& typed);

// Returns an object of type "job".
Json job_json(const jobs::RunState& state);
// Returns "2 RUNNING, 5 PENDING" for an array, else the state; "UNKNOWN" if Slurm has forgotten the job.
std::string state_text(const jobs::RunState& state);
// Returns "exit status 3" or "signal 9"; "" if the status is unknown or 0.
std::string exit_text(const std::string& exit);
// Formats a time as Slurm does, "1-02:03:04"; "" for nullopt.
std::string duration_text(std::optional<int64_t> seconds);

// Blocks until all jobs have ended. Prints each change on stderr and each end as a result. The jobs continue when the
// wait is stopped. Errors: not_found (a job that neither Slurm nor the ledger knows), unavailable (some jobs did not
// end COMPLETED; the message names them), cancelled.
[[nodiscard]] Status wait_for_jobs(std::vector<std::string> ids, const jobs::Ledger& ledger, Context& context);

}  // namespace millrace::cli
