// SPDX-License-Identifier: Apache-2.0
#pragma once

// Reads a small file of this machine whole. Thread-safe.

#include <filesystem>
#include <optional>
#include <string>

namespace millrace {

// Returns the whole file; nullopt if it cannot be read. Reads to the end, because files of /proc have no size.
// std::istreambuf_iterator is no replacement: it throws where a read fails, as of a directory, or of a file of /proc
// whose process ends meanwhile.
std::optional<std::string> read_text(const std::filesystem::path& path);

}  // namespace millrace
