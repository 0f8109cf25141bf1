// SPDX-License-Identifier: Apache-2.0
#include "millrace/storage/hub/detail/api.h"

#include <algorithm>
#include <ctime>
#include <nlohmann/json.hpp>
#include <utility>

#include "millrace/base/text/json_members.h"
#include "millrace/http/uri_encode.h"
#include "millrace/storage/hub/detail/names.h"

namespace millrace::hub {
namespace {

using nlohmann::json;

constexpr int kMostPages = 100'000;  // of 50 paths or more: a listing that does not end

std::string plural(const HubRepo& repo) {
  return std::string(repo.kind_name()) + "s";
}

std::string api_url(const RepoView& view, std::string_view what) {
  return fmt::format("{}/api/{}/{}/{}", view.client.options().endpoint, plural(view.repo), view.repo.id, what);
}

std::string encode(std::string_view text) {
  return http::uri_encode(text, false);
}

tl::unexpected<Error> no_sense(std::string_view name, std::string_view what) {
  return fail(ErrorCode::kCorruption, "{}: the Hub's answer makes no sense: {}", name, what);
}

struct Page {
  json body;
  std::string next;
  bool is_missing = false;  // no such path
};

Result<Page> fetch_json(const RepoView& view, std::string url) {
  ASSIGN_OR_RETURN(const Answer answer,
                   view.client.fetch({.url = std::move(url), .name = view.name, .stop = view.stop}));
  if (answer.response.header("x-error-code") == "EntryNotFound") return Page{.is_missing = true};
  if (answer.response.status != 200) return error_of(answer, view, view.name);
  Page page{json::parse(answer.response.body, nullptr, false), next_page(answer.response.header("link"))};
  if (page.body.is_discarded()) return no_sense(view.name, "it is no JSON");
  return page;
}

// "2024-06-01T12:34:56.000Z"; zero for any other text.
http::Time time_in(const std::string& text) {
  std::tm parts{};
  if (::strptime(text.c_str(), "%Y-%m-%dT%H:%M:%S", &parts) == nullptr) return {};
  return http::time_of(::timegm(&parts));
}

// For an LFS file, the hash of its content; its `oid` is the hash of the pointer.
std::string version_of(const json& entry) {
  const json* lfs = member(entry, "lfs");
  return text_or_empty(lfs != nullptr && lfs->is_object() ? *lfs : entry, "oid");
}

Result<TreeEntry> parse_entry(const json& entry, std::string_view name, std::string_view prefix) {
  TreeEntry parsed{.path = text_or_empty(entry, "path")};
  if (!check_key(parsed.path) || !parsed.path.starts_with(prefix)) {
    return no_sense(name, fmt::format("a path that cannot be there: \"{}\"", parsed.path));
  }
  const bool is_folder = text_or_empty(entry, "type") == "directory";
  if (is_folder) parsed.path += '/';
  if (const json* last = member(entry, "lastCommit"); last != nullptr)
    parsed.modified = time_in(text_or_empty(*last, "date"));
  if (is_folder) return parsed;
  const auto size = integer_at(entry, "size");
  parsed.version = version_of(entry);
  if (!size || *size < 0 || parsed.version.empty()) {
    return no_sense(name, fmt::format("no size or hash of \"{}\"", parsed.path));
  }
  parsed.size = *size;
  return parsed;
}

struct Wanted {
  std::string prefix;
  bool recursive = false;
};

Status add_page(const json& page, std::string_view name, const Wanted& wanted, std::vector<TreeEntry>& entries) {
  if (!page.is_array()) return no_sense(name, "a listing that is no list");
  for (const json& entry : page) {
    ASSIGN_OR_RETURN(TreeEntry parsed, parse_entry(entry, name, wanted.prefix));
    if (wanted.recursive && parsed.path.ends_with('/')) continue;
    entries.push_back(std::move(parsed));
  }
  return {};
}

// A path that comes twice would be copied twice, or a listing repeats itself.
Status sort_entries(std::vector<TreeEntry>& entries, std::string_view name) {
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.path < b.path; });
  const auto twice =
      std::adjacent_find(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.path == b.path; });
  return twice == entries.end() ? Status() : no_sense(name, fmt::format("\"{}\" is listed twice", twice->path));
}

