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
  const char* version_symbol = "";  // a `const char[]` that must equal `version`: library and program are one build
  std::string_view version;
  std::string_view missing;  // the error if there is no such file: "this build of Millrace has no Parquet"
  std::string_view install;  // the way out, for messages
};

// Returns the handle for dlsym. Looks beside this code (the Python package), in the package of the program's
// environment, and in the folders of the other rooms of the same build.
// Errors: unsupported (no such file; a library that it needs is missing; it belongs to another build).
[[nodiscard]] Result<void*> open_lazy_library(const LazyLibrary& library);

// The same of a file that is known; `file` and `missing` are not used.
[[nodiscard]] Result<void*> open_lazy_library_at(const std::filesystem::path& path, const LazyLibrary& library);

// Where open_lazy_library looks, in its order.
[[nodiscard]] std::vector<std::filesystem::path> lazy_library_folders();

// Folders of the Python package `name` in the environment that this code or this program is installed in.
[[nodiscard]] std::vector<std::filesystem::path> package_folders(std::string_view name);

// The paths that a shell's pattern matches, sorted.
[[nodiscard]] std::vector<std::filesystem::path> matching_paths(const std::filesystem::path& pattern);

}  // namespace millrace
