// SPDX-License-Identifier: Apache-2.0
#pragma once

// Counters that the kernel shows in /proc and /sys. Sources: proc(5), Documentation/admin-guide/iostats.rst,
// accounting/psi.rst and cgroup-v2.rst of Linux; the counters of EFA are those of its driver. Thread-safe.

#include <filesystem>

#include "millrace/monitor/sample.h"

namespace millrace::monitor {

// The folders to read. Tests use recordings instead of the real ones.
struct Roots {
  std::filesystem::path proc = "/proc";
  std::filesystem::path sys = "/sys";
};

// Adds processors, pressure, memory, cgroup limits, disks, network and RDMA. Adds parts that the node lacks to
// `missing`.
void read_node(const Roots& roots, Sample& sample);
// Adds the counters of NFS and Lustre clients. A node without such mounts counts as complete.
void read_clients(const Roots& roots, Sample& sample);

}  // namespace millrace::monitor