void add_refs(const json& answer, const char* key, bool is_tag, std::vector<HubRef>& refs) {
  const json* list = member(answer, key);
  if (list == nullptr || !list->is_array()) return;
  for (const json& each : *list) {
    HubRef ref{text_or_empty(each, "name"), text_or_empty(each, "targetCommit"), is_tag};
    if (!ref.name.empty() && is_commit(ref.commit)) refs.push_back(std::move(ref));
  }
}

}  // namespace

std::string_view bare_etag(std::string_view etag) {
  if (etag.starts_with("W/")) etag.remove_prefix(2);
  if (etag.size() >= 2 && etag.front() == '"' && etag.back() == '"') etag = etag.substr(1, etag.size() - 2);
  return etag;
}

std::string next_page(std::string_view link) {
  while (!link.empty()) {
    const size_t begin = link.find('<'), end = link.find('>', begin);
    if (end == link.npos) return {};
    const std::string_view url = link.substr(begin + 1, end - begin - 1);
    link.remove_prefix(end + 1);
    const std::string_view parameters = link.substr(0, link.find('<'));
    if (parameters.find("rel=\"next\"") != parameters.npos || parameters.find("rel=next") != parameters.npos) {
      return std::string(url);
    }
  }
  return {};
}

std::string file_url(const RepoView& view, std::string_view commit, std::string_view path) {
  return fmt::format("{}/{}/resolve/{}/{}", view.client.options().endpoint, view.repo.url().substr(5), commit,
                     http::uri_encode(path, true));
}

Result<std::vector<TreeEntry>> fetch_tree(const RepoView& view, std::string_view commit, std::string_view folder,
                                          bool recursive) {
  const std::string below = folder.empty() ? "" : "/" + encode(folder);
  std::string url =
      api_url(view, fmt::format("tree/{}{}?recursive={}&expand={}", commit, below, recursive, !recursive));
  const Wanted wanted{folder.empty() ? "" : std::string(folder) + "/", recursive};
  std::vector<TreeEntry> entries;
  for (int pages = 0; !url.empty(); ++pages) {
    ASSIGN_OR_RETURN(Page page, with_context(fetch_json(view, url), "list"));
    if (page.is_missing && pages == 0) return entries;
    RETURN_IF_ERROR(add_page(page.body, view.name, wanted, entries));
    if (page.next == url || pages == kMostPages) {
      return fail(ErrorCode::kUnavailable, "list {}: the listing does not end", view.name);
    }
    url = std::move(page.next);
  }
  RETURN_IF_ERROR(sort_entries(entries, view.name));
  return entries;
}

Result<HubCommit> fetch_commit(const RepoView& view, std::string_view revision) {
  const std::string what = fmt::format("revision/{}?expand=sha&expand=lastModified", encode(revision));
  ASSIGN_OR_RETURN(const Page page, fetch_json(view, api_url(view, what)));
  HubCommit commit{text_or_empty(page.body, "sha"), time_in(text_or_empty(page.body, "lastModified"))};
  const bool is_other = is_commit(revision) && commit.id != revision;
  if (!is_commit(commit.id) || is_other) return no_sense(view.name, fmt::format("the commit \"{}\"", commit.id));
  return commit;
}

Result<std::vector<HubRef>> fetch_refs(const RepoView& view) {
  ASSIGN_OR_RETURN(const Page page, fetch_json(view, api_url(view, "refs")));
  std::vector<HubRef> refs;
  add_refs(page.body, "branches", false, refs);
  add_refs(page.body, "tags", true, refs);
  return refs;
}

Result<std::vector<std::string>> search_repos(const RepoView& view, std::string_view text) {
  const std::string author = view.repo.id.substr(0, view.repo.id.find('/'));
  ASSIGN_OR_RETURN(const Page page, fetch_json(view, fmt::format("{}/api/{}?author={}&search={}&limit=100",
                                                                 view.client.options().endpoint, plural(view.repo),
                                                                 encode(author), encode(text))));
  std::vector<std::string> ids;
  if (!page.body.is_array()) return ids;
  for (const json& each : page.body) {
    if (std::string id = text_or_empty(each, "id"); is_repo_id(id)) ids.push_back(std::move(id));
  }
  return ids;
}

}  // namespace millrace::hub
