// SPDX-License-Identifier: Apache-2.0
#pragma once

// Reads GPUs through NVML, NVIDIA's management library, opened at run time. The layouts of its structures are those of
// nvml.h 12.9 to 13.5. If the driver lacks a call, its value is left out. Not thread-safe.

#include <memory>
#include <string>

#include "millrace/base/status.h"
#include "millrace/monitor/sample.h"

namespace millrace::monitor {

class Nvml {
 public:
  // Opens the library. Errors: unsupported (no such library, or one without NVML's functions), unavailable (NVML does
  // not start: no driver, or one that was upgraded since it was loaded).
  [[nodiscard]] static Result<std::unique_ptr<Nvml>> open(const std::string& library);
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  // Adds each GPU's values with the label `gpu`. Adds a GPU that fell off the bus to `missing`.
  void read(Sample& sample);

 private:
  struct Calls;
  explicit Nvml(std::unique_ptr<Calls> calls);
  void read_events(Sample& sample);
  void read_gpm(void* device, int64_t instance, const Labels& labels, Sample& sample);
  void read_migs(void* device, const std::string& gpu, Sample& sample);
  void read_gpu(void* device, const std::string& gpu, Sample& sample);
  std::unique_ptr<Calls> calls_;
};

}  // namespace millrace::monitor
