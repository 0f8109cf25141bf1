// SPDX-License-Identifier: Apache-2.0
#pragma once

// Checks batch scripts offline. The SB rules concern Slurm and the shell; the EN rules (env_lint.h) concern the
// environment that the scripts set. Pure functions of the given files; thread-safe.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/lint/findings.h"

namespace millrace::jobs {

// The cluster where the jobs will run, from a cluster file or a running Slurm. 0 and empty mean unknown.
struct ClusterFacts {
  struct Partition {
    std::string name;
    std::string instance;  // EC2 type
    int64_t nodes = 0;     // most nodes
    int64_t gpus = 0;      // a node
    std::string gpu_type;  // the type's name in gres
    int64_t cpus = 0;      // a node
    int64_t efa_interfaces = 0;
    bool dynamic = false;  // nodes are added and removed
    bool known_instance = false;
  };
  std::string source;  // the file's name, for messages
  std::vector<Partition> partitions;
  std::vector<std::string> mounts;  // absolute paths of shared mounts
  bool memory_scheduling = false;
  bool containers = false;  // pyxis is installed when a node starts
  bool hyperpod = false;
};

// The number of nodes for each model or job.
struct PlanFacts {
  struct Allocation {
    std::string name;
    int64_t nodes = 0;
  };
  std::string source;
  std::vector<Allocation> allocations;
};

struct JobContext {
  const ClusterFacts* cluster = nullptr;
  const PlanFacts* plan = nullptr;
};

struct ScriptFile {
  std::string name;  // its name in findings
  std::string_view text;
};

// The rules SB01 to SB48 and SH01 to SH04, by id.
std::span<const Rule> job_rules();
// All rules that lint_jobs may report: SB, SH, EN and the rules about ignoring.
std::span<const Rule> all_job_rules();

// Checks each script, and all scripts together (SB23). The findings are sorted, without suppressed ones. Accepts any
// bytes.
std::vector<Finding> lint_jobs(std::span<const ScriptFile> files, const JobContext& context = {});

}  // namespace millrace::jobs
