// SPDX-License-Identifier: Apache-2.0
#pragma once

// Computes how large a batch fits one GPU. memory(batch) = overhead + max(floor, fixed + per_sample x batch). `fixed`
// and `per_sample` come from a model's shape and its optimizer, from measured peaks, or are given. `floor` is the
// memory of the optimizer's step, whatever the batch is. A prior is a range, and so is the answer. Pure functions.

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
  // The peak that the framework's allocator reserved in the same run (torch.cuda.max_memory_reserved), including
  // fragments too small to use. nullopt: not measured.
  std::optional<double> reserved_gib{};
};

// The limit that bounds a measured peak.
enum class Bound {
  kActivations,  // grows with the batch
  kStep,         // the optimizer's step: the batch is too small for its activations to count
  kOpen,         // the points do not tell
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
  Range fixed_gib;                     // weights, gradients, optimizer, layers gathered by ZeRO-3
  Range per_sample_gib;                // activations and logits; > 0
  double overhead_gib = 0;             // CUDA context, NCCL buffers, fragmentation
  std::string confidence;              // "high", "medium", "low"
  std::optional<double> residual_gib;  // root mean square of measured - fitted
  double floor_gib = 0;                // the least memory of any batch
  // The pessimistic and the optimistic line, if the ends of `fixed_gib` and `per_sample_gib` belong together.
  std::optional<std::pair<MemoryLine, MemoryLine>> ends;
  std::optional<int64_t> known_to;  // the largest batch with an answer
  std::vector<PlacedPoint> points;  // measured points, by batch
  Why why;
};

inline constexpr double kDefaultOverheadGib = 2;  // CUDA context of 0.5 to 1 GiB, NCCL buffers, fragmentation

// Bytes per parameter: for all weights, and for gradients and optimizer state of the trained ones.
struct Preset {
  std::string_view name;
  std::string_view what;
  double weight_bytes;
  Range gradient_bytes;  // 16 or 32 bits
  double master_bytes;   // a copy in FP32
  double moment_bytes;
  double trainable;  // share of the parameters; 0: must be given
};
std::span<const Preset> presets();

// The parts of a layer that are kept for the backward pass. kNone: everything. kSelective: its input, attention and
// every other matrix product (torchtitan's policy by operations). kFull: its input alone.
enum class Recompute { kNone, kSelective, kFull };

struct ModelShape {
  double parameters = 0;            // of the whole model
  std::optional<double> trainable;  // share in (0, 1]; nullopt: the preset's
  int64_t layers = 0;
  int64_t hidden = 0;
  int64_t tokens = 0;                 // text tokens per sample
  int64_t images = 0;                 // per sample: cameras x frames
  int64_t image_tokens = 0;           // per image
  std::optional<int64_t> vocabulary;  // entries of the output layer; 0: the model has no logits
};

struct PresetOptions {
  std::string_view preset = "full-adamw";
  ModelShape shape;
  int zero_stage = 0;  // 1: optimizer, 2: gradients too, 3 (FSDP): weights too, divided by `shards`
  int64_t shards = 1;  // ranks that share the state of one model
  Recompute recompute = Recompute::kNone;
  bool fused_loss = false;  // the loss is compiled or fused: no FP32 copy of the logits
  double overhead_gib = kDefaultOverheadGib;
  std::optional<double> per_sample_gib;  // replaces the formula for activations
};
// Builds a model from a preset. Errors: invalid_argument (unknown preset, a stage outside 0..3, no trainable share if
// the preset has none, missing facts of the model: the message names all of them).
[[nodiscard]] Result<MemoryModel> preset_model(const PresetOptions& options);

// Fits `prior` to measured peaks; only its overhead stays. A peak is the larger of two lines: the flat one of the
// optimizer's step, and the one of the activations. The points of the larger batches that are on one line give the
// second line. It needs at least three points; otherwise there is no answer beyond the largest measured batch
// (`known_to`). Reserved peaks give a pessimistic end: the allocator's reserve grows faster than the allocated memory,
// so its last rise counts. A single batch size only shifts the `fixed` of a prior with per_sample_gib. Errors:
// invalid_argument (nothing measured; one batch size and no such prior; a reserve below the allocated memory; memory
// that does not grow with the batch, or so fast that `fixed` is negative).
[[nodiscard]] Result<MemoryModel> calibrate(const MemoryModel& prior, std::span<const Measured> points);

struct Level {
  std::string_view name;  // "conservative", "recommended", "aggressive"
  double utilisation;     // share of the usable memory
  int64_t batch_low;      // by the pessimistic end of the model; 0: not even one sample
  int64_t batch_high;
  Range used_gib;  // at batch_low
};

struct BatchPlan {
  double usable_gib = 0;
  // The largest batch that fits, by the pessimistic and by the optimistic end of the model.
  int64_t max_low = 0;
  int64_t max_high = 0;
  std::vector<Level> levels;  // none is above max_low, max_high
  Why why;
};
inline constexpr int64_t kMaxBatch = 100'000;
// Plans the batch. `usable_gib` is the memory that a driver reports, before `overhead_gib`. Errors: invalid_argument
// for an impossible answer: samples without memory, more than kMaxBatch samples, or more than the measured points
// allow.
[[nodiscard]] Result<BatchPlan> plan_batch(const MemoryModel& model, double usable_gib);

}  // namespace millrace::plan
