// SPDX-License-Identifier: Apache-2.0
#pragma once

// The preset "groot-guide": the memory that the GPU strategy guide for GR00T counts, 5 GiB + 2 GiB + 1.2 GiB per
// sample. The constants hold for that model alone and count its weights, not the state of full fine-tuning; the preset
// is here because cluster users plan with the guide (docs/plan.md). Pure functions.

#include <string_view>

#include "millrace/plan/memory.h"

namespace millrace::plan {

inline constexpr std::string_view kGrootGuidePreset = "groot-guide";

MemoryModel groot_guide_model();

}  // namespace millrace::plan
