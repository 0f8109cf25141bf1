// SPDX-License-Identifier: Apache-2.0
#pragma once

// What would go wrong with a job, before it is queued: the script is held against the cluster as it is now, the file
// systems, the data and the Hub. Rules JC01 to JC14. Functions are thread-safe.

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
  std::vector<std::string> arguments;    // of the script
  std::vector<std::string> options;      // of sbatch: "--partition=gpu"
  std::vector<std::string> data;         // URLs beside those that the script names
  std::vector<std::string> checkpoints;  // folders or URLs beside those that the script names
  int64_t checkpoint_bytes = 0;          // 0: the largest checkpoint that is there, else by the planner
  double parameters = 0;                 // of the model, for the planner; 0: as the script tells
  int64_t keep_last = 0;                 // checkpoints that stay; 0: what the script says, else 2
  bool deep = false;                     // read the data whole
  bool probe = false;                    // look at paths on one node of the partition, by srun
};

// A question that found no problem, or that nobody here can answer.
struct CheckAnswer {
  std::string subject;  // "log", "partition", "accounts", "gpus", "nodes", "checkpoints", "mounts", "probe", "data",
                        // "login", "image", "environment", "start"
  bool known = true;    // false: it could not be checked, and `evidence` says why
  std::string evidence;
};

struct CheckReport {
  std::vector<Finding> findings;
  std::vector<CheckAnswer> answers;
  std::vector<DataRecord> data;  // of what the job reads
};

// Asks Slurm (scontrol, squeue, sacctmgr, sbatch --test-only), and reads file systems, buckets and the Hub. What is
// wrong with the job is a finding, and no error. Errors: as of read_script; cancelled.
[[nodiscard]] Result<CheckReport> check_job(const CheckRequest& request, const slurm::AskOptions& options);

// JC01 to JC14.
std::span<const Rule> check_rules();
// All rules that check_job() may find: JC, EN and those about ignoring.
std::span<const Rule> all_check_rules();

// --- room for checkpoints, a pure function

struct CheckpointRoom {
  int64_t free_bytes = 0;
  std::string limit;        // "the file system"
  int64_t free_files = -1;  // inodes; -1: not limited, or unknown
  std::string files_limit;
};
struct CheckpointNeed {
  int64_t bytes = 0;      // of one
  int64_t files = 0;      // of one
  int64_t keep_last = 2;  // and one more while it is written
  int64_t there = 0;      // checkpoints that lie there already and will make room
};
// The parameters that a model's name tells: 8e9 of "meta-llama/Llama-3.1-8B"; 0 where it does not.
double parameters_in_name(std::string_view name);

// Empty where they fit, else what is missing.
std::string missing_room(const CheckpointRoom& room, const CheckpointNeed& need);

}  // namespace millrace::jobs
