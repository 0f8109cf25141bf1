// SPDX-License-Identifier: Apache-2.0
#pragma once

// Plans and compares headers, metadata and tags of the two objects of a copy.

#include "millrace/sync/detail/copy_plan.h"

namespace millrace::sync {

// Sets the headers, metadata and tags of the new object in `plan.write`, and sets `plan.same_attributes`. Reads as
// little as possible: nothing if the server copies an object in one request. REQUIRES: the rest of the plan is made.
// Errors: permission_denied (the tags of the source may not be read; the message names the flag), corruption (the
// source changed).
[[nodiscard]] Status plan_properties(const CopyJob& job, CopyPlan& plan);

// Reads the tags of the source. Errors: permission_denied (they may not be read; the message names the flag that skips
// tags).
[[nodiscard]] Result<ObjectTags> read_source_tags(const CopyJob& job);

// Whether an existing object has the properties in `wanted`. Reads its tags if `wanted` or `all_tags` requires them.
bool has_properties(Storage& storage, const ObjectInfo& object, const WriteOptions& wanted, bool all_tags);

}  // namespace millrace::sync
