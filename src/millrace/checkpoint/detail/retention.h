// SPDX-License-Identifier: Apache-2.0
#pragma once

// What goes after a commit: steps that the rules do not keep, and attempts that will never commit. Run by the committer
// only; free functions that block.

#include <cstdint>
#include <string>

#include "millrace/base/status.h"
#include "millrace/storage/url.h"

namespace millrace::checkpoint {

struct Retention {
  int64_t keep_last = 0;  // as in SaverOptions
  int64_t keep_every = 0;
};

// `step` was just committed by `attempt`. Removes, a step's manifest before its files:
//  - committed steps below `step` that `retention` does not keep, unless a newer attempt committed them;
//  - attempts at `step` that are older than `attempt`;
//  - with `sweep`, at every step: attempts that are older, or this one's at steps below (they failed), and that no
//    manifest names; and writes that dead processes began.
// Errors: the first failure, after trying all; what is left is found again by the next sweep.
[[nodiscard]] Status clean_up(const Location& root, int64_t step, const std::string& attempt,
                              const Retention& retention, bool sweep);

}  // namespace millrace::checkpoint
