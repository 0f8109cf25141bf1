// SPDX-License-Identifier: Apache-2.0
#pragma once

// The GPUs, each figure with its source (data/gpus.csv, data/sources.csv). TFLOPS are always dense 16-bit tensor
// operations (bf16, or fp16 without bf16) accumulated in FP32, never sparse and never of the shader cores. Memory is
// the number that a driver or the cloud's own table gives in MiB, not the number on the box. Functions are pure and
// thread-safe.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/status.h"
#include "millrace/plan/why.h"

namespace millrace::plan {

struct Source {
  std::string_view name;
  std::string_view text;
  std::string_view date;
  std::string_view confidence;  // "checked": two sources agree; "stated": one; "unconfirmed"
};

struct Figure {
  double value = 0;
  const Source* source = nullptr;

  std::string source_text() const;  // "torchtitan's table of peaks (2026-02), checked"
};

// A whole GPU, or a MIG slice of one.
struct Gpu {
  std::string id;    // "h100-nvl", "h100-nvl:1g.12gb"
  std::string name;  // "NVIDIA H100 NVL"
  Figure memory_mib;
  Figure tflops;
  Figure bandwidth_gb_per_s;
  std::string_view compute_capability;
  bool bf16 = true;
  double mig_gb = 0;  // the size in the names of MIG profiles: 94 for "1g.12gb"; 0: no MIG
  std::string note;
};

std::span<const Gpu> gpus();
// Returns a row of sources.csv. REQUIRES: it has a source with this name.
const Source& source_of(std::string_view name);

// Finds a GPU by id, or by its name in a driver, a shop or Slurm: "NVIDIA H100 80GB HBM3", "gpul40s", "rtx4090",
// "h100_1g.12gb" and "h100-nvl:1g.12gb" for MIG slices. Error: not_found, with the nearest names.
[[nodiscard]] Result<Gpu> find_gpu(std::string_view name);

// Returns memory, TFLOPS and bandwidth with their sources, for an answer's Why.
std::vector<Term> terms_of(const Gpu& gpu);

// Returns the profiles into which MIG can cut `gpu`, smallest first; none without MIG.
std::vector<Gpu> mig_slices(const Gpu& gpu);

enum class Measure { kTflops, kMemory, kBandwidth };
// Returns the GPUs best first; equal ones keep their order.
std::vector<Gpu> ranked(std::vector<Gpu> gpus, Measure by);

}  // namespace millrace::plan
