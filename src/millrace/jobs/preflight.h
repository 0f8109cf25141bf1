// SPDX-License-Identifier: Apache-2.0
#pragma once

// Checks a job before it is queued. Compares the script with the cluster as it is now, the file systems, the data and
// the Hub. Rules JC01 to JC14. Functions are thread-safe.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/status.h"
#include "millrace/jobs/ledger.h"
#include "millrace/lint/findings.h"
#include "millrace/slurm/slurm.h"

namespace millrace::jobs {

struct CheckRequest {
  std::string script;                    // a path
  std::vector<std::string> arguments;    // arguments of the script
  std::vector<std::string> options;      // options of sbatch: "--partition=gpu"
  std::vector<std::string> data;         // URLs in addition to those in the script
  std::vector<std::string> checkpoints;  // folders or URLs in addition to those in the script
  int64_t checkpoint_bytes = 0;          // 0: size of the largest existing checkpoint, else by the planner
  double parameters = 0;                 // parameters of the model, for the planner; 0: taken from the script
  int64_t keep_last = 0;                 // checkpoints to keep; 0: taken from the script, else 2
  bool deep = false;                     // reads all of the data
  bool probe = false;                    // checks paths on one node of the partition, by srun
};

// A check that found no problem, or that cannot be answered here.
struct CheckAnswer {
  std::string subject;  // "log", "partition", "accounts", "gpus", "nodes", "checkpoints", "mounts", "probe", "data",
                        // "login", "image", "environment", "start"
  bool known = true;    // false: it could not be checked, and `evidence` says why
  std::string evidence;
};

struct CheckReport {
  std::vector<Finding> findings;
  std::vector<CheckAnswer> answers;
  std::vector<DataRecord> data;  // data that the job reads
};

// Asks Slurm (scontrol, squeue, sacctmgr, sbatch --test-only), and reads file systems, buckets and the Hub. Problems
// of the job are findings, not errors. Errors: those of read_script; cancelled.
[[nodiscard]] Result<CheckReport> check_job(const CheckRequest& request, const slurm::AskOptions& options);

// The rules JC01 to JC14.
std::span<const Rule> check_rules();
// The rules that check_job() may report: JC, EN and the rules about ignoring.
std::span<const Rule> all_check_rules();

// --- room for checkpoints, a pure function

struct CheckpointRoom {
  int64_t free_bytes = 0;
  std::string limit;        // "the file system"
  int64_t free_files = -1;  // inodes; -1: not limited, or unknown
  std::string files_limit;
};
struct CheckpointNeed {
  int64_t bytes = 0;      // size of one checkpoint
  int64_t files = 0;      // files of one checkpoint
  int64_t keep_last = 2;  // checkpoints to keep; one more exists while it is written
  int64_t there = 0;      // existing checkpoints that will be removed to make room
};
// Returns the number of parameters in a model's name: 8e9 for "meta-llama/Llama-3.1-8B"; 0 if the name has none.
double parameters_in_name(std::string_view name);

// Describes the missing room; empty if the checkpoints fit.
std::string missing_room(const CheckpointRoom& room, const CheckpointNeed& need);

}  // namespace millrace::jobs
