// SPDX-License-Identifier: Apache-2.0
#pragma once

// What releasing and restoring share: files of a link by the paths of its state. Functions are thread-safe.

#include <functional>
#include <string>
#include <string_view>

#include "millrace/link/config.h"
#include "millrace/link/state.h"

namespace millrace::link {

std::string whole_path(const LinkConfig& config, std::string_view path);
// The error of errno: "open /fsx/data/a: ...".
Error file_error(std::string_view what, const std::string& path);
// Calls `visit` for the file that `below` is, and for those of the folder that it is; "": all. Errors: those of the
// state and of `visit`.
[[nodiscard]] Status for_each_file(LinkState& state, const std::string& below,
                                   const std::function<Status(const LinkFile&)>& visit);
// Errors: not_found: nothing is at `below`.
[[nodiscard]] Status check_there(const LinkConfig& config, const std::string& below);

}  // namespace millrace::link
