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

// Name and size of what lies directly in `folder` and starts with `head`.
[[nodiscard]] Result<std::map<std::string, int64_t>> folder_files(const Location& folder, std::string_view head = {});

// The content of `name`, nullopt when it is absent.
[[nodiscard]] Result<std::optional<std::string>> read_if_there(const Location& folder, std::string_view name);

// Writes `name` durably unless it holds exactly `content` already.
[[nodiscard]] Status write_if_different(const Location& folder, std::string_view name, std::string_view content);

// Errors: resource_exhausted when `folder` is known to have less than `need_bytes` free, saying both.
[[nodiscard]] Status check_space(const Location& folder, int64_t need_bytes);

}  // namespace millrace::prepare
