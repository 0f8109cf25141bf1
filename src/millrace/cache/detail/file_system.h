// SPDX-License-Identifier: Apache-2.0
#pragma once

// Which file systems are shared by several machines. Thread-safe.

#include <cstdint>
#include <string_view>

namespace millrace::cache {

// The name of a network or FUSE file system by its magic number of statfs(2); empty for a local one. There, mapped
// memory is not shared between machines, and locks may be missing.
std::string_view network_file_system(uint64_t magic);

}  // namespace millrace::cache
