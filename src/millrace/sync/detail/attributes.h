// SPDX-License-Identifier: Apache-2.0
#pragma once

// Compares owner, mode and times of the two files of a copy.

#include <optional>

#include "millrace/storage/storage.h"

namespace millrace::sync {

// Whether a copy of a file with `wanted` would leave `found` at the target as it is. True where nothing is wanted.
// Owners are compared only where this process may set them: elsewhere each run would try it again.
bool same_attributes(const Storage& target, const std::optional<PosixAttributes>& wanted,
                     const std::optional<PosixAttributes>& found);
// Those that a copy of this file gets, which has the content of a released file of a link, and so its permissions.
std::optional<PosixAttributes> attributes_of_content(const Storage& storage, const ObjectInfo& file);

}  // namespace millrace::sync
