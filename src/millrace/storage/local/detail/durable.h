// SPDX-License-Identifier: Apache-2.0
#pragma once

// Private to local/: visible files made to survive a power cut, many at once. Thread-safe.

#include <cstdint>
#include <span>
#include <string>

#include "millrace/storage/local/detail/files.h"

namespace millrace::local {

// From so many files on, one write-out of the whole file system costs less than one of each.
inline constexpr size_t kFewestForAll = 16;
// Which is not asked for where more than this waits to be written, most of it by others: all of that would be waited
// for.
inline constexpr int64_t kMostDirtyBytes = 512 << 20;

// The file system that `root` lies on, where syncfs() writes all of it out and answers the errors of any file since
// this was opened; else nothing.
FileSystem open_file_system(Syscalls& sys, const std::string& root);

// Makes the files and the directories above them survive a power cut. Errors: those of each file; not_found.
[[nodiscard]] Status make_files_durable(const Context& context, std::span<const std::string> paths);

}  // namespace millrace::local
