// SPDX-License-Identifier: Apache-2.0
#pragma once

// Rules for batch scripts, checked offline: SB for what Slurm and the shell do with them, EN (env_lint.h) for the
// environment they set. Pure functions of the files given; thread-safe.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/lint/findings.h"

namespace millrace::jobs {

// Where the jobs will run, from a cluster file or a running Slurm. 0 and empty mean unknown.
struct ClusterFacts {
  struct Partition {
    std::string name;
    std::string instance;  // EC2 type
    int64_t nodes = 0;     // at most
    int64_t gpus = 0;      // a node
    std::string gpu_type;  // as gres names it
    int64_t cpus = 0;      // a node
    int64_t efa_interfaces = 0;
    bool dynamic = false;  // nodes come and go
    bool known_instance = false;
  };
  std::string source;  // the file's name, for messages
  std::vector<Partition> partitions;
  std::vector<std::string> mounts;  // shared, absolute
  bool memory_scheduling = false;
  bool containers = false;  // a node's start installs pyxis
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
  std::string name;  // as findings name it
  std::string_view text;
};

// SB01 to SB48 and SH01 to SH04, by id.
std::span<const Rule> job_rules();
// All rules that lint_jobs may find: SB, SH, EN and those about ignoring.
std::span<const Rule> all_job_rules();

// Checks each script and all together (SB23); suppressions applied, sorted. Accepts any bytes.
std::vector<Finding> lint_jobs(std::span<const ScriptFile> files, const JobContext& context = {});

}  // namespace millrace::jobs
