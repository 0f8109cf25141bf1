// SPDX-License-Identifier: Apache-2.0
#pragma once

// Counters that the kernel shows in /proc and /sys. Sources: proc(5), Documentation/admin-guide/iostats.rst,
// accounting/psi.rst and cgroup-v2.rst of Linux; the counters of EFA are those of its driver. Thread-safe.

#include <filesystem>

#include "millrace/monitor/sample.h"

namespace millrace::monitor {

// Other folders than the real ones are recordings.
struct Roots {
  std::filesystem::path proc = "/proc";
  std::filesystem::path sys = "/sys";
};

// Adds processors, pressure, memory, cgroup limits, disks, network and RDMA. What the node lacks goes to `missing`.
void read_node(const Roots& roots, Sample& sample);
// Adds what NFS and Lustre clients count. A node that mounts none of them lacks nothing.
void read_clients(const Roots& roots, Sample& sample);

}  // namespace millrace::monitor
