// SPDX-License-Identifier: Apache-2.0
#pragma once

// The part of the same copy that an earlier process left. The copy reads and compares this part instead of trusting
// it. Belongs to one thread.

#include <map>
#include <memory>
#include <string>

#include "millrace/sync/detail/copy_plan.h"
#include "millrace/sync/detail/resume_note.h"

namespace millrace::sync {

struct ResumedWrite {
  std::unique_ptr<Writer> writer;            // null: no write was left
  ResumeNote note;                           // set if the storage keeps notes
  std::map<int64_t, std::string> part_md5s;  // by offset; set if the storage keeps no notes
  bool has_vanished = false;                 // an upload was listed, but was gone afterwards
};

// Finds the part that an earlier process left. Removes leftovers of this key that belong to another copy, if a lock
// proves that no process writes them; otherwise they stay. Parts of more than `part_limit_bytes` cannot be checked or
// resumed.
[[nodiscard]] Result<ResumedWrite> find_resumable(const CopyJob& job, const CopyPlan& plan, int64_t part_limit_bytes);

// Returns the identity of this copy for its notes.
Hash128 identity_of(const CopyJob& job, const CopyPlan& plan, int64_t part_bytes);

}  // namespace millrace::sync
