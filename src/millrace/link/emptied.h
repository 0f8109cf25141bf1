// SPDX-License-Identifier: Apache-2.0
#pragma once

// Records a side on which a sweep found none of the files that the link knew there. It may be another bucket, or
// somebody may have emptied it by mistake. Nothing is removed from the other side until one of these files is back, or
// no removal is pending any more. The record is kept beside the link's marker, where all nodes and tasks find it.
// Values.

#include <map>
#include <optional>
#include <string>

#include "millrace/link/config.h"
#include "millrace/link/state.h"

namespace millrace::link {

// The missing files, each with its row_version(). A row with another version was written later, when the link itself
// copied the file.
using MissingFiles = std::map<std::string, std::string>;

struct EmptiedSides {
  std::optional<MissingFiles> directory, bucket;  // nullopt: that side is not emptied
  bool operator==(const EmptiedSides&) const = default;
};

std::string row_version(const LinkFile& file);

// Reads the record. A damaged file counts as both sides emptied. Errors: those of reading.
[[nodiscard]] Result<EmptiedSides> read_emptied(const LinkConfig& config);
// Writes the record; removes it if both sides are as usual. Errors: those of writing.
[[nodiscard]] Status write_emptied(const LinkConfig& config, const EmptiedSides& sides);

}  // namespace millrace::link
