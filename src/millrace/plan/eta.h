// SPDX-License-Identifier: Apache-2.0
#pragma once

// How long a run takes and what it costs, as a range. A step is computing, or waiting for data where that takes longer,
// then the exposed part of the gradients' exchange, then its part of a checkpoint. Pure functions.

#include <cstdint>
#include <optional>

#include "millrace/base/status.h"
#include "millrace/plan/catalogue.h"
#include "millrace/plan/why.h"

namespace millrace::plan {

struct EtaOptions {
  double steps = 0;          // optimizer steps, or passes of one micro batch
  bool micro_steps = false;  // the latter
  int64_t micro = 1;         // samples a GPU and pass
  int64_t gpus = 1;
  int64_t accumulation = 1;
  int64_t model_parallel = 1;  // GPUs that hold one copy of the model

  // Forward and backward of one sample on one GPU: measured, or from the model's size.
  double sample_s = 0;             // measured; 0: from the model
  double tolerance = 0.1;          // of the measurement, both ways
  std::optional<Gpu> measured_on;  // nullopt: on `gpu`
  std::optional<Gpu> gpu;
  double parameters = 0;
  double tokens = 0;            // a sample
  Range utilisation{0.3, 0.5};  // of the GPU's peak (MFU)
  bool recompute = false;       // one more forward pass

  double sample_bytes = 0;         // read for one sample; 0: not counted
  double read_bytes_per_s = 0;     // by all ranks together
  double gradient_bytes = 0;       // of the whole model, exchanged a step; 0: not counted
  double network_bytes_per_s = 0;  // of one GPU
  double checkpoint_bytes = 0;     // 0: no checkpoints, unless a stall is given
  double write_bytes_per_s = 0;
  double checkpoint_stall_s = 0;      // instead of bytes / rate
  double checkpoint_every_steps = 0;  // optimizer steps
  std::optional<double> usd_per_gpu_hour;
};

struct EtaPlan {
  Range sample_s;     // of one GPU (one copy, when several hold it)
  Range compute_s;    // of a step, as all below
  double read_s = 0;  // for its data, hidden behind computing
  Range exposed_read_s;
  Range sync_s;
  double checkpoint_s = 0;  // its part
  Range step_s;
  double steps = 0;  // optimizer steps
  Range total_s;
  Range samples_per_s;
  Range gpu_hours;
  std::optional<Range> usd;
  Why why;
};
// Errors: invalid_argument (no steps, neither a measured time nor a model, a rate that is missing, GPUs that the
// model's copies do not divide).
[[nodiscard]] Result<EtaPlan> plan_eta(const EtaOptions& options);

// The time of a sample on `to`, from `seconds` on `from`: between the ratio of compute and the ratio of bandwidth.
Range transferred_s(Range seconds, const Gpu& from, const Gpu& to);

}  // namespace millrace::plan
