// SPDX-License-Identifier: Apache-2.0
#pragma once

// Private to local/: the space that an ordinary write may still use. Thread-safe.

#include <string>

#include "millrace/storage/local/detail/files.h"

namespace millrace::local {

// Returns the free space at `path`, or at the nearest existing directory above: the smaller of the space that the file
// system reports (including quotas of directory trees on XFS and ext4) and the space that the quotas of this user and
// its group leave. Root has no quota.
[[nodiscard]] Result<FreeSpace> free_space_at(const Context& context, std::string path);

// The limits of a quota on bytes or on files. Both 0: there is no limit.
struct QuotaLimit {
  int64_t used = 0;
  int64_t hard = 0;
  int64_t soft = 0;  // limit that may be exceeded until its grace period ends
  bool grace_is_over = false;

  // Returns the effective limit; 0 when there is none.
  int64_t limit() const { return soft > 0 && grace_is_over && used > soft ? soft : hard; }
  int64_t left() const { return limit() > used ? limit() - used : 0; }
};
struct Quota {
  QuotaLimit bytes, files;
};

// Parses the quota of a user or group from `lfs quota -q`: KiB and files, a line that breaks after a long path, a star
// after an exceeded value. nullopt for any other text.
std::optional<Quota> parse_lfs_quota(std::string_view text);

}  // namespace millrace::local
