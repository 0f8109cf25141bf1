// SPDX-License-Identifier: Apache-2.0
#pragma once

// Writes batch scripts without findings by the rules of lint.h. A pure function; thread-safe.

#include <cstdint>
#include <string>
#include <vector>

#include "millrace/base/status.h"
#include "millrace/jobs/lint.h"

namespace millrace::jobs {

enum class JobKind {
  kTrain,       // a command on all GPUs, warned before its limit, requeued, resumed
  kPreprocess,  // an array of `millrace prepare --task`
  kValidate,    // GPUs, NVLink and EFA of every node
  kNccl,        // nccl-tests over all nodes
  kStorage,     // rates of data and of small files in a shared folder, read on another node than wrote them
  kGroot,       // fine-tuning of Isaac-GR00T N1.5, N1.6 or N1.7 on one node
};

struct Copy {
  std::string source, target;  // as `millrace sync` takes them
};

struct JobSpec {
  JobKind kind = JobKind::kTrain;
  std::string name;  // empty: after the kind
  std::string partition, account;
  int64_t nodes = 1;
  int64_t gpus_per_node = 8;  // 0: none are asked for
  std::string gpu_type;       // "h200"; empty: any
  int64_t cpus_per_gpu = 12;  // per task where there are no GPUs
  std::string time = "24:00:00";
  std::string log_dir;      // absolute; must exist when the job is submitted
  bool exclusive = true;    // whole nodes with all memory
  std::string mem_per_gpu;  // where nodes are shared, as slurm_memory() takes it; empty: the partition's default
  bool torchrun = true;     // else one task a GPU
  // Options of torchrun that not every version has; empty and false: not passed on.
  std::string numa_binding;       // "node", "socket", "exclusive", "core-complex"
  std::string event_log_handler;  // a registered handler
  bool virtual_local_rank = false;
  bool efa = false;
  bool wait_all_nodes = false;  // for nodes that boot for the job
  int64_t monitor_s = 60;       // between two samples of the GPUs of each node; 0: no monitor
  int64_t signal_s = 300;       // before the time limit; 0: no signal, no requeue
  int64_t max_restarts = 0;     // after failures, in the same job; needs signal_s
  std::string image;            // of pyxis; empty: no container
  std::vector<std::string> mounts;
  std::vector<Copy> stage;  // to every node before the start
  // Every node's part: out at the end and after a limit, back at the start.
  std::vector<Copy> save;
  // Folders in which a program writes checkpoint-N: copied while it trains, the newest back at the start. The first
  // node sees them.
  std::vector<Copy> follow;
  int64_t follow_keep = 3;  // complete ones that stay at the target
  // train: with torchrun the script and its arguments, or "-m" and a module.
  std::vector<std::string> command;

  // preprocess
  int64_t tasks = 10, tasks_at_once = 0;  // 0: all
  std::vector<std::string> inputs;
  std::string tokenizer, output;
  // storage-test
  std::string folder;
  int64_t file_mib = 4096;  // of each task
  int64_t files = 1000;     // empty ones of each task
  // groot: the dataset is inputs[0], the checkpoints go to output; a given command replaces all of it
  std::string groot_version = "1.7";  // or "1.6", "1.5"
  std::string base_model;             // empty: NVIDIA's of that version
  std::string embodiment;
  std::string modality_config;  // 1.6 and 1.7: a Python file
  std::string data_config;      // 1.5: a name in its DATA_CONFIG_MAP
  int64_t global_batch_size = 64, max_steps = 10000, save_steps = 1000;
  // Samples that a GPU holds at once; a step of more is accumulated, which 1.5 cannot. 0: what the plan recommends for
  // `gpu_type`, or as many as there are where the type is not known.
  int64_t micro_batch_size = 0;
};

// The fields that a person has set, which a cluster does not change.
struct Chosen {
  bool gpus = false, cpus = false;
};
// Takes the other fields from the cluster: the GPUs of a node and their type, its CPUs, EFA, whether nodes boot for
// the job. Where the partition's nodes are unknown, or there are several partitions and none is named, a field
// keeps its value. Errors: invalid_argument (no such partition, or fewer nodes than requested).
[[nodiscard]] Status fit_to_cluster(JobSpec& spec, const ClusterFacts& cluster, Chosen chosen);

// Whether sbatch takes what the fields ask of it. Errors: invalid_argument, "FLAG: REASON".
[[nodiscard]] Status check_header(const JobSpec& spec);

// Errors: invalid_argument, which names the flag of `millrace job new` that is missing or wrong.
[[nodiscard]] Result<std::string> write_job(const JobSpec& spec);

// A size as sbatch takes it, a whole number with K, M, G or T: "80GiB" is 80G. Slurm's own notation stays: "4000" MiB,
// "80G" of 1024^3 bytes. Errors: invalid_argument (no size, or none above 0).
[[nodiscard]] Result<std::string> slurm_memory(std::string_view text);

// Tasks that an array of Slurm may have unless its MaxArraySize says otherwise.
inline constexpr int64_t kDefaultArrayTasks = 1001;

// `text` as one word of a shell: as it is where that is safe, else in single quotes.
std::string shell_quoted(std::string_view text);

}  // namespace millrace::jobs
