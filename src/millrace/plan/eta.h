// SPDX-License-Identifier: Apache-2.0
#pragma once

// Estimates how long a run takes and what it costs, as ranges. A step takes the time to compute, or to read its data
// if that is longer; then the exposed part of the gradient exchange; then its share of a checkpoint. Pure functions.

#include <cstdint>
#include <optional>

#include "millrace/base/status.h"
#include "millrace/plan/catalogue.h"
#include "millrace/plan/why.h"

namespace millrace::plan {

struct EtaOptions {
  double steps = 0;          // optimizer steps, or micro-batch passes
  bool micro_steps = false;  // `steps` counts micro-batch passes
  int64_t micro = 1;         // samples per GPU and pass
  int64_t gpus = 1;
  int64_t accumulation = 1;
  int64_t model_parallel = 1;  // GPUs that hold one copy of the model

  // Forward and backward pass of one sample on one GPU: measured, or from the model's size.
  double sample_s = 0;             // measured; 0: from the model
  double tolerance = 0.1;          // relative error of the measurement, both ways
  std::optional<Gpu> measured_on;  // the measured GPU; nullopt: `gpu`
  std::optional<Gpu> gpu;
  double parameters = 0;
  double tokens = 0;            // per sample
  Range utilisation{0.3, 0.5};  // share of the GPU's peak (MFU)
  bool recompute = false;       // one more forward pass

  double sample_bytes = 0;         // read for one sample; 0: not counted
  double read_bytes_per_s = 0;     // all ranks together
  double gradient_bytes = 0;       // gradients of the whole model, exchanged per step; 0: not counted
  double network_bytes_per_s = 0;  // per GPU
  double checkpoint_bytes = 0;     // 0: no checkpoints, unless a stall is given
  double write_bytes_per_s = 0;
  double checkpoint_stall_s = 0;      // used instead of bytes / rate
  double checkpoint_every_steps = 0;  // optimizer steps
  std::optional<double> usd_per_gpu_hour;
};

struct EtaPlan {
  Range sample_s;     // on one GPU (or one copy of the model, if several GPUs hold it)
  Range compute_s;    // per step, as all times below
  double read_s = 0;  // time to read its data, hidden behind computing
  Range exposed_read_s;
  Range sync_s;
  double checkpoint_s = 0;  // its share of a checkpoint
  Range step_s;
  double steps = 0;  // optimizer steps
  Range total_s;
  Range samples_per_s;
  Range gpu_hours;
  std::optional<Range> usd;
  Why why;
};
// Estimates time and cost. Errors: invalid_argument (no steps, neither a measured time nor a model, a missing rate,
// GPUs that the model's copies do not divide).
[[nodiscard]] Result<EtaPlan> plan_eta(const EtaOptions& options);

// Estimates a sample's time on `to` from `seconds` on `from`: between the ratio of compute and the ratio of bandwidth.
Range transferred_s(Range seconds, const Gpu& from, const Gpu& to);

}  // namespace millrace::plan
