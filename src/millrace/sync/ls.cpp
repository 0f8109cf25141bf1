// SPDX-License-Identifier: Apache-2.0
#include "millrace/sync/ls.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "millrace/base/io/path.h"
#include "millrace/sync/cp.h"

namespace millrace::sync {
namespace {

// The entries of one page of one level, in order.
std::deque<LsEntry> entries_of(ListPage page, const std::string& prefix, const LsOptions& options) {
  std::deque<LsEntry> entries;
  for (ObjectInfo& info : page.objects) {
    const Entry::Kind kind = entry_kind(info.kind);
    std::string path = info.key.substr(prefix.size());
    if (!path.empty()) entries.push_back({std::move(path), false, kind, std::move(info)});
  }
  for (const std::string& folder : page.prefixes) entries.push_back({folder.substr(prefix.size()), true, {}, {}});
  std::erase_if(entries, [&](const LsEntry& entry) {
    if (!options.hidden && is_hidden(entry.path)) return true;
    if (!entry.is_folder) return !options.filter.allows(entry.path, false);
    return !options.filter.allows(std::string_view(entry.path).substr(0, entry.path.size() - 1), true);
  });
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.path < b.path; });
  return entries;
}

}  // namespace

struct Listing::Impl {
  Impl(Found what, LsOptions ls_options, std::stop_token token)
      : found(std::move(what)), options(std::move(ls_options)), stop(std::move(token)) {
    if (!found.is_folder) {
      ahead.push_back({std::string(base_name(found.object.key)), false, Entry::Kind::kFile, found.object});
    } else if (options.recursive) {
      walk = std::make_unique<EntryWalk>(
          found.location, WalkOptions{.hidden = options.hidden, .filter = &options.filter, .stop = stop});
    }
    if (found.is_folder && !options.recursive) {
      const ListOptions level{.recursive = false, .follow_links = false, .others = true};
      pages.emplace(*found.location.storage, prefix_of(found.location), level);
    }
  }

  Result<std::optional<LsEntry>> next() {
    if (walk) {
      ASSIGN_OR_RETURN(auto entry, walk->next());
      if (!entry) return std::nullopt;
      return LsEntry{std::move(entry->path), false, entry->kind, std::move(entry->info)};
    }
    while (ahead.empty()) {
      if (!pages || pages->is_at_end()) return std::nullopt;
      RETURN_IF_ERROR(turn());
    }
    std::optional<LsEntry> entry(std::move(ahead.front()));
    ahead.pop_front();
    return entry;
  }

  // To the next page of one level.
  Status turn() {
    const Location& root = found.location;
    if (stop.stop_requested()) return fail(ErrorCode::kCancelled, "list {}: stopped", root.url);
    ASSIGN_OR_RETURN(ListPage page, pages->next());
    ahead = entries_of(std::move(page), prefix_of(root), options);
    return {};
  }

  void count(const LsEntry& entry) {
    if (entry.kind == Entry::Kind::kUnreadable && unreadable.empty()) unreadable = entry.path;
    report.folders += entry.is_folder;
    if (entry.is_folder || entry.kind != Entry::Kind::kFile) return;
    ++report.objects;
    report.bytes += entry.info.size;
  }

  const Found found;
  const LsOptions options;
  const std::stop_token stop;
  std::unique_ptr<EntryWalk> walk;  // of a whole tree
  std::optional<ListPages> pages;   // of one level
  std::deque<LsEntry> ahead;
  LsReport report;
  std::string unreadable;  // the first path of that kind
};

Listing::Listing(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Listing::~Listing() = default;

Result<std::unique_ptr<Listing>> Listing::open(const std::string& url, const LsOptions& options, std::stop_token stop) {
  ASSIGN_OR_RETURN(Found found, find(url));
  return std::unique_ptr<Listing>(new Listing(std::make_unique<Impl>(std::move(found), options, std::move(stop))));
}

Result<std::optional<LsEntry>> Listing::next() {
  ASSIGN_OR_RETURN(auto entry, impl_->next());
  if (entry) impl_->count(*entry);
  const std::string& unreadable = impl_->unreadable;
  if (entry || unreadable.empty()) return entry;
  return fail(ErrorCode::kPermissionDenied, "list {}: {} may not be read", impl_->found.location.url, unreadable);
}

const LsReport& Listing::report() const {
  return impl_->report;
}

Result<std::vector<LsEntry>> list_uploads(const Location& at) {
  ASSIGN_OR_RETURN(auto found, with_context(at.storage->list_uploads(at.key), "unfinished writes below " + at.url));
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.key < b.key; });
  const std::string prefix = prefix_of(at);
  std::vector<LsEntry> uploads;
  for (ObjectInfo& upload : found) {
    std::string path;
    if (upload.key == at.key) {
      path = base_name(upload.key);
    } else if (upload.key.starts_with(prefix)) {
      path = upload.key.substr(prefix.size());
    } else {
      continue;
    }
    uploads.push_back({std::move(path), false, Entry::Kind::kFile, std::move(upload)});
  }
  if (uploads.empty() && !at.key.empty() && at.storage->capabilities().folders) {
    // A slip of the hand. Of a folder that is there stat says something else than not_found.
    const auto there = at.storage->stat(at.key);
    if (!there && there.error().code() == ErrorCode::kNotFound) return tl::unexpected<Error>(there.error());
  }
  return uploads;
}

}  // namespace millrace::sync
