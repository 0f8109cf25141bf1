// SPDX-License-Identifier: Apache-2.0
#pragma once

// Shares helpers between the writers of batch scripts (new.cpp, new_training.cpp).

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "millrace/jobs/new.h"

namespace millrace::jobs {

// Builds a batch script: #SBATCH lines first, then the body.
class ScriptText {
 public:
  // Adds an #SBATCH line, quoted for sbatch. An empty value means an option without a value.
  void option(std::string_view name, std::string_view value = {});
  void option(std::string_view name, int64_t value) { option(name, std::to_string(value)); }
  void line(std::string_view line) { (text_ += line) += '\n'; }
  // Adds whole lines, each with its newline.
  void lines(std::string_view lines) { text_ += lines; }
  std::string take() { return std::move(text_); }

 private:
  std::string text_ = "#!/bin/bash\n";
};

// The program that starts the processes of a training job.
enum class Launcher {
  kTorchrun,  // one task per node
  kSrun,      // one task per GPU
  kSingle,    // one process, which may start others
};
Launcher launcher_of(const JobSpec& spec);

inline constexpr std::string_view kStepCpus = "--cpus-per-task=\"$SLURM_CPUS_PER_TASK\"";
inline constexpr std::string_view kOnEachNode = "srun --ntasks=\"$SLURM_JOB_NUM_NODES\" --ntasks-per-node=1";

// Quotes each word for the shell and joins the words with blanks.
std::string joined(const std::vector<std::string>& words);
// Replaces every `what` in `text` by `with`.
std::string replaced(std::string_view text, std::string_view what, std::string_view with);
// Returns " --container-image=..." with its mounts, and with `also` unless one of the mounts contains it; "" without
// an image.
std::string container_flags(const JobSpec& spec, std::string_view also = {});
void write_staging(const JobSpec& spec, ScriptText& out);
void write_network(const JobSpec& spec, ScriptText& out);

// Writes the whole training job (kTrain and kGroot) after its #SBATCH lines. REQUIRES: a command.
void write_training(const JobSpec& spec, ScriptText& out);

}  // namespace millrace::jobs
