// SPDX-License-Identifier: Apache-2.0
#pragma once

// The preset "groot-guide": the memory by the GPU strategy guide for GR00T, 5 GiB + 2 GiB + 1.2 GiB per sample. The
// constants are valid for that model only, and count its weights but not the state of full fine-tuning. The preset
// exists because cluster users plan with the guide (docs/plan.md). Pure functions.

#include <string_view>

#include "millrace/plan/memory.h"

namespace millrace::plan {

inline constexpr std::string_view kGrootGuidePreset = "groot-guide";

MemoryModel groot_guide_model();

}  // namespace millrace::plan
