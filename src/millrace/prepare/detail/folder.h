// SPDX-License-Identifier: Apache-2.0
#pragma once

// Operations of prepare, finish and split on their output folder, besides writing shards and parts. Thread-safe.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "millrace/storage/url.h"

namespace millrace::prepare {

// Returns name and size of each file directly in `folder` whose name starts with `head`.
[[nodiscard]] Result<std::map<std::string, int64_t>> folder_files(const Location& folder, std::string_view head = {});

// Returns the content of `name`; nullopt if it is absent.
[[nodiscard]] Result<std::optional<std::string>> read_if_there(const Location& folder, std::string_view name);

// Writes `name` durably unless it holds exactly `content` already.
[[nodiscard]] Status write_if_different(const Location& folder, std::string_view name, std::string_view content);

// Checks the free space. Errors: resource_exhausted if `folder` is known to have less than `need_bytes` free; the
// message gives both numbers.
[[nodiscard]] Status check_space(const Location& folder, int64_t need_bytes);

}  // namespace millrace::prepare
