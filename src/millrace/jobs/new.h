// SPDX-License-Identifier: Apache-2.0
#pragma once

// Writes batch scripts that pass the rules of lint.h. A pure function; thread-safe.

#include <cstdint>
#include <string>
#include <vector>

#include "millrace/base/status.h"
#include "millrace/jobs/lint.h"

namespace millrace::jobs {

enum class JobKind {
  kTrain,       // a command on all GPUs; warned before its time limit, requeued and resumed
  kPreprocess,  // an array of `millrace prepare --task`
  kValidate,    // tests GPUs, NVLink and EFA of every node
  kNccl,        // nccl-tests over all nodes
  kStorage,     // rates of data and small files in a shared folder; another node reads than wrote
  kGroot,       // fine-tuning of Isaac-GR00T N1.5, N1.6 or N1.7 on one node
};

struct Copy {
  std::string source, target;  // as `millrace sync` takes them
};

struct JobSpec {
  JobKind kind = JobKind::kTrain;
  std::string name;  // empty: the name of the kind
  std::string partition, account;
  int64_t nodes = 1;
  int64_t gpus_per_node = 8;  // 0: requests none
  std::string gpu_type;       // "h200"; empty: any
  int64_t cpus_per_gpu = 12;  // without GPUs: per task
  std::string time = "24:00:00";
  std::string log_dir;      // absolute; must exist when the job is submitted
  bool exclusive = true;    // whole nodes with all memory
  std::string mem_per_gpu;  // for shared nodes, in the form of slurm_memory(); empty: the partition's default
  bool torchrun = true;     // false: one task per GPU
  // Options that not every version of torchrun has. Empty and false: not passed on.
  std::string numa_binding;       // "node", "socket", "exclusive", "core-complex"
  std::string event_log_handler;  // a registered handler
  bool virtual_local_rank = false;
  bool efa = false;
  bool wait_all_nodes = false;  // for nodes that boot for the job
  int64_t monitor_s = 60;       // between two samples of the GPUs of each node; 0: no monitor
  int64_t signal_s = 300;       // before the time limit; 0: no signal, no requeue
  int64_t max_restarts = 0;     // restarts after failures, in the same job; needs signal_s
  std::string image;            // image for pyxis; empty: no container
  std::vector<std::string> mounts;
  std::vector<Copy> stage;  // copied to every node before the start
  // Folders whose part on each node is copied out at the end and after a time limit, and back at the start.
  std::vector<Copy> save;
  // Folders in which a program writes checkpoint-N. They are copied during training, and the newest is copied back at
  // the start. The first node must see them.
  std::vector<Copy> follow;
  int64_t follow_keep = 3;  // number of complete checkpoints kept at the target
  // train: the command; with torchrun, the script and its arguments, or "-m" and a module.
  std::vector<std::string> command;

  // preprocess
  int64_t tasks = 10, tasks_at_once = 0;  // 0: all
  std::vector<std::string> inputs;
  std::string tokenizer, output;
  // storage-test
  std::string folder;
  int64_t file_mib = 4096;  // size of the file of each task
  int64_t files = 1000;     // empty ones of each task
  // groot: the dataset is inputs[0], the checkpoints go to `output`. If `command` is set, it replaces all of these.
  std::string groot_version = "1.7";  // or "1.6", "1.5"
  std::string base_model;             // empty: NVIDIA's model of that version
  std::string embodiment;
  std::string modality_config;  // 1.6 and 1.7: a Python file
  std::string data_config;      // 1.5: a name in its DATA_CONFIG_MAP
  int64_t global_batch_size = 64, max_steps = 10000, save_steps = 1000;
  // The number of samples that a GPU holds at once. A step of more samples is accumulated, which 1.5 cannot do. 0: the
  // number that the plan recommends for `gpu_type`, or all samples of a step if the type is unknown.
  int64_t micro_batch_size = 0;
};

// The fields that the user has set. The cluster does not change them.
struct Chosen {
  bool gpus = false, cpus = false;
};
// Sets the other fields from the cluster: the GPUs of a node and their type, its CPUs, EFA, and whether nodes boot for
// the job. If the nodes of the partition are unknown, or no partition is named among several, the fields keep their
// values. Errors: invalid_argument (no such partition, or fewer nodes than requested).
[[nodiscard]] Status fit_to_cluster(JobSpec& spec, const ClusterFacts& cluster, Chosen chosen);

// Checks that sbatch accepts the options of these fields. Errors: invalid_argument, "FLAG: REASON".
[[nodiscard]] Status check_header(const JobSpec& spec);

// Returns the text of the script. Errors: invalid_argument, which names the missing or wrong flag of `millrace job
// new`.
[[nodiscard]] Result<std::string> write_job(const JobSpec& spec);

// Converts a size to sbatch's form, a whole number with K, M, G or T: "80GiB" becomes 80G. Slurm's own notation stays:
// "4000" MiB, "80G" of 1024^3 bytes. Errors: invalid_argument (no size, or a size that is not above 0).
[[nodiscard]] Result<std::string> slurm_memory(std::string_view text);

// The number of tasks that a Slurm array may have, unless Slurm's MaxArraySize differs.
inline constexpr int64_t kDefaultArrayTasks = 1001;

// Quotes `text` as one word of a shell: unchanged if that is safe, else in single quotes.
std::string shell_quoted(std::string_view text);

}  // namespace millrace::jobs
