// SPDX-License-Identifier: Apache-2.0
#pragma once

// Storage in the memory of this process, for tests and small data. An object has at most 4 GiB. Versions count
// commits. Thread-safe. The content ends with the process. A forked child has its own copy. REQUIRES: no other thread
// is inside a call at the fork.

#include <memory>
#include <string>

#include "millrace/storage/storage.h"

namespace millrace {

// Makes an empty storage. `name` is for messages: "mem://name".
std::shared_ptr<Storage> make_memory_storage(std::string name);

}  // namespace millrace
