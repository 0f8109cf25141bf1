// SPDX-License-Identifier: Apache-2.0
#pragma once

// Partitions, nodes and jobs of a Slurm cluster, from Slurm's own commands. The parsers read text output (`scontrol -o
// show`, `squeue -o`), whose names are stable; --json came late (scontrol: 23.02) and changed its structure. Unknown
// fields are skipped, missing ones stay empty. Functions are thread-safe, and pure except ask().

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/status.h"

namespace millrace::slurm {

// Resources of one kind. "gpu:h200:8(S:0-1)" is {"gpu", "h200", 8}.
struct Gres {
  std::string name;
  std::string type;  // empty: untyped
  int64_t count = 0;
};

// GPUs of one type in a node. A node may have several types.
struct GpuKind {
  std::string type;  // empty: untyped
  int64_t count = 0;
  int64_t used = 0;
};

struct Node {
  std::string name;
  std::string state;                   // "MIXED+CLOUD", as printed
  bool usable = false;                 // jobs may start here, now or after others end
  std::string reason;                  // why it is down or drained; "": nobody gave a reason
  std::optional<int64_t> reason_time;  // when the reason was given; UTC seconds since 1970
  bool cloud = false;                  // booted when a job needs it
  bool powered_down = false;           // a cloud node that must boot first
  std::vector<std::string> partitions;
  std::vector<std::string> features;
  int64_t cpus = 0, cpus_used = 0;
  int64_t memory_mib = 0, memory_used_mib = 0;  // RealMemory; the part allocated to jobs
  int64_t tmp_mib = 0;                          // local disk
  std::vector<Gres> gres, gres_used;

  int64_t gpus() const;
  int64_t gpus_used() const;
  std::string gpu_type() const;  // type of the first GPUs; empty: untyped or none
  std::vector<GpuKind> gpu_kinds() const;
};

struct Partition {
  std::string name;
  bool is_default = false;
  bool up = true;
  std::string state;                  // "UP", "DOWN", "DRAIN" (accepts no jobs), "INACTIVE" (accepts and starts none)
  bool whole_nodes = false;           // OverSubscribe=EXCLUSIVE: jobs do not share nodes
  std::string nodes;                  // a host list
  std::optional<int64_t> max_time_s;  // nullopt: unlimited
  int64_t priority_tier = 1;
  bool preempted = false;                          // jobs may be preempted
  std::optional<int64_t> default_time_s;           // for a job without --time; nullopt: max_time_s
  int64_t min_nodes = 0;                           // per job
  std::optional<int64_t> resume_timeout_s;         // nullopt: the cluster's timeout
  std::optional<int64_t> max_nodes;                // per job; nullopt: unlimited
  std::vector<std::string> groups, accounts, qos;  // the only ones allowed; empty: all
  std::vector<std::string> denied_accounts, denied_qos;
};

struct Job {
  std::string id;  // "15_2" in an array
  std::string name, user, partition;
  std::string state, reason;  // "PENDING", "Resources"
  int64_t nodes = 0, cpus = 0;
  std::optional<int64_t> gpus;         // on all its nodes; nullopt: this Slurm version does not report it
  std::vector<std::string> node_list;  // where it runs
  std::optional<int64_t> time_left_s;  // until its limit; nullopt: unlimited or unknown
};

struct Cluster {
  std::string version;            // "22.05.8"
  std::string select_type;        // "select/cons_tres"
  std::string select_parameters;  // "CR_CORE_MEMORY"
  std::string enforced;           // AccountingStorageEnforce: "associations,limits,qos"; "none"
  std::string resume_program;     // starts cloud nodes; "": none
  int64_t resume_timeout_s = 0;   // a cloud node that has not booted by then is given up
  std::vector<Partition> partitions;
  std::vector<Node> nodes;
  std::vector<Job> jobs;

  // Returns whether Slurm schedules memory. Then jobs without --mem take all memory of a node (or its partition's
  // default).
  bool schedules_memory() const { return select_parameters.find("MEMORY") != std::string::npos; }
};

struct AskOptions {
  std::chrono::milliseconds time_limit{15'000};  // for each command
  std::stop_token stop;
};

// Runs scontrol and squeue. Errors: not_found (they are not installed), unavailable (the controller does not answer),
// timeout, cancelled, corruption (an unexpected answer).
[[nodiscard]] Result<Cluster> ask(const AskOptions& options = {});

// Parses "KEY=VALUE KEY=VALUE". A value may contain blanks ("OS=Linux 6.1"); a key has none and starts with a capital
// letter.
std::map<std::string, std::string, std::less<>> parse_record(std::string_view line);
// Parses `scontrol -o -d show node`: one node per line. Error: corruption, a line without NodeName.
[[nodiscard]] Result<std::vector<Node>> parse_nodes(std::string_view text);
// Parses `scontrol -o show partition`: one partition per line. Error: corruption.
[[nodiscard]] Result<std::vector<Partition>> parse_partitions(std::string_view text);
// Parses `squeue -h -a -r -o kJobFormat`: one job per line. Error: corruption, a line with too few fields.
inline constexpr const char* kJobFormat = "%i|%P|%T|%r|%D|%C|%b|%L|%u|%N|%j";
[[nodiscard]] Result<std::vector<Job>> parse_jobs(std::string_view text);
// Parses `squeue -h -a -r -O kJobTresFormat`, one job per line, and adds GPUs requested per job or per task. Skips
// unknown jobs.
inline constexpr const char* kJobTresFormat = "JobArrayID:64,NumTasks:16,tres-per-job:64,tres-per-task:64";
void add_job_tres(std::string_view text, std::vector<Job>& jobs);

// Parses "gpu:h200:8(S:0-1),nic:2", "(null)", "gres:gpu:4", "gres/gpu:h200=4" (24.05).
std::vector<Gres> parse_gres(std::string_view text);
// Expands "n[1-3,07-09],m2", in order. Error: invalid_argument (brackets that do not match, more than 100,000 names).
[[nodiscard]] Result<std::vector<std::string>> expand_hostlist(std::string_view text);

}  // namespace millrace::slurm
