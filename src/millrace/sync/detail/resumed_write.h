// SPDX-License-Identifier: Apache-2.0
#pragma once

// The part of the same copy that an earlier process left. The copy does not trust it, but reads and compares it.
// Belongs to one thread.

#include <map>
#include <memory>
#include <string>

#include "millrace/sync/detail/copy_plan.h"
#include "millrace/sync/detail/resume_note.h"

namespace millrace::sync {

struct ResumedWrite {
  std::unique_ptr<Writer> writer;            // null: none was left
  ResumeNote note;                           // where notes are kept
  std::map<int64_t, std::string> part_md5s;  // by offset, elsewhere
  bool has_vanished = false;                 // an upload was listed, and then was not there
};

// Leftovers of this key that belong to another copy go, where a lock proves that no process writes them; elsewhere they
// stay. Parts of more than `part_limit_bytes` cannot be checked or resumed.
[[nodiscard]] Result<ResumedWrite> find_resumable(const CopyJob& job, const CopyPlan& plan, int64_t part_limit_bytes);

// Identifies this copy in notes.
Hash128 identity_of(const CopyJob& job, const CopyPlan& plan, int64_t part_bytes);

}  // namespace millrace::sync
