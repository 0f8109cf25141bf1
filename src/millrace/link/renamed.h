// SPDX-License-Identifier: Apache-2.0
#pragma once

// Where released files are now: their content is only in the object of the name that the state has, so that object may
// be neither removed nor replaced while a stub under another name needs it. A look at the directory, filters or not;
// for one thread.

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
  // Looks through the directory for released files of these versions; without one it does not look. A folder that the
  // filter leaves out need not be readable. Errors: those of listing.
  [[nodiscard]] static Result<RenamedStubs> find(const LinkConfig& config, const Location& here,
                                                 const sync::Filter& filter, const std::set<std::string>& versions,
                                                 const std::stop_token& stop);
  // Who needs the object of this file: a path that has its version and no object of its own yet; a folder that could
  // not be read. "": nobody. Errors: those of the state.
  [[nodiscard]] Result<std::string> holder_of(const LinkFile& file, LinkState& state) const;

  // All released files that were found.
  std::vector<std::string> paths() const;

 private:
  std::multimap<std::string, std::string> paths_;  // by version
  std::string unreadable_;
};

}  // namespace millrace::link
