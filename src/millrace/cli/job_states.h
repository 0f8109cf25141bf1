// SPDX-License-Identifier: Apache-2.0
#pragma once

// Shared by the verbs about submitted jobs: the ledger, Slurm's patience, states as text and JSON, and waiting.

#include <chrono>
#include <span>
#include <string>
#include <vector>

#include "millrace/cli/command.h"
#include "millrace/jobs/record.h"
#include "millrace/jobs/runs.h"

namespace millrace::cli {

// Within ten seconds a user hears of a controller that does not answer.
slurm::AskOptions slurm_options(const Context& context);

[[nodiscard]] Result<jobs::Ledger> open_ledger();
// Its contents; notes name the files that are damaged.
[[nodiscard]] Result<jobs::LedgerContents> read_ledger(const jobs::Ledger& ledger, Context& context);

// A folder with a record, or the name of a run that the ledger knows, or the number of its job; of a name the newest.
// Errors: not_found, those of reading.
[[nodiscard]] Result<jobs::TrainingRecord> find_record(const std::string& typed);

// An object of type "job".
Json job_json(const jobs::RunState& state);
// "2 RUNNING, 5 PENDING" of an array, else the state; "UNKNOWN" where Slurm has forgotten it.
std::string state_text(const jobs::RunState& state);
// "exit status 3", "signal 9"; "" where it is unknown or 0.
std::string exit_text(const std::string& exit);
// "1-02:03:04", as Slurm writes times; "" for nullopt.
std::string duration_text(std::optional<int64_t> seconds);

// Blocks until all jobs have ended, and prints each change on stderr and each end as a result. Jobs go on when it is
// stopped. Errors: not_found (a job that neither Slurm nor the ledger knows), unavailable (some did not end COMPLETED;
// the message names them), cancelled.
[[nodiscard]] Status wait_for_jobs(std::vector<std::string> ids, const jobs::Ledger& ledger, Context& context);

}  // namespace millrace::cli
