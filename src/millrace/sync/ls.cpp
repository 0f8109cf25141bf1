// SPDX-License-Identifier: Apache-2.0
#include "millrace/sync/ls.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "millrace/sync/cp.h"

namespace millrace::sync {
namespace {

using Visit = std::function<Status(const LsEntry&)>;

Status show(const LsEntry& entry, const Visit& visit, LsReport& report) {
  if (entry.is_folder) {
    ++report.folders;
  } else if (entry.kind == Entry::Kind::kFile) {
    ++report.objects;
    report.bytes += entry.info.size;
  }
  return visit(entry);
}

Status ls_tree(const Location& root, const LsOptions& options, const Visit& visit, std::stop_token stop,
               LsReport& report) {
  EntryWalk walk(root, {.hidden = options.hidden, .filter = &options.filter, .stop = std::move(stop)});
  for (;;) {
    ASSIGN_OR_RETURN(auto entry, walk.next());
    if (!entry) return {};
    RETURN_IF_ERROR(show({std::move(entry->path), false, entry->kind, std::move(entry->info)}, visit, report));
  }
}

// The entries of one page of one level, in order.
std::vector<LsEntry> entries_of(ListPage page, const std::string& prefix, const LsOptions& options) {
  std::vector<LsEntry> entries;
  for (ObjectInfo& info : page.objects) {
    const Entry::Kind kind = info.kind == ObjectKind::kLink      ? Entry::Kind::kLink
                             : info.kind == ObjectKind::kSpecial ? Entry::Kind::kSpecial
                                                                 : Entry::Kind::kFile;
    std::string path = info.key.substr(prefix.size());
    if (!path.empty()) entries.push_back({std::move(path), false, kind, std::move(info)});
  }
  for (const std::string& folder : page.prefixes) entries.push_back({folder.substr(prefix.size()), true, {}, {}});
  const auto is_out = [&](const LsEntry& entry) {
    if (!options.hidden && is_hidden(entry.path)) return true;
    if (!entry.is_folder) return !options.filter.allows(entry.path, false);
    return !options.filter.allows(std::string_view(entry.path).substr(0, entry.path.size() - 1), true);
  };
  entries.erase(std::remove_if(entries.begin(), entries.end(), is_out), entries.end());
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.path < b.path; });
  return entries;
}

Status ls_level(const Location& root, const LsOptions& options, const Visit& visit, const std::stop_token& stop,
                LsReport& report) {
  const std::string prefix = prefix_of(root);
  ListOptions list{.recursive = false, .follow_links = false, .others = true};
  do {
    if (stop.stop_requested()) return fail(ErrorCode::kCancelled, "list {}: stopped", root.url);
    ASSIGN_OR_RETURN(ListPage page, with_context(root.storage->list(prefix, list), "list " + root.url));
    list.page_token = page.next_page_token;
    for (const LsEntry& entry : entries_of(std::move(page), prefix, options)) {
      RETURN_IF_ERROR(show(entry, visit, report));
    }
  } while (!list.page_token.empty());
  return {};
}

}  // namespace

Result<LsReport> ls(const std::string& url, const LsOptions& options, const Visit& visit, std::stop_token stop) {
  ASSIGN_OR_RETURN(Found found, find(url));
  LsReport report;
  if (!found.is_folder) {
    std::string name = found.object.key.substr(found.object.key.rfind('/') + 1);
    RETURN_IF_ERROR(show({std::move(name), false, Entry::Kind::kFile, std::move(found.object)}, visit, report));
  } else if (options.recursive) {
    RETURN_IF_ERROR(ls_tree(found.location, options, visit, std::move(stop), report));
  } else {
    RETURN_IF_ERROR(ls_level(found.location, options, visit, stop, report));
  }
  return report;
}

}  // namespace millrace::sync
