// SPDX-License-Identifier: Apache-2.0
#include "millrace/link/renamed.h"

#include "millrace/link/stub.h"
#include "millrace/sync/entries.h"

namespace millrace::link {

Result<RenamedStubs> RenamedStubs::find(const LinkConfig& config, const Location& here, const sync::Filter& filter,
                                        const std::set<std::string>& versions, const std::stop_token& stop) {
  RenamedStubs found;
  if (versions.empty()) return found;
  sync::EntryWalk walk(here, {.stop = stop});
  while (true) {
    ASSIGN_OR_RETURN(const std::optional<sync::Entry> entry, walk.next());
    if (!entry) return found;
    if (entry->kind == sync::Entry::Kind::kUnreadable && filter.passes(entry->path) &&
        filter.allows(entry->path, true)) {
      found.unreadable_ = entry->path;
    }
    if (entry->kind != sync::Entry::Kind::kFile || !versions.contains(entry->info.version)) continue;
    if (!looks_released(fmt::format("{}/{}", config.directory, entry->path))) continue;
    found.paths_.emplace(entry->info.version, entry->path);
  }
}

Result<std::string> RenamedStubs::holder_of(const LinkFile& file, LinkState& state) const {
  const auto [begin, end] = paths_.equal_range(file.here.version);
  for (auto each = begin; each != end; ++each) {
    const std::string& path = each->second;
    ASSIGN_OR_RETURN(const std::optional<LinkFile> own, state.find(path));
    const bool has_object =
        own && path != file.path && own->here.version == file.here.version && own->state == LinkFile::State::kReleased;
    if (!has_object) return path;
  }
  return unreadable_;
}

std::vector<std::string> RenamedStubs::paths() const {
  std::vector<std::string> paths;
  for (const auto& [version, path] : paths_) paths.push_back(path);
  return paths;
}

}  // namespace millrace::link
