// SPDX-License-Identifier: Apache-2.0
#pragma once

// Headers, metadata and tags of the two objects of a copy.

#include "millrace/sync/detail/copy_plan.h"

namespace millrace::sync {

// Sets in `plan.write` what the new object gets beside its bytes, and `plan.same_attributes`. Reads as little as it
// can: nothing where the server copies an object in one request. REQUIRES: all else of the plan is made. Errors:
// permission_denied (the tags of the source may not be read: the message names the flag), corruption (the source
// changed).
[[nodiscard]] Status plan_properties(const CopyJob& job, CopyPlan& plan);

// Errors: permission_denied (they may not be read: the message names the flag that leaves them out).
[[nodiscard]] Result<ObjectTags> read_source_tags(const CopyJob& job);

// Whether an object that is there has what `wanted` asks for. Reads its tags where `wanted` or `all_tags` asks for
// them.
bool has_properties(Storage& storage, const ObjectInfo& object, const WriteOptions& wanted, bool all_tags);

}  // namespace millrace::sync
