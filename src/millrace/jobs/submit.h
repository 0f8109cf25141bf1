// SPDX-License-Identifier: Apache-2.0
#pragma once

// Submits a batch script and writes the run to the ledger. Functions are thread-safe.

#include <string>
#include <vector>

#include "millrace/base/status.h"
#include "millrace/jobs/facts.h"
#include "millrace/jobs/ledger.h"
#include "millrace/slurm/slurm.h"

namespace millrace::jobs {

// Another job that must have ended first.
struct After {
  std::string condition;  // "ok", "notok", "any"
  std::string job_id;
};
// "ok:1234". Error: invalid_argument.
[[nodiscard]] Result<After> parse_after(std::string_view text);

// A script that sbatch takes. Errors: those of open and read; invalid_argument (no #! line, more than 4 MiB).
[[nodiscard]] Result<std::string> read_script(const std::string& path);

// The options of sbatch that hold for a script: its own, then those of the command line, whose places are in line 0.
slurm::Options options_that_hold(const Job& job, const std::vector<std::string>& command_options);

// Where the job runs: --chdir, else the current folder. Absolute.
std::string work_folder(const slurm::Options& asked);

// The patterns of the log files, absolute; `error` is empty where it goes to the output.
struct LogFiles {
  std::string output, error;
};
LogFiles log_files(const slurm::Options& asked, const std::string& work_dir);

struct SubmitRequest {
  std::string script;                  // a path
  std::vector<std::string> arguments;  // of the script
  std::vector<std::string> options;    // of sbatch: "--partition=gpu"
  std::vector<After> after;
  std::vector<DataRecord> data;  // that the job reads, for the ledger
  // "NAME=VALUE" each: the job gets this process's environment with these.
  std::vector<std::string> variables;
};

struct Submission {
  RunRecord record;                    // without run, job_id and cluster until it is submitted
  std::vector<std::string> command;    // of sbatch; may hold secrets of the caller
  std::vector<std::string> variables;  // of the request
  std::string script_text;             // without secrets
};

// Plans what submit() would do: reads the script, the environment and git. Starts no job. Errors: those of reading the
// script, invalid_argument (a script that sbatch refuses, a dependency that cannot be joined).
[[nodiscard]] Result<Submission> plan_submission(const SubmitRequest& request, const slurm::AskOptions& options);

// Submits and records. Checks that the ledger can be written first. Errors: those of the ledger before anything was
// submitted; those of slurm::submit(); when the ledger fails afterwards the message names the job.
[[nodiscard]] Status submit(Submission& submission, const Ledger& ledger, const slurm::AskOptions& options);

}  // namespace millrace::jobs
