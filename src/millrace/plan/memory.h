// SPDX-License-Identifier: Apache-2.0
#pragma once

// How large a batch fits one GPU. memory(batch) = overhead + max(floor, fixed + per_sample x batch), where `fixed` and
// `per_sample` come from a model's shape and its optimizer, from measured peaks, or are given, and `floor` is what the
// optimizer's step takes whatever the batch is. A prior is a range, and so is the answer. Pure functions.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "millrace/base/status.h"
#include "millrace/plan/why.h"

namespace millrace::plan {

struct Measured {
  int64_t batch = 0;  // samples on one GPU
  double gib = 0;     // peak that the framework allocated (torch.cuda.max_memory_allocated), not what nvidia-smi shows
  // Peak that its allocator reserved in the same run (torch.cuda.max_memory_reserved), with what is split into pieces
  // that nothing fits into. nullopt: not measured.
  std::optional<double> reserved_gib{};
};

// The limit that bounds a measured peak.
enum class Bound {
  kActivations,  // grows with the batch
  kStep,         // the optimizer's step, where the batch is too small for its activations to count
  kOpen,         // the points cannot tell
};
struct PlacedPoint {
  Measured point;
  Bound bound = Bound::kActivations;
};

struct MemoryLine {
  double fixed_gib = 0, per_sample_gib = 0;
};

struct MemoryModel {
  std::string basis;                   // "full-adamw", "measured", "GR00T guide", "given constants"
  Range fixed_gib;                     // weights, gradients, optimizer, layers that ZeRO-3 gathers
  Range per_sample_gib;                // activations and logits; > 0
  double overhead_gib = 0;             // CUDA context, NCCL buffers, fragmentation
  std::string confidence;              // "high", "medium", "low"
  std::optional<double> residual_gib;  // root mean square of measured - fitted
  double floor_gib = 0;                // no batch takes less
  // The pessimistic and the optimistic line, where their ends of `fixed_gib` and `per_sample_gib` belong together.
  std::optional<std::pair<MemoryLine, MemoryLine>> ends;
  std::optional<int64_t> known_to;  // no answer beyond this batch
  std::vector<PlacedPoint> points;  // that were measured, by batch
  Why why;
};

inline constexpr double kDefaultOverheadGib = 2;  // CUDA context of 0.5 to 1 GiB, NCCL buffers, fragmentation

// Bytes per parameter: of all weights, and of gradients and optimizer state for the trained ones.
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

// The parts of a layer kept for backward: everything; its input, attention and every other matrix product (torchtitan's
// policy by operations); its input alone.
enum class Recompute { kNone, kSelective, kFull };

struct ModelShape {
  double parameters = 0;            // of the whole model
  std::optional<double> trainable;  // share in (0, 1]; nullopt: the preset's
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

// `prior` fitted to measured peaks; only its overhead stays. The peak is the larger of two lines: that of the
// optimizer's step, which is flat, and that of the activations. The points of the larger batches that lie on one line
// give the second; three at least, else there is no answer beyond the largest batch that was measured (`known_to`).
// Reserved peaks give a pessimistic end: the allocator's reserve grows faster than what is allocated, so its last rise
// counts. One batch size alone shifts the `fixed` of a prior with per_sample_gib. Errors: invalid_argument (nothing
// measured; one batch size and no such prior; a reserve below what is allocated; memory that does not grow with the
// batch, or so fast that `fixed` is negative).
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
// `usable_gib` as a driver counts it, before `overhead_gib`. Errors: invalid_argument for an impossible answer: samples
// without memory, more than kMaxBatch of them, or more than the measured points can tell of.
[[nodiscard]] Result<BatchPlan> plan_batch(const MemoryModel& model, double usable_gib);

}  // namespace millrace::plan
