// SPDX-License-Identifier: Apache-2.0
#pragma once

// The preset "groot-guide": the memory that the GPU strategy guide for GR00T counts, 5 GiB + 2 GiB + 1.2 GiB per
// sample. The constants hold for that model alone and count its weights, not the state of full fine-tuning; the preset
// is here because cluster users plan with the guide (docs/plan.md). Pure functions.

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/plan/memory.h"

namespace millrace::plan {

inline constexpr std::string_view kGrootGuidePreset = "groot-guide";
inline constexpr const char* kGrootGuideBasis = "GR00T guide";  // MemoryModel::basis

MemoryModel groot_guide_model();

// The batches in the guide's own table (data/groot_guide_batches.csv).
struct GrootGuideRow {
  std::string_view gpu_id;  // of the catalogue
  std::string_view name;
  double gib;                      // the number on the box
  std::array<int64_t, 3> batches;  // conservative, recommended, aggressive
};
std::span<const GrootGuideRow> groot_guide_table();

// Where that table differs from the guide's formula, with the arithmetic.
// Empty for a GPU that the table does not have, and where both agree.
std::vector<std::string> groot_guide_notes(std::string_view gpu_id);

// The batches in the table of the guide to fine-tuning of vision-language-action models (data/vla_guide_batches.csv),
// one for each GPU.
struct VlaGuideRow {
  std::string_view gpu_id;  // of the catalogue
  std::string_view name;
  double gib;  // the number on the box
  int64_t batch;
};
std::span<const VlaGuideRow> vla_guide_table();

// What that table says of a GPU, beside the GR00T guide's formula. Empty for a GPU that it does not have.
std::vector<std::string> vla_guide_notes(std::string_view gpu_id);

}  // namespace millrace::plan
