// SPDX-License-Identifier: Apache-2.0
#include "millrace/prepare/detail/inputs.h"

#include <fnmatch.h>

#include <algorithm>

#include "millrace/formats/parquet.h"
#include "millrace/prepare/prepare.h"

namespace millrace::prepare {

namespace {

constexpr std::string_view kWildcards = "*?[";
constexpr int64_t kMaxListBytes = int64_t{1} << 30;

struct Listed {
  std::string name;  // relative to the folder
  bool folder = false;
};

// What lies directly in the folder `url` (empty: the current one) and starts with `head`; hidden names are left out.
Result<std::vector<Listed>> list_folder(const std::string& url, std::string_view head = {}) {
  ASSIGN_OR_RETURN(const Location folder, open_url(url.empty() ? "." : url));
  const std::string base = folder.child("").key;
  std::vector<Listed> found;
  ListPages pages(*folder.storage, base + std::string(head), {.recursive = false});
  while (!pages.is_at_end()) {
    ASSIGN_OR_RETURN(const ListPage page, with_context(pages.next(), url));
    for (const ObjectInfo& object : page.objects) found.push_back({object.key.substr(base.size()), false});
    for (const std::string& prefix : page.prefixes) {
      found.push_back({prefix.substr(base.size(), prefix.size() - base.size() - 1), true});
    }
  }
  std::erase_if(found, [](const Listed& entry) { return entry.name.empty() || entry.name.front() == '.'; });
  return found;
}

// Files only, directly in the folder.
Status add_folder(const std::string& url, std::vector<std::string>& urls) {
  const std::string base = url.ends_with('/') ? url : url + "/";
  ASSIGN_OR_RETURN(const std::vector<Listed> entries, list_folder(base));
  for (const Listed& entry : entries) {
    if (!entry.folder) urls.push_back(base + entry.name);
  }
  return {};
}

// Expands the first component of `pattern` that has a wildcard; `from` is where the search for it begins.
Status add_matches(const std::string& pattern, size_t from, std::vector<std::string>& urls) {
  const size_t wildcard = pattern.find_first_of(kWildcards, from);
  if (wildcard == std::string::npos) {
    auto info = open_url(pattern).and_then([](const Location& at) { return at.storage->stat(at.key); });
    if (info) urls.push_back(pattern);
    return {};
  }
  const size_t slash = pattern.rfind('/', wildcard);
  const size_t begin = slash == std::string::npos ? 0 : slash + 1;
  const size_t end = std::min(pattern.find('/', wildcard), pattern.size());
  const std::string folder = pattern.substr(0, begin);
  const std::string component = pattern.substr(begin, end - begin);
  ASSIGN_OR_RETURN(const std::vector<Listed> entries, list_folder(folder, component.substr(0, wildcard - begin)));
  for (const Listed& entry : entries) {
    if (::fnmatch(component.c_str(), entry.name.c_str(), FNM_PERIOD) != 0) continue;
    const std::string path = folder + entry.name;
    if (end < pattern.size()) {
      if (entry.folder) RETURN_IF_ERROR(add_matches(path + pattern.substr(end), path.size(), urls));
    } else if (entry.folder) {
      RETURN_IF_ERROR(add_folder(path, urls));
    } else {
      urls.push_back(path);
    }
  }
  return {};
}

Status add_input(const std::string& url, std::vector<std::string>& urls) {
  ASSIGN_OR_RETURN(const Location at, open_url(url));
  if (!at.key.empty()) {
    // A file is taken by its name first, so "a[1].txt" needs no escape.
    if (auto info = at.storage->stat(at.key)) {
      urls.push_back(url);
      return {};
    } else if (info.error().code() != ErrorCode::kNotFound && info.error().code() != ErrorCode::kInvalidArgument) {
      return tl::unexpected(std::move(info).error());
    }
  }
  const size_t before = urls.size();
  const bool pattern = url.find_first_of(kWildcards) != std::string::npos;
  RETURN_IF_ERROR(pattern ? add_matches(url, 0, urls) : add_folder(url, urls));
  if (urls.size() > before) return {};
  if (pattern) return fail(ErrorCode::kNotFound, "{}: no file matches", url);
  return fail(ErrorCode::kNotFound, "{}: no such file, nor a folder with files directly in it", url);
}

// "@list.txt" stands for the lines of that file; anything else for itself ("./@name" is a file with such a name).
Result<std::vector<std::string>> read_list(const std::string& input) {
  if (!input.starts_with('@')) return std::vector{input};
  ASSIGN_OR_RETURN(const Location at, open_url(input.substr(1)));
  ASSIGN_OR_RETURN(const std::string content, read_object(*at.storage, at.key, kMaxListBytes));
  std::vector<std::string> lines;
  for (size_t begin = 0; begin < content.size();) {
    const size_t end = std::min(content.find('\n', begin), content.size());
    std::string line = content.substr(begin, end - begin);
    if (line.ends_with('\r')) line.pop_back();
    if (!line.empty()) lines.push_back(std::move(line));
    begin = end + 1;
  }
  if (lines.empty()) return fail(ErrorCode::kInvalidArgument, "{}: the list is empty", at.url);
  return lines;
}

}  // namespace

Result<std::vector<std::string>> expand_inputs(const std::vector<std::string>& inputs) {
  if (inputs.empty()) return fail(ErrorCode::kInvalidArgument, "no inputs given");
  std::vector<std::string> urls;
  for (const std::string& input : inputs) {
    ASSIGN_OR_RETURN(const std::vector<std::string> patterns, read_list(input));
    for (const std::string& pattern : patterns) {
      ASSIGN_OR_RETURN(const std::vector<std::string> names, expand_braces(pattern));
      for (const std::string& name : names) RETURN_IF_ERROR(add_input(name, urls));
    }
  }
  std::sort(urls.begin(), urls.end());
  urls.erase(std::unique(urls.begin(), urls.end()), urls.end());
  return urls;
}

Result<std::vector<Input>> pin_inputs(std::span<const std::string> urls) {
  std::vector<Input> inputs;
  for (const std::string& url : urls) {
    ASSIGN_OR_RETURN(Location location, open_url(url));
    ASSIGN_OR_RETURN(const auto reader, location.storage->open_read(location.key));
    inputs.push_back({std::move(location), reader->size(), std::string(reader->version())});
  }
  return inputs;
}

Status check_tables(std::span<const Input> inputs, const formats::DocumentOptions& options,
                    const std::stop_token& stop) {
  for (const Input& input : inputs) {
    ASSIGN_OR_RETURN(const auto reader, open_input(input, stop));
    ASSIGN_OR_RETURN(const bool table, formats::is_parquet(*reader));
    if (table) RETURN_IF_ERROR(formats::open_documents(*reader, options));
  }
  return {};
}

int64_t total_bytes(std::span<const Input> inputs) {
  int64_t bytes = 0;
  for (const Input& input : inputs) bytes += input.size;
  return bytes;
}

Status StoppableReader::read_at(int64_t offset, std::span<std::byte> out) const {
  if (stop_.stop_requested()) return fail(ErrorCode::kCancelled, "read {}: stopped", name());
  return reader_->read_at(offset, out);
}

Result<std::unique_ptr<RandomReader>> open_input(const Input& input, std::stop_token stop) {
  OpenOptions options;
  options.expected_version = input.version;
  ASSIGN_OR_RETURN(auto reader, input.location.storage->open_read(input.location.key, options));
  return std::make_unique<StoppableReader>(std::move(reader), std::move(stop));
}

}  // namespace millrace::prepare
