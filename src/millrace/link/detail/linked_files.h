// SPDX-License-Identifier: Apache-2.0
#pragma once

// Helpers for releasing and restoring: the files of a link by their paths in its state. Functions are thread-safe.

#include <functional>
#include <string>
#include <string_view>

#include "millrace/link/config.h"
#include "millrace/link/state.h"

namespace millrace::link {

std::string whole_path(const LinkConfig& config, std::string_view path);
// Makes an error from errno: "open /fsx/data/a: ...".
Error file_error(std::string_view what, const std::string& path);
// Calls `visit` for the file `below`, or for all files in the folder `below`; "": all files of the link. Errors: those
// of the state and of `visit`.
[[nodiscard]] Status for_each_file(LinkState& state, const std::string& below,
                                   const std::function<Status(const LinkFile&)>& visit);
// Checks that a file or folder exists at `below`. Errors: not_found.
[[nodiscard]] Status check_there(const LinkConfig& config, const std::string& below);

}  // namespace millrace::link
