// SPDX-License-Identifier: Apache-2.0
#pragma once

// Owner, mode and times of the two files of a copy.

#include <optional>

#include "millrace/storage/storage.h"

namespace millrace::sync {

// Whether `found` at the target is what a copy of a file with `wanted` gives it there. True where none are wanted.
// Owners count where this process may give them: elsewhere they would be asked for again and again.
bool same_attributes(const Storage& target, const std::optional<PosixAttributes>& wanted,
                     const std::optional<PosixAttributes>& found);

}  // namespace millrace::sync
