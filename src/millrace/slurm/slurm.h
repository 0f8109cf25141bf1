// SPDX-License-Identifier: Apache-2.0
#pragma once

// Partitions, nodes and jobs of a Slurm cluster, from its own commands. The parsers read their text (`scontrol -o
// show`, `squeue -o`), whose names are stable; --json came late (scontrol: 23.02) and changed its shapes. Unknown
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

// Resources of one kind: "gpu:h200:8(S:0-1)" is {"gpu", "h200", 8}.
struct Gres {
  std::string name;
  std::string type;  // empty: untyped
  int64_t count = 0;
};

// GPUs of one type in a node, which may hold several.
struct GpuKind {
  std::string type;  // empty: untyped
  int64_t count = 0;
  int64_t used = 0;
};

struct Node {
  std::string name;
  std::string state;                   // "MIXED+CLOUD", as printed
  bool usable = false;                 // jobs may start here, now or when others have ended
  std::string reason;                  // why it is down or drained; "" where nobody said
  std::optional<int64_t> reason_time;  // when that was said; UTC seconds since 1970
  bool cloud = false;                  // booted when a job needs it
  bool powered_down = false;           // a cloud node that must boot first
  std::vector<std::string> partitions;
  std::vector<std::string> features;
  int64_t cpus = 0, cpus_used = 0;
  int64_t memory_mib = 0, memory_used_mib = 0;  // RealMemory; the part that jobs have
  int64_t tmp_mib = 0;                          // local disk
  std::vector<Gres> gres, gres_used;

  int64_t gpus() const;
  int64_t gpus_used() const;
  std::string gpu_type() const;  // of the first GPUs; empty: untyped or none
  std::vector<GpuKind> gpu_kinds() const;
};

struct Partition {
  std::string name;
  bool is_default = false;
  bool up = true;
  std::string state;                  // "UP", "DOWN", "DRAIN" (takes no jobs), "INACTIVE" (takes and starts none)
  bool whole_nodes = false;           // OverSubscribe=EXCLUSIVE: jobs do not share nodes
  std::string nodes;                  // a host list
  std::optional<int64_t> max_time_s;  // nullopt: unlimited
  int64_t priority_tier = 1;
  bool preempted = false;                          // its jobs may be preempted
  std::optional<int64_t> default_time_s;           // of a job without --time; nullopt: max_time_s
  int64_t min_nodes = 0;                           // of a job
  std::optional<int64_t> resume_timeout_s;         // nullopt: the cluster's
  std::optional<int64_t> max_nodes;                // of a job; nullopt: unlimited
  std::vector<std::string> groups, accounts, qos;  // the only ones that may use it; empty: all may
  std::vector<std::string> denied_accounts, denied_qos;
};

struct Job {
  std::string id;  // "15_2" of an array
  std::string name, user, partition;
  std::string state, reason;  // "PENDING", "Resources"
  int64_t nodes = 0, cpus = 0;
  std::optional<int64_t> gpus;         // of all its nodes; nullopt: not told by this version
  std::vector<std::string> node_list;  // where it runs
  std::optional<int64_t> time_left_s;  // until its limit; nullopt: unlimited or unknown
};

struct Cluster {
  std::string version;            // "22.05.8"
  std::string select_type;        // "select/cons_tres"
  std::string select_parameters;  // "CR_CORE_MEMORY"
  std::string enforced;           // AccountingStorageEnforce: "associations,limits,qos"; "none"
  std::string resume_program;     // starts cloud nodes; "" without one
  int64_t resume_timeout_s = 0;   // a cloud node that has not booted by then is given up
  std::vector<Partition> partitions;
  std::vector<Node> nodes;
  std::vector<Job> jobs;

  // Jobs without --mem then take all memory of a node (or its partition's default).
  bool schedules_memory() const { return select_parameters.find("MEMORY") != std::string::npos; }
};

struct AskOptions {
  std::chrono::milliseconds time_limit{15'000};  // for each command
  std::stop_token stop;
};

// Runs scontrol and squeue. Errors: not_found (they are not installed), unavailable (the controller does not answer),
// timeout, cancelled, corruption (an unexpected answer).
[[nodiscard]] Result<Cluster> ask(const AskOptions& options = {});

// "KEY=VALUE KEY=VALUE": a value may hold blanks ("OS=Linux 6.1"); a key holds none and starts with a capital letter.
std::map<std::string, std::string, std::less<>> parse_record(std::string_view line);
// A line a node of `scontrol -o -d show node`. Error: corruption, a line without NodeName.
[[nodiscard]] Result<std::vector<Node>> parse_nodes(std::string_view text);
// A line a partition of `scontrol -o show partition`. Error: corruption.
[[nodiscard]] Result<std::vector<Partition>> parse_partitions(std::string_view text);
// A line a job of `squeue -h -a -r -o kJobFormat`. Error: corruption, a line of too few fields.
inline constexpr const char* kJobFormat = "%i|%P|%T|%r|%D|%C|%b|%L|%u|%N|%j";
[[nodiscard]] Result<std::vector<Job>> parse_jobs(std::string_view text);
// A line a job of `squeue -h -a -r -O kJobTresFormat`: GPUs asked for by job or by task. Unknown jobs are skipped.
inline constexpr const char* kJobTresFormat = "JobArrayID:64,NumTasks:16,tres-per-job:64,tres-per-task:64";
void add_job_tres(std::string_view text, std::vector<Job>& jobs);

// "gpu:h200:8(S:0-1),nic:2", "(null)", "gres:gpu:4", "gres/gpu:h200=4" (24.05).
std::vector<Gres> parse_gres(std::string_view text);
// "n[1-3,07-09],m2" in order. Error: invalid_argument (brackets that do not match, more than 100,000 names).
[[nodiscard]] Result<std::vector<std::string>> expand_hostlist(std::string_view text);

}  // namespace millrace::slurm
