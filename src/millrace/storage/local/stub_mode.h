// SPDX-License-Identifier: Apache-2.0
#pragma once

// The permissions of stubs (local.h), whose files have mode 0000 until their content is here. Thread-safe.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "millrace/storage/storage.h"

namespace millrace {

// The permissions that the file `path` gets with its content; nullopt: it is no stub, or they are not known. `file`:
// from stat().
using StubMode = std::function<std::optional<uint32_t>(const std::string& path, const ObjectInfo& file)>;
// Sets the function behind stub_mode(). Call it once, before other threads read.
void set_stub_mode(StubMode mode);
// Asks the function that was set about a file of local storage; nullopt without one.
std::optional<uint32_t> stub_mode(const ObjectInfo& file);

}  // namespace millrace
