// SPDX-License-Identifier: Apache-2.0
#pragma once

// Converts user metadata of an object, its headers and tags, and the metadata that FSx for Lustre reads and writes
// (file-permissions: st_mode in octal; file-owner, file-group: numbers; file-atime, file-mtime:
// "1700000000000000000ns", without the unit milliseconds). Functions are thread-safe.

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "millrace/storage/storage.h"

namespace millrace::s3 {

inline constexpr std::string_view kMetadataPrefix = "x-amz-meta-";

// Returns the headers for a write, tags included. Errors: invalid_argument (more than 2 KiB of metadata, more than 10
// tags, or text that no header can hold).
[[nodiscard]] Result<std::vector<std::pair<std::string, std::string>>> metadata_headers(const WriteOptions& options);

// Moves the attributes out of `metadata`. Without file-permissions, returns nullopt and leaves `metadata` unchanged.
std::optional<PosixAttributes> take_posix(std::map<std::string, std::string>& metadata);

}  // namespace millrace::s3
