// SPDX-License-Identifier: Apache-2.0
#include "millrace/sync/entries.h"

#include <utility>

#include "millrace/storage/page_token.h"

namespace millrace::sync {
namespace {

// A choice: a page costs little beside its keys, and two of them are a few MB. S3 gives 1,000 keys at most.
constexpr int64_t kPageKeys = 4096;

Entry::Kind kind_of(const ObjectInfo& info) {
  if (info.kind != ObjectKind::kFile) return entry_kind(info.kind);
  if (check_key(info.key)) return Entry::Kind::kFile;
  const bool is_marker =
      info.size == 0 && info.key.ends_with('/') && check_key(info.key.substr(0, info.key.size() - 1));
  return is_marker ? Entry::Kind::kMarker : Entry::Kind::kIllegal;
}

}  // namespace

std::string_view entry_kind_name(Entry::Kind kind) {
  switch (kind) {
    case Entry::Kind::kFile:
      return "a file";
    case Entry::Kind::kMarker:
      return "a folder marker";
    case Entry::Kind::kLink:
      return "a symbolic link";
    case Entry::Kind::kSpecial:
      return "a socket, pipe or device";
    case Entry::Kind::kUnreadable:
      return "what may not be read";
    case Entry::Kind::kFolder:
      return "an empty folder";
    case Entry::Kind::kIllegal:
      break;
  }
  return "not a legal path";
}

Entry::Kind entry_kind(ObjectKind kind) {
  switch (kind) {
    case ObjectKind::kLink:
      return Entry::Kind::kLink;
    case ObjectKind::kSpecial:
      return Entry::Kind::kSpecial;
    case ObjectKind::kUnreadable:
      return Entry::Kind::kUnreadable;
    case ObjectKind::kFolder:
      return Entry::Kind::kFolder;
    case ObjectKind::kFile:
      break;
  }
  return Entry::Kind::kFile;
}

std::string prefix_of(const Location& folder) {
  return folder.key.empty() ? "" : folder.key + "/";
}

bool is_hidden(std::string_view path) {
  for (size_t at = path.find(kHiddenFolder); at != path.npos; at = path.find(kHiddenFolder, at + 1)) {
    const size_t end = at + kHiddenFolder.size();
    if ((at == 0 || path[at - 1] == '/') && (end == path.size() || path[end] == '/')) return true;
  }
  return false;
}

struct EntryWalk::Impl {
  Impl(const Location& location, const WalkOptions& walk_options)
      : root(location), options(walk_options), prefix(prefix_of(location)) {
    if (options.filter != nullptr) filter.emplace(*options.filter);
    ListOptions list{.max_keys = kPageKeys, .follow_links = options.follow_links, .others = true};
    list.empty_folders = options.empty_folders;
    if (options.range != nullptr && !options.range->after().empty())
      list.page_token = page_token_behind(prefix + options.range->after());
    pages.emplace(*root.storage, prefix, list);
  }

  // Begins to fetch the next page.
  void fetch() {
    fetched.emplace(tl::unexpected(Error(ErrorCode::kInternal, "no page")));
    fetcher = Thread("mr-list", [this] { *fetched = pages->next(); });
  }

  // Makes the page that was fetched the current one. False at the end.
  Result<bool> turn() {
    if (options.stop.stop_requested()) return fail(ErrorCode::kCancelled, "list {}: stopped", root.url);
    if (!started) {
      started = true;
      fetch();
    }
    if (!fetcher.joinable()) return false;
    fetcher.join();
    ASSIGN_OR_RETURN(page, std::move(*fetched));
    at = 0;
    if (!pages->is_at_end()) fetch();
    return true;
  }

  Result<std::optional<Entry>> next() {
    if (ended) return std::nullopt;
    for (;;) {
      while (at == page.objects.size()) {
        ASSIGN_OR_RETURN(const bool more, turn());
        if (!more) return std::nullopt;
      }
      ObjectInfo& info = page.objects[at++];
      if (!info.key.starts_with(prefix) || (seen_any && info.key <= last)) {
        return fail(ErrorCode::kUnsupported, "list {}: \"{}\" comes after \"{}\": the storage does not list in order",
                    root.url, info.key, last);
      }
      seen_any = true;
      last = info.key;
      Entry entry{kind_of(info), info.key.substr(prefix.size()), std::move(info)};
      if (options.range != nullptr && options.range->is_behind(entry.path)) {
        at = page.objects.size();
        ended = true;
        return std::nullopt;
      }
      if (entry.path.empty() && !options.own_marker) continue;
      if (!options.hidden && is_hidden(entry.path)) continue;
      const bool is_folder = entry.kind == Entry::Kind::kFolder;
      if (filter && !(is_folder ? filter->passes_folders(entry.path) : filter->passes(entry.path))) continue;
      return entry;
    }
  }

  const Location root;
  const WalkOptions options;
  const std::string prefix;
  std::optional<FilterWalk> filter;
  std::optional<ListPages> pages;
  bool started = false;
  ListPage page;
  size_t at = 0;
  bool seen_any = false;
  bool ended = false;  // what comes is behind the range
  std::string last;
  std::optional<Result<ListPage>> fetched;
  Thread fetcher;  // the last member: it ends before what it uses
};

EntryWalk::EntryWalk(const Location& root, const WalkOptions& options) : impl_(std::make_unique<Impl>(root, options)) {}
EntryWalk::~EntryWalk() = default;

Result<std::optional<Entry>> EntryWalk::next() {
  return impl_->next();
}

}  // namespace millrace::sync
