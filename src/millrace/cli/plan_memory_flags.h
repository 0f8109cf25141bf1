// SPDX-License-Identifier: Apache-2.0
#pragma once

// The flags that say how much memory a batch takes, of `plan batch` and `plan advise`.

#include <string>
#include <vector>

#include "millrace/cli/plan_flags.h"
#include "millrace/plan/memory.h"

namespace millrace::cli {

struct MemoryFlags {
  std::string preset;  // of plan::presets(), or kGuidePreset; empty: the model is measured or given
  plan::PresetOptions options;
  double trainable = 0;
  int64_t vocabulary = -1;
  double per_sample_bytes = 0, fixed_bytes = -1, overhead_bytes = -1;  // what is negative or 0 was not given
  std::vector<std::string> measured;
  std::vector<plan::Measured> points;
};

// The constants of the GR00T guide, which answer for that model and only when they are asked for.
inline constexpr const char* kGuidePreset = "groot-guide";

void add_memory_flags(CLI::App& app, MemoryFlags& flags);
// Reads what the flags say together. Throws CLI::ValidationError, also when they do not say what the model takes.
void check_memory_flags(MemoryFlags& flags);
// Errors: those of preset_model and calibrate.
[[nodiscard]] Result<plan::MemoryModel> memory_model(const MemoryFlags& flags);

}  // namespace millrace::cli
