// SPDX-License-Identifier: Apache-2.0
#include "millrace/episodes/source_files.h"

#include <algorithm>

#include "millrace/base/text/ascii.h"
#include "millrace/base/text/strings.h"
#include "millrace/storage/glob.h"

namespace millrace::episodes {
namespace {

bool has_ending(std::string_view url, std::string_view ending) {
  if (url.size() <= ending.size()) return false;
  return equal_ignoring_case(url.substr(url.size() - ending.size()), ending);
}

std::string folder_of(const std::string& url) {
  const size_t slash = url.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : url.substr(0, slash);
}

// The run of digits at the front, without zeros before it.
std::string_view take_number(std::string_view& text) {
  size_t end = 0;
  while (end < text.size() && is_digit(text[end])) ++end;
  std::string_view digits = text.substr(0, end);
  digits.remove_prefix(std::min(digits.find_first_not_of('0'), digits.size()));
  text.remove_prefix(end);
  return digits;
}

// The URLs below a folder or of a pattern; their common folder is `root`.
Result<std::vector<std::string>> find_urls(const std::string& source, std::string& root) {
  if (!has_wildcards(source)) {
    root = source;
    ASSIGN_OR_RETURN(const FolderFiles below, files_below(source));
    std::vector<std::string> urls;
    for (const Match& file : below.files) urls.push_back(file.url);
    return urls;
  }
  root = folder_of(source.substr(0, source.find_first_of(kWildcards)));
  ASSIGN_OR_RETURN(const std::vector<Match> matches, find_matches(source));
  std::vector<std::string> urls;
  for (const Match& match : matches) {
    if (!match.folder) urls.push_back(match.url);
  }
  return urls;
}

}  // namespace

bool natural_less(std::string_view a, std::string_view b) {
  const std::string_view whole_a = a, whole_b = b;
  while (!a.empty() && !b.empty()) {
    if (is_digit(a.front()) && is_digit(b.front())) {
      const std::string_view number_a = take_number(a), number_b = take_number(b);
      if (number_a.size() != number_b.size()) return number_a.size() < number_b.size();
      if (number_a != number_b) return number_a < number_b;
    } else {
      // As bytes: whether a char has a sign depends on the processor.
      if (a.front() != b.front()) return std::string_view::traits_type::lt(a.front(), b.front());
      a.remove_prefix(1);
      b.remove_prefix(1);
    }
  }
  // "01" and "1" are equal so far.
  return a.empty() != b.empty() ? a.empty() : whole_a < whole_b;
}

Result<SourceFiles> find_source_files(const std::string& source, std::string_view ending) {
  ASSIGN_OR_RETURN(const Location at, open_url(source));
  SourceFiles found;
  std::vector<std::string> urls;
  found.single = !has_wildcards(source) && !at.key.empty() && at.storage->stat(at.key);
  if (found.single) {
    urls = {source};
    found.root = folder_of(source);
  } else {
    ASSIGN_OR_RETURN(urls, find_urls(source, found.root));
    std::erase_if(urls, [&](const std::string& url) { return !has_ending(url, ending); });
  }
  while (found.root.size() > 1 && found.root.ends_with('/')) found.root.pop_back();
  for (const std::string& url : urls) {
    ASSIGN_OR_RETURN(const Location file, open_url(url));
    ASSIGN_OR_RETURN(const ObjectInfo info, file.storage->stat(file.key));
    const std::string below = url.starts_with(found.root + "/") ? url.substr(found.root.size() + 1) : url;
    const size_t cut = has_ending(below, ending) ? ending.size() : 0;
    found.files.push_back({url, below.substr(0, below.size() - cut), info.size, info.modified});
  }
  if (found.files.empty()) return fail(ErrorCode::kNotFound, "{}: no {} file is there", source, ending);
  std::ranges::sort(found.files, natural_less, &SourceFile::name);
  const auto twice = std::ranges::adjacent_find(found.files, {}, &SourceFile::name);
  if (twice == found.files.end()) return found;
  return fail(ErrorCode::kAlreadyExists, "{} and {} would be one episode: rename one of them", twice[0].url,
              twice[1].url);
}

}  // namespace millrace::episodes
