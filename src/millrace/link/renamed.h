// SPDX-License-Identifier: Apache-2.0
#pragma once

// Finds released files that were renamed. Their content exists only in the object under the old name, which the state
// knows. That object may be neither removed nor replaced while a stub under another name needs it. The search ignores
// filters. For one thread.

#include <map>
#include <set>
#include <stop_token>
#include <string>
#include <vector>

#include "millrace/link/config.h"
#include "millrace/link/state.h"
#include "millrace/storage/url.h"
#include "millrace/sync/filter.h"

namespace millrace::link {

class RenamedStubs {
 public:
  // Searches the directory for released files of these versions; does nothing when there are none. A folder that the
  // filter leaves out may be unreadable. Errors: those of listing.
  [[nodiscard]] static Result<RenamedStubs> find(const LinkConfig& config, const Location& here,
                                                 const sync::Filter& filter, const std::set<std::string>& versions,
                                                 const std::stop_token& stop);
  // Returns the path that needs the object of this file: one with its version and no object yet, or a folder that
  // could not be read. "": nothing needs it. Errors: those of the state.
  [[nodiscard]] Result<std::string> holder_of(const LinkFile& file, LinkState& state) const;

  // Returns all released files that were found.
  std::vector<std::string> paths() const;

 private:
  std::multimap<std::string, std::string> paths_;  // by version
  std::string unreadable_;
};

}  // namespace millrace::link
