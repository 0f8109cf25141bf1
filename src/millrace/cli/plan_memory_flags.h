// SPDX-License-Identifier: Apache-2.0
#pragma once

// The flags of `plan batch` and `plan advise` that describe the memory of a batch.

#include <string>
#include <vector>

#include "millrace/cli/plan_flags.h"
#include "millrace/plan/groot_guide.h"
#include "millrace/plan/memory.h"

namespace millrace::cli {

struct MemoryFlags {
  std::string preset;  // one of plan::presets(), or plan::kGrootGuidePreset; empty: measured or given
  plan::PresetOptions options;
  double trainable = 0;
  int64_t vocabulary = -1;
  double per_sample_bytes = 0, fixed_bytes = -1, overhead_bytes = -1;  // not above 0: not given
  std::vector<std::string> measured;
  std::vector<plan::Measured> points;
};

void add_memory_flags(CLI::App& app, MemoryFlags& flags);
// Combines the flags. Throws CLI::ValidationError, also when they do not describe the model.
void check_memory_flags(MemoryFlags& flags);
// Returns the memory model of the flags. Errors: those of preset_model and calibrate.
[[nodiscard]] Result<plan::MemoryModel> memory_model(const MemoryFlags& flags);

}  // namespace millrace::cli
