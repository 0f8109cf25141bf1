// SPDX-License-Identifier: Apache-2.0
#pragma once

// Recognises file systems that several machines share. Thread-safe.

#include <cstdint>
#include <string_view>

namespace millrace::cache {

// Returns the name of a network or FUSE file system by its magic number of statfs(2); empty for a local one. On a
// network file system, mapped memory is not shared between machines, and locks may be missing.
std::string_view network_file_system(uint64_t magic);

}  // namespace millrace::cache
