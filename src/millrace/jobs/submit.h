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

// A job that must end before this one starts.
struct After {
  std::string condition;  // "ok", "notok", "any"
  std::string job_id;
};
// Parses "ok:1234". Error: invalid_argument.
[[nodiscard]] Result<After> parse_after(std::string_view text);

// Reads a script that sbatch accepts. Errors: those of open and read; invalid_argument (no #! line, more than 4 MiB).
[[nodiscard]] Result<std::string> read_script(const std::string& path);

// Returns the options of sbatch in effect for a script: those of the script, then those of the command line, whose
// places are in line 0.
slurm::Options options_that_hold(const Job& job, const std::vector<std::string>& command_options);

// Returns the absolute path of the folder in which the job runs: --chdir, else the current folder.
std::string work_folder(const slurm::Options& asked);

// The patterns of the log files, absolute; `error` is empty if errors go to the output.
struct LogFiles {
  std::string output, error;
};
LogFiles log_files(const slurm::Options& asked, const std::string& work_dir);

struct SubmitRequest {
  std::string script;                  // a path
  std::vector<std::string> arguments;  // arguments of the script
  std::vector<std::string> options;    // options of sbatch: "--partition=gpu"
  std::vector<After> after;
  std::vector<DataRecord> data;  // data that the job reads, for the ledger
  // "NAME=VALUE" each, added to the environment that the job gets from this process.
  std::vector<std::string> variables;
};

struct Submission {
  RunRecord record;                    // without run, job_id and cluster until it is submitted
  std::vector<std::string> command;    // the sbatch command; may hold secrets of the caller
  std::vector<std::string> variables;  // variables of the request
  std::string script_text;             // without secrets
};

// Prepares a submission: reads the script, the environment and git. Starts no job. Errors: those of reading the
// script, invalid_argument (a script that sbatch refuses, a dependency that cannot be joined).
[[nodiscard]] Result<Submission> plan_submission(const SubmitRequest& request, const slurm::AskOptions& options);

// Submits the job and records it, after checking that the ledger can be written. Errors: those of the ledger before
// anything is submitted; those of slurm::submit(). If writing the ledger fails after the submission, the message names
// the job.
[[nodiscard]] Status submit(Submission& submission, const Ledger& ledger, const slurm::AskOptions& options);

}  // namespace millrace::jobs
