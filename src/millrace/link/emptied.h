// SPDX-License-Identifier: Apache-2.0
#pragma once

// A side on which a sweep found none of the files that the link knew there: it may be another bucket, or one that
// somebody emptied by mistake. Nothing is removed from the other side until one of these files is back, or no removal
// waits any more. Kept beside the marker of the link, where all nodes and tasks find it. Values.

#include <map>
#include <optional>
#include <string>

#include "millrace/link/config.h"
#include "millrace/link/state.h"

namespace millrace::link {

// The files that were gone, each with row_version(): a row that was written since tells of a copy by the link itself.
using MissingFiles = std::map<std::string, std::string>;

struct EmptiedSides {
  std::optional<MissingFiles> directory, bucket;  // nullopt: that side is as usual
  bool operator==(const EmptiedSides&) const = default;
};

std::string row_version(const LinkFile& file);

// A file that is damaged means both sides. Errors: those of reading.
[[nodiscard]] Result<EmptiedSides> read_emptied(const LinkConfig& config);
// Errors: those of writing.
[[nodiscard]] Status write_emptied(const LinkConfig& config, const EmptiedSides& sides);

}  // namespace millrace::link
