// SPDX-License-Identifier: Apache-2.0
#pragma once

// The permissions of stubs (local.h). A stub has mode 0000 until its content is on this machine. Thread-safe.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "millrace/storage/storage.h"

namespace millrace {

// Returns the permissions that the file `path` gets with its content; nullopt: the file is no stub, or they are
// unknown. `file`: the result of stat().
using StubMode = std::function<std::optional<uint32_t>(const std::string& path, const ObjectInfo& file)>;
// Sets the function that stub_mode() calls. Call it once, before other threads read.
void set_stub_mode(StubMode mode);
// Calls the function that was set for a file of local storage; nullopt if none was set.
std::optional<uint32_t> stub_mode(const ObjectInfo& file);

}  // namespace millrace
