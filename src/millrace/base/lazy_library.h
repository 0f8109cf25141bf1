// SPDX-License-Identifier: Apache-2.0
#pragma once

// Shared libraries of this build that wrap a large dependency (Arrow, FFmpeg). They are opened on first use, so
// programs that do not need them start fast and run without them. Thread-safe; a library is never closed.

#include <filesystem>
#include <string_view>
#include <vector>

#include "millrace/base/status.h"

namespace millrace {

struct LazyLibrary {
  const char* file = "";            // its name, with no folder
  const char* version_symbol = "";  // a `const char[]` that must equal `version`, which proves one build
  std::string_view version;
  std::string_view missing;  // the error if there is no such file: "this build of Millrace has no Parquet"
  std::string_view install;  // how to install the library, for messages
};

// Returns the handle for dlsym. Looks next to this code (the Python package), in the Python package of the program's
// environment, and in the folders of the other rooms of the same build. Errors: unsupported (no such file; a library
// that it needs is missing; the file belongs to another build).
[[nodiscard]] Result<void*> open_lazy_library(const LazyLibrary& library);

// Opens the library at `path`. Does not use `file` and `missing`.
[[nodiscard]] Result<void*> open_lazy_library_at(const std::filesystem::path& path, const LazyLibrary& library);

// Returns the folders that open_lazy_library searches, in its order.
[[nodiscard]] std::vector<std::filesystem::path> lazy_library_folders();

// Returns the folders of the Python package `name` in the environment in which this code or this program is installed.
[[nodiscard]] std::vector<std::filesystem::path> package_folders(std::string_view name);

// Returns the paths that match a shell pattern, sorted.
[[nodiscard]] std::vector<std::filesystem::path> matching_paths(const std::filesystem::path& pattern);

}  // namespace millrace
