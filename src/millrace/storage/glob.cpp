// SPDX-License-Identifier: Apache-2.0
#include "millrace/storage/glob.h"

#include <fnmatch.h>

#include <algorithm>
#include <filesystem>
#include <span>
#include <system_error>

#include "millrace/storage/url.h"

namespace millrace {
namespace {

constexpr std::string_view kAnyFolders = "**";

bool is_there(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

std::vector<std::string> components(std::string_view path) {
  std::vector<std::string> names;
  for (size_t begin = 0; begin < path.size();) {
    const size_t end = std::min(path.find('/', begin), path.size());
    if (end > begin) names.emplace_back(path.substr(begin, end - begin));
    begin = end + 1;
  }
  return names;
}

// The entries of the folder `url` (empty: the current one, else with '/' at its end) that start with `head`.
Result<std::vector<Match>> list_folder(const std::string& url, std::string_view head, bool recursive) {
  ASSIGN_OR_RETURN(const Location folder, open_url(url.empty() ? "." : url));
  const std::string base = folder.child("").key;
  std::vector<Match> found;
  ListPages pages(*folder.storage, base + std::string(head), {.recursive = recursive});
  while (!pages.is_at_end()) {
    ASSIGN_OR_RETURN(const ListPage page, with_context(pages.next(), url));
    for (const ObjectInfo& object : page.objects) {
      found.push_back({object.key.substr(base.size()), /*folder=*/false, object.size, object.version});
    }
    for (const std::string& prefix : page.prefixes) {
      found.push_back({.url = prefix.substr(base.size(), prefix.size() - base.size() - 1), .folder = true});
    }
  }
  std::erase_if(found, [](const Match& match) { return match.url.empty(); });
  return found;
}

// The match under its whole name.
Match below(const std::string& folder, Match match) {
  match.url.insert(0, folder);
  return match;
}

bool is_match(const std::string& pattern, const std::string& name) {
  return ::fnmatch(pattern.c_str(), name.c_str(), FNM_PERIOD) == 0;
}

// Whether the pattern matches the path, or a folder above it.
bool is_match(std::span<const std::string> pattern, std::span<const std::string> path) {
  if (pattern.empty()) return std::ranges::none_of(path, [](const auto& name) { return name.starts_with('.'); });
  if (path.empty()) return false;
  if (pattern.front() != kAnyFolders) {
    return is_match(pattern.front(), path.front()) && is_match(pattern.subspan(1), path.subspan(1));
  }
  if (is_match(pattern.subspan(1), path)) return true;
  return !path.front().starts_with('.') && is_match(pattern, path.subspan(1));
}

// `from` is where the search for the first component with a wildcard begins.
Status add_matches(const std::string& pattern, size_t from, std::vector<Match>& matches) {
  const size_t wildcard = pattern.find_first_of(kWildcards, from);
  if (wildcard == std::string::npos) {
    ASSIGN_OR_RETURN(const Location at, open_url(pattern));
    if (const auto info = at.storage->stat(at.key)) {
      matches.push_back({pattern, /*folder=*/false, info->size, info->version});
    }
    return {};
  }
  const size_t slash = pattern.rfind('/', wildcard);
  const size_t begin = slash == std::string::npos ? 0 : slash + 1;
  const size_t end = std::min(pattern.find('/', wildcard), pattern.size());
  const std::string folder = pattern.substr(0, begin);
  const std::string component = pattern.substr(begin, end - begin);
  if (component == kAnyFolders) {
    const std::vector<std::string> rest = components(std::string_view(pattern).substr(begin));
    ASSIGN_OR_RETURN(const std::vector<Match> files, list_folder(folder, {}, /*recursive=*/true));
    for (const Match& file : files) {
      if (is_match(rest, components(file.url))) matches.push_back(below(folder, file));
    }
    return {};
  }
  const std::string_view head = std::string_view(component).substr(0, wildcard - begin);
  ASSIGN_OR_RETURN(const std::vector<Match> entries, list_folder(folder, head, /*recursive=*/false));
  for (const Match& entry : entries) {
    if (!is_match(component, entry.url)) continue;
    const std::string path = folder + entry.url;
    if (pattern.find_first_not_of('/', end) == std::string::npos) {
      if (end == pattern.size() || entry.folder) matches.push_back(below(folder, entry));
    } else if (entry.folder) {
      RETURN_IF_ERROR(add_matches(path + pattern.substr(end), path.size(), matches));
    }
  }
  return {};
}

}  // namespace

bool has_wildcards(const std::string& url) {
  return url.find_first_of(kWildcards) != std::string::npos && !is_there(url);
}

Result<std::vector<std::string>> expand_names(const std::string& pattern) {
  if (is_there(pattern)) return std::vector{pattern};
  return expand_braces(pattern);
}

Result<std::vector<Match>> find_matches(const std::string& pattern) {
  std::vector<Match> matches;
  RETURN_IF_ERROR(add_matches(pattern, has_wildcards(pattern) ? 0 : pattern.size(), matches));
  std::ranges::sort(matches, {}, &Match::url);
  return matches;
}

Result<FolderFiles> files_below(const std::string& url) {
  const std::string base = url.ends_with('/') ? url : url + "/";
  ASSIGN_OR_RETURN(const std::vector<Match> files, list_folder(base, {}, /*recursive=*/true));
  FolderFiles found;
  for (const Match& file : files) {
    const std::vector<std::string> names = components(file.url);
    const auto begins_with = [&](char c) {
      return std::ranges::any_of(names, [c](const std::string& name) { return name.starts_with(c); });
    };
    if (begins_with('.')) continue;
    if (begins_with('_')) {
      found.passed.push_back(base + file.url);
    } else {
      found.files.push_back(below(base, file));
    }
  }
  std::ranges::sort(found.files, {}, &Match::url);
  return found;
}

}  // namespace millrace
