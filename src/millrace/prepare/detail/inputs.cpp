// SPDX-License-Identifier: Apache-2.0
#include "millrace/prepare/detail/inputs.h"

#include <fmt/format.h>

#include <algorithm>

#include "millrace/base/log.h"
#include "millrace/formats/parquet.h"
#include "millrace/prepare/detail/standard_input.h"
#include "millrace/storage/glob.h"

namespace millrace::prepare {

namespace {

constexpr int64_t kMaxListBytes = int64_t{1} << 30;

// Files only, however deep below the folder.
Status add_folder(const std::string& url, std::vector<std::string>& urls) {
  ASSIGN_OR_RETURN(const FolderFiles files, files_below(url));
  urls.insert(urls.end(), files.urls.begin(), files.urls.end());
  if (!files.passed.empty()) {
    log(LogLevel::kWarning, "{}: {} below it are passed over, as names that begin with '_' are no data ({}{})", url,
        files.passed.size() == 1 ? "a file" : fmt::format("{} files", files.passed.size()), files.passed.front(),
        files.passed.size() == 1 ? "" : ", ...");
  }
  return {};
}

Status add_matches(const std::string& pattern, std::vector<std::string>& urls) {
  ASSIGN_OR_RETURN(const std::vector<Match> matches, find_matches(pattern));
  for (const Match& match : matches) {
    if (match.folder) {
      RETURN_IF_ERROR(add_folder(match.url, urls));
    } else {
      urls.push_back(match.url);
    }
  }
  return {};
}

Status add_input(const std::string& url, std::vector<std::string>& urls) {
  if (url == kStandardInput) {
    urls.push_back(url);
    return {};
  }
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
  RETURN_IF_ERROR(pattern ? add_matches(url, urls) : add_folder(url, urls));
  if (urls.size() > before) return {};
  if (pattern) return fail(ErrorCode::kNotFound, "{}: no file matches", url);
  return fail(ErrorCode::kNotFound, "{}: no such file, nor a folder with files below it", url);
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

// The storage and the key, which are the same however a file is spelled.
struct Place {
  std::string storage, key;
  auto operator<=>(const Place&) const = default;
};

Result<Place> place_of(const std::string& url) {
  if (url == kStandardInput) return Place{"", url};
  ASSIGN_OR_RETURN(const Location at, open_url(url));
  return Place{std::string(at.storage->name()), at.key};
}

// The length of the folder, with the '/' at its end, that all keys lie in.
size_t common_folder(std::span<const Place> places) {
  const std::string& first = places.front().key;
  size_t common = first.size();
  for (const Place& place : places) {
    const auto differs = std::mismatch(first.begin(), first.begin() + static_cast<ptrdiff_t>(common), place.key.begin(),
                                       place.key.end());
    common = static_cast<size_t>(differs.first - first.begin());
  }
  const size_t slash = first.substr(0, common).rfind('/');
  return slash == std::string::npos ? 0 : slash + 1;
}

// What the records call each of `urls`.
Result<std::vector<std::string>> stable_names(std::span<const std::string> urls) {
  std::vector<Place> places;
  for (const std::string& url : urls) {
    ASSIGN_OR_RETURN(Place place, place_of(url));
    places.push_back(std::move(place));
  }
  if (places.empty()) return std::vector<std::string>();
  const bool one_storage =
      std::ranges::all_of(places, [&](const Place& place) { return place.storage == places.front().storage; });
  const size_t common = one_storage ? common_folder(places) : 0;
  std::vector<std::string> names;
  for (const Place& place : places) {
    // The query of a URL may be a signature, which is a secret and another one every time.
    const std::string key = place.storage.starts_with("http") ? place.key.substr(0, place.key.find('?')) : place.key;
    names.push_back(one_storage ? key.substr(std::min(common, key.size())) : fmt::format("{} {}", place.storage, key));
  }
  return names;
}

Result<Input> pin_standard_input(const Task& task, const std::stop_token& stop) {
  if (task.count > 1) {
    return fail(ErrorCode::kInvalidArgument,
                "standard input (\"-\") cannot be shared by {} tasks: write it to files, or run one task", task.count);
  }
  ASSIGN_OR_RETURN(SpooledInput spooled, spool_standard_input(stop));
  Input input;
  input.location.url = kStandardInput;
  input.size = spooled.reader->size();
  input.identity = to_hex(spooled.hash);
  input.held = std::move(spooled.reader);
  return input;
}

Result<Input> pin_input(const std::string& url) {
  ASSIGN_OR_RETURN(Location location, open_url(url));
  ASSIGN_OR_RETURN(const auto reader, location.storage->open_read(location.key));
  Input input{.size = reader->size(), .version = std::string(reader->version())};
  input.identity = input.version;
  if (location.storage->capabilities().folders) {
    ASSIGN_OR_RETURN(const ObjectInfo info, location.storage->stat(location.key));
    if (info.version != input.version) return fail(ErrorCode::kCorruption, "{}: it changes while it is opened", url);
    input.identity = fmt::format("{}", info.modified.time_since_epoch().count());
  }
  input.location = std::move(location);
  return input;
}

Status check_input(const Input& input, const formats::DocumentOptions& options, const formats::TextRules& rules,
                   const std::stop_token& stop) {
  ASSIGN_OR_RETURN(const auto reader, open_input(input, stop));
  ASSIGN_OR_RETURN(const bool table, formats::is_parquet(*reader));
  if (table) return formats::open_documents(*reader, options).map([](const auto&) {});
  ASSIGN_OR_RETURN(const auto stream, formats::open_stream(*reader));
  std::string head(formats::kTextHead, '\0');
  ASSIGN_OR_RETURN(const size_t size, stream->read(std::as_writable_bytes(std::span(head))));
  // Of a packed file nothing but what is packed says what it is.
  const bool whole = size < head.size();
  head.resize(size);
  return formats::check_text(reader->name(), head, whole, rules);
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
  std::vector<std::pair<Place, std::string>> placed;
  for (std::string& url : urls) {
    ASSIGN_OR_RETURN(Place place, place_of(url));
    placed.emplace_back(std::move(place), std::move(url));
  }
  std::ranges::stable_sort(placed, {}, &std::pair<Place, std::string>::first);
  std::vector<std::string> sorted;
  for (size_t i = 0; i < placed.size(); ++i) {
    if (i == 0 || placed[i].first != placed[i - 1].first) sorted.push_back(std::move(placed[i].second));
  }
  return sorted;
}

Result<std::vector<Input>> pin_inputs(std::span<const std::string> urls, const Task& task,
                                      const std::stop_token& stop) {
  ASSIGN_OR_RETURN(const std::vector<std::string> names, stable_names(urls));
  std::vector<Input> inputs;
  for (auto i = static_cast<size_t>(task.index); i < urls.size(); i += static_cast<size_t>(task.count)) {
    ASSIGN_OR_RETURN(Input input, urls[i] == kStandardInput ? pin_standard_input(task, stop) : pin_input(urls[i]));
    input.name = names[i];
    inputs.push_back(std::move(input));
  }
  return inputs;
}

Status check_inputs(std::span<const Input> inputs, const formats::DocumentOptions& options,
                    const formats::TextRules& rules, const std::stop_token& stop) {
  for (const Input& input : inputs) RETURN_IF_ERROR(check_input(input, options, rules, stop));
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
  if (input.held) return std::make_unique<StoppableReader>(input.held, std::move(stop));
  OpenOptions options;
  options.expected_version = input.version;
  ASSIGN_OR_RETURN(auto reader, input.location.storage->open_read(input.location.key, options));
  return std::make_unique<StoppableReader>(std::move(reader), std::move(stop));
}

}  // namespace millrace::prepare
