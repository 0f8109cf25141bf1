// SPDX-License-Identifier: Apache-2.0
#pragma once

// Compares owner, mode and times of the two files of a copy.

#include <optional>

#include "millrace/storage/storage.h"

namespace millrace::sync {

// Whether a file at the target with the attributes `found` already has the attributes `wanted`. True if nothing is
// wanted. Compares owners only if this process may set them, because otherwise each run would try again.
bool same_attributes(const Storage& target, const std::optional<PosixAttributes>& wanted,
                     const std::optional<PosixAttributes>& found);
// Returns the attributes for a copy of `file`. If `file` is a released file of a link, the copy has the content, and
// so the permissions that belong to the content.
std::optional<PosixAttributes> attributes_of_content(const Storage& storage, const ObjectInfo& file);

}  // namespace millrace::sync
