// SPDX-License-Identifier: Apache-2.0
#pragma once

// How large a batch fits one GPU. memory(batch) = overhead + fixed + per_sample x batch, where `fixed` and `per_sample`
// come from a model's shape and what trains it, from measured peaks, or are given; a prior is a range, and so is the
// answer. Pure functions.

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/status.h"
#include "millrace/plan/why.h"

namespace millrace::plan {

struct MemoryModel {
  std::string basis;                   // "full-adamw", "measured", "GR00T guide", "given constants"
  Range fixed_gib;                     // weights, gradients, optimizer, what ZeRO-3 gathers
  Range per_sample_gib;                // activations and logits; > 0
  double overhead_gib = 0;             // CUDA context, NCCL buffers, fragmentation
  std::string confidence;              // "high", "medium", "low"
  std::optional<double> residual_gib;  // root mean square of measured - fitted
  Why why;
};

inline constexpr double kDefaultOverheadGib = 2;  // CUDA context of 0.5 to 1 GiB, NCCL buffers, fragmentation

// 5 + 2 + 1.2 x batch, in GiB: what the GPU strategy guide counts for GR00T, and for no other model.
MemoryModel guide_model();
inline constexpr const char* kGuideBasis = "GR00T guide";

// Bytes a parameter: of all weights, and of gradients and optimizer for those that are trained.
struct Preset {
  std::string_view name;
  std::string_view what;
  double weight_bytes;
  Range gradient_bytes;  // 16 or 32 bits
  double master_bytes;   // a copy in FP32
  double moment_bytes;
  double trainable;  // share of the parameters; 0: it must be given
};
std::span<const Preset> presets();

// What backward finds kept of a layer: everything; its input, attention and every other matrix product (torchtitan's
// policy by operations); its input alone.
enum class Recompute { kNone, kSelective, kFull };

struct ModelShape {
  double parameters = 0;            // of the whole model
  std::optional<double> trainable;  // share in (0, 1]; nothing: the preset's
  int64_t layers = 0;
  int64_t hidden = 0;
  int64_t tokens = 0;                 // a sample, of text
  int64_t images = 0;                 // a sample: cameras x frames
  int64_t image_tokens = 0;           // an image
  std::optional<int64_t> vocabulary;  // entries of the output layer; 0: the model has no logits
};

struct PresetOptions {
  std::string_view preset = "full-adamw";
  ModelShape shape;
  int zero_stage = 0;  // 1: optimizer, 2: gradients too, 3 (FSDP): weights too, divided by `shards`
  int64_t shards = 1;  // ranks that share one model's state
  Recompute recompute = Recompute::kNone;
  bool fused_loss = false;  // the loss is compiled or fused: no FP32 copy of the logits
  double overhead_gib = kDefaultOverheadGib;
  std::optional<double> per_sample_gib;  // instead of the formula for activations
};
// Errors: invalid_argument (no such preset, a stage outside 0..3, no trainable share where the preset has none, facts
// of the model that are missing: the message names all of them).
[[nodiscard]] Result<MemoryModel> preset_model(const PresetOptions& options);

struct Measured {
  int64_t batch = 0;  // samples on one GPU
  double gib = 0;     // peak that the framework allocated (torch.cuda.max_memory_allocated), not what nvidia-smi shows
};
// `prior` moved to what was measured: by least squares from two batch sizes on (of the prior only the overhead stays),
// by a shift of `fixed` with one. Errors: invalid_argument (nothing measured; one batch size and a prior without
// per_sample_gib; memory that does not grow with the batch, or so fast that less than nothing is fixed).
[[nodiscard]] Result<MemoryModel> calibrate(const MemoryModel& prior, std::span<const Measured> points);

struct Level {
  std::string_view name;  // "conservative", "recommended", "aggressive"
  double utilisation;     // of the usable memory
  int64_t batch_low;      // by the pessimistic end of the model; 0: not even one sample
  int64_t batch_high;
  Range used_gib;  // at batch_low
};

struct BatchPlan {
  double usable_gib = 0;
  int64_t max_low = 0;  // the largest batch that fits, by both ends of the model
  int64_t max_high = 0;
  std::vector<Level> levels;  // none passes max_low, max_high
  Why why;
};
inline constexpr int64_t kMaxBatch = 100'000;
// `usable_gib` as a driver counts it, before `overhead_gib`. Errors: invalid_argument, an answer that cannot be:
// samples that take nothing, more than kMaxBatch of them.
[[nodiscard]] Result<BatchPlan> plan_batch(const MemoryModel& model, double usable_gib);

// The guide's own table of batches (data/guide_batches.csv).
struct GuideRow {
  std::string_view gpu_id;  // of the catalogue
  std::string_view name;
  double gib;                      // the number on the box
  std::array<int64_t, 3> batches;  // conservative, recommended, aggressive
};
std::span<const GuideRow> guide_table();
// Where that table disagrees with the guide's own formula, with the arithmetic. Empty for a GPU that it does not have.
std::vector<std::string> guide_disagreements(std::string_view gpu_id);

}  // namespace millrace::plan
