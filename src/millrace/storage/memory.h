// SPDX-License-Identifier: Apache-2.0
#pragma once

// Storage in the memory of this process: for tests, and for small things that need a Storage. An object has at most
// 4 GiB; versions count commits.
// Thread-safe. Nothing survives the process; a child after fork has a copy of its own, and REQUIRES that no other
// thread was inside a call when it was forked.

#include <memory>
#include <string>

#include "millrace/storage/storage.h"

namespace millrace {

// `name` is for messages: "mem://name".
std::shared_ptr<Storage> make_memory_storage(std::string name);

}  // namespace millrace
