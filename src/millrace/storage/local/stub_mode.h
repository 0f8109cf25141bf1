// SPDX-License-Identifier: Apache-2.0
#pragma once

// The permissions of stubs (local.h), whose files have mode 0000 until their content is here. Thread-safe.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "millrace/storage/storage.h"

namespace millrace {

// The permissions that the file `path` gets with its content; nullopt: it is no stub, or nobody knows. `file` is as
// stat has it.
using StubMode = std::function<std::optional<uint32_t>(const std::string& path, const ObjectInfo& file)>;
// Once, before threads read.
void set_stub_mode(StubMode mode);
// What was set says of a file of local storage; nullopt where nothing was.
std::optional<uint32_t> stub_mode(const ObjectInfo& file);

}  // namespace millrace
