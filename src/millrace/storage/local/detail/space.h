// SPDX-License-Identifier: Apache-2.0
#pragma once

// Private to local/: how much an ordinary write may still use. Thread-safe.

#include <string>

#include "millrace/storage/local/detail/files.h"

namespace millrace::local {

// At `path`, or at the nearest directory above that exists: the least of what the file system has, which is also what
// the quota of a directory tree leaves (XFS, ext4 projects), and of what the quotas of this user and its group leave.
// Nothing holds root.
[[nodiscard]] Result<FreeSpace> free_space_at(const Context& context, std::string path);

// What a quota leaves of its limit; both limits 0: nothing is limited.
struct Quota {
  int64_t used_bytes = 0;
  int64_t hard_bytes = 0;
  int64_t soft_bytes = 0;  // may be passed until its grace is over
  bool grace_is_over = false;
};

// The quota of a user or group as `lfs quota -q` prints it: KiB, a line that is broken where the path is long, a star
// behind what is passed. Nothing for another text.
std::optional<Quota> parse_lfs_quota(std::string_view text);

}  // namespace millrace::local
