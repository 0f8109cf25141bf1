// SPDX-License-Identifier: Apache-2.0
#pragma once

// Shared by the writers of batch scripts (new.cpp, new_training.cpp).

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "millrace/jobs/new.h"

namespace millrace::jobs {

// A batch script as it grows: #SBATCH lines first, then the body.
class ScriptText {
 public:
  // Quoted as sbatch reads it. An empty value is an option without one.
  void option(std::string_view name, std::string_view value = {});
  void option(std::string_view name, int64_t value) { option(name, std::to_string(value)); }
  void line(std::string_view line) { (text_ += line) += '\n'; }
  // Whole lines.
  void lines(std::string_view lines) { text_ += lines; }
  std::string take() { return std::move(text_); }

 private:
  std::string text_ = "#!/bin/bash\n";
};

// The program that starts the processes of a training job.
enum class Launcher {
  kTorchrun,  // one task a node
  kSrun,      // one task a GPU
  kSingle,    // one process, which starts others if it wants any
};
Launcher launcher_of(const JobSpec& spec);

inline constexpr std::string_view kStepCpus = "--cpus-per-task=\"$SLURM_CPUS_PER_TASK\"";
inline constexpr std::string_view kOnEachNode = "srun --ntasks=\"$SLURM_JOB_NUM_NODES\" --ntasks-per-node=1";

// Each word quoted for the shell, with blanks between.
std::string joined(const std::vector<std::string>& words);
// `text` with every `what` as `with`.
std::string replaced(std::string_view text, std::string_view what, std::string_view with);
// " --container-image=..." with its mounts, and `also` unless one of them contains it; "" without an image.
std::string container_flags(const JobSpec& spec, std::string_view also = {});
void write_staging(const JobSpec& spec, ScriptText& out);
void write_network(const JobSpec& spec, ScriptText& out);

// Writes all of a training job after its #SBATCH lines: kTrain and kGroot. REQUIRES: a command.
void write_training(const JobSpec& spec, ScriptText& out);

}  // namespace millrace::jobs
