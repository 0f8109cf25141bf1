// SPDX-License-Identifier: Apache-2.0
#pragma once

// Finds out which paths of a directory on Lustre may have changed, on any node, from the changelog of a metadata
// server. Runs `lfs changelog` with the lfs of PATH. This needs root and a changelog user (`lctl changelog_register`
// on the server). Events are hints, as those of inotify are. For one thread.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "millrace/base/status.h"

namespace millrace::link {

struct ChangeRecord {
  int64_t index = 0;
  std::string type;                  // "01CREAT"
  std::string target, parent;        // FIDs, "[0x200000402:0x1:0x0]"; parent "": the record has none
  std::string name;                  // below the parent; may hold blanks
  std::string old_parent, old_name;  // parent and name before a rename
};
// Parses a line of `lfs changelog`; nullopt if it is not a record.
std::optional<ChangeRecord> parse_change(std::string_view line);

class Changelog {
 public:
  // Opens the changelog. `source`: "MDT:USER" ("lustre-MDT0000:cl1"). `directory`: a directory on that file system.
  // Errors: invalid_argument, not_found (no lfs), those of the first reading.
  [[nodiscard]] static Result<Changelog> open(const std::string& source, const std::string& directory);

  struct Changes {
    std::vector<std::string> paths;  // below the directory, each once
    bool removed = false;            // something was removed or renamed
    bool lost = false;               // a directory was renamed, or a path could not be found: look at everything
  };
  // Reads the records written since the last call. The server may then drop them. Errors: those of lfs.
  [[nodiscard]] Result<Changes> read();

 private:
  Changelog(std::string mdt, std::string user, std::string directory, std::string mount)
      : mdt_(std::move(mdt)), user_(std::move(user)), directory_(std::move(directory)), mount_(std::move(mount)) {}
  [[nodiscard]] Result<std::string> path_of(const std::string& fid);

  std::string mdt_, user_, directory_, mount_;
  int64_t next_ = 0;  // index of the first unread record
};

}  // namespace millrace::link
