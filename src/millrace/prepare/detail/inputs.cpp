// SPDX-License-Identifier: Apache-2.0
#include "millrace/prepare/detail/inputs.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "millrace/base/io/stoppable_reader.h"
#include "millrace/base/log.h"
#include "millrace/base/thread/executor.h"
#include "millrace/formats/parquet.h"
#include "millrace/prepare/detail/standard_input.h"
#include "millrace/storage/glob.h"

namespace millrace::prepare {

namespace {

constexpr int64_t kMaxListBytes = int64_t{1} << 30;

Result<FoundInput> located(const Match& match) {
  FoundInput found{.size = match.size, .version = match.version};
  ASSIGN_OR_RETURN(found.location, open_url(match.url));
  return found;
}

// Files only, however deep below the folder.
Status add_folder(const std::string& url, std::vector<FoundInput>& found) {
  ASSIGN_OR_RETURN(const FolderFiles files, files_below(url));
  for (const Match& file : files.files) {
    ASSIGN_OR_RETURN(found.emplace_back(), located(file));
  }
  if (!files.passed.empty()) {
    log(LogLevel::kWarning, "{}: {} below it are passed over, as names that begin with '_' are not data ({}{})", url,
        files.passed.size() == 1 ? "a file" : fmt::format("{} files", files.passed.size()), files.passed.front(),
        files.passed.size() == 1 ? "" : ", ...");
  }
  return {};
}

Status add_matches(const std::string& pattern, std::vector<FoundInput>& found) {
  ASSIGN_OR_RETURN(const std::vector<Match> matches, find_matches(pattern));
  for (const Match& match : matches) {
    if (match.folder) {
      RETURN_IF_ERROR(add_folder(match.url, found));
    } else {
      ASSIGN_OR_RETURN(found.emplace_back(), located(match));
    }
  }
  return {};
}

using TypedFiles = std::vector<std::optional<FoundInput>>;
// Keys of one folder, and the indices of the names that stand for each.
using KeysOfFolder = std::map<std::string_view, std::vector<size_t>>;

// More names of one folder than this are looked for in a listing of it. Fewer are asked for at once, in the time of one
// listing.
constexpr size_t kMostAskedInFolder = 8;
// A listing may take one page, and one more for each so many names. In the worst case, a folder of many other files, it
// then takes a quarter of the time of the questions: a page comes after the other, and 16 questions go out at once.
constexpr size_t kNamesForAPage = 64;

// Sets those of `found` that a listing of their folder shows. The others, and all after an error, are still to be asked
// for.
void find_in_listing(std::span<const Location> places, const KeysOfFolder& keys, TypedFiles& found) {
  const std::string_view first = keys.begin()->first, last = keys.rbegin()->first;
  const auto common = std::ranges::mismatch(first, last).in1;  // of all, as they are sorted
  ListPages pages(*places[keys.begin()->second.front()].storage, std::string(first.begin(), common),
                  {.recursive = false});
  size_t left = keys.size();
  for (size_t page = 0; page <= keys.size() / kNamesForAPage && left > 0 && !pages.is_at_end(); ++page) {
    const auto listed = pages.next();
    if (!listed) return;
    for (const ObjectInfo& object : listed->objects) {
      const auto names = keys.find(object.key);
      if (names == keys.end()) continue;
      for (const size_t i : names->second) found[i] = FoundInput{places[i], object.size, object.version};
      --left;
    }
  }
}

// For names in a bucket; elsewhere a listing costs more, or there is none.
void find_in_listings(std::span<const Location> places, TypedFiles& found) {
  std::map<std::pair<const Storage*, std::string_view>, KeysOfFolder> folders;
  for (size_t i = 0; i < places.size(); ++i) {
    const Location& at = places[i];
    if (at.key.empty() || !at.url.starts_with("s3://")) continue;
    const std::string_view folder = std::string_view(at.key).substr(0, at.key.rfind('/') + 1);
    folders[{at.storage.get(), folder}][at.key].push_back(i);
  }
  std::erase_if(folders, [](const auto& folder) { return folder.second.size() <= kMostAskedInFolder; });
  std::vector<const KeysOfFolder*> listed;
  for (const auto& [folder, keys] : folders) listed.push_back(&keys);
  if (listed.empty()) return;
  Executor executor(kOpenedAtOnce, "mr-open");
  parallel_for(executor, std::ssize(listed),
               [&](int64_t i) { find_in_listing(places, *listed[static_cast<size_t>(i)], found); });
}

// Looks for each typed name, several at a time: nullopt where it names no file.
Result<TypedFiles> find_files(std::span<const std::string> typed) {
  std::vector<Location> places(typed.size());
  for (size_t i = 0; i < typed.size(); ++i) {
    if (typed[i] == kStandardInput) {
      places[i].url = typed[i];
    } else {
      ASSIGN_OR_RETURN(places[i], open_url(typed[i]));
    }
  }
  TypedFiles found(typed.size());
  find_in_listings(places, found);
  RETURN_IF_ERROR(parallel_try(std::ssize(typed), kOpenedAtOnce, "mr-open", [&](int64_t number) -> Status {
    const auto i = static_cast<size_t>(number);
    const Location& at = places[i];
    if (found[i]) return {};
    if (at.url == kStandardInput) {
      found[i] = FoundInput{at};
      return {};
    }
    if (at.key.empty()) return {};
    const auto info = at.storage->stat(at.key);
    const bool is_absent =
        !info && (info.error().code() == ErrorCode::kNotFound || info.error().code() == ErrorCode::kInvalidArgument);
    if (is_absent) return {};
    if (!info) return tl::unexpected(info.error());
    found[i] = FoundInput{at, info->size, info->version};
    return {};
  }));
  return found;
}

// The files that a URL stands for that does not name one: a pattern's matches, or those below a folder.
Status add_many(const std::string& url, std::vector<FoundInput>& found) {
  const size_t before = found.size();
  const bool pattern = has_wildcards(url);
  RETURN_IF_ERROR(pattern ? add_matches(url, found) : add_folder(url, found));
  if (found.size() > before) return {};
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

Place place_of(const Location& at) {
  return at.storage ? Place{std::string(at.storage->name()), at.key} : Place{"", at.url};
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

// What the records call each input.
std::vector<std::string> stable_names(std::span<const FoundInput> inputs) {
  std::vector<Place> places;
  for (const FoundInput& input : inputs) places.push_back(place_of(input.location));
  if (places.empty()) return {};
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
  input.reader = std::move(spooled.reader);
  return input;
}

Result<Input> pin_input(const FoundInput& found) {
  const Location& location = found.location;
  const bool is_known = !found.version.empty() && !location.storage->capabilities().folders;
  const OpenOptions options =
      is_known ? OpenOptions{.expected_version = found.version, .known_size = found.size} : OpenOptions();
  ASSIGN_OR_RETURN(std::shared_ptr<const RandomReader> reader, location.storage->open_read(location.key, options));
  Input input{.location = location, .size = reader->size(), .version = std::string(reader->version())};
  input.identity = input.version;
  if (location.storage->capabilities().folders) {
    ASSIGN_OR_RETURN(const ObjectInfo info, location.storage->stat(location.key));
    if (info.version != input.version)
      return fail(ErrorCode::kCorruption, "{}: it changes while it is opened", location.url);
    input.identity = info.modified.ns_text();
  }
  input.reader = std::move(reader);
  return input;
}

// Sets input.table and input.packed on the way.
Status read_front(Input& input, const formats::DocumentOptions& options, const formats::TextRules& rules,
                  const std::stop_token& stop) {
  ASSIGN_OR_RETURN(const auto reader, open_input(input, stop));
  ASSIGN_OR_RETURN(input.table, formats::is_parquet(*reader));
  ASSIGN_OR_RETURN(input.packed, formats::is_packed(*reader));
  if (input.table) return formats::open_documents(*reader, options).map([](const auto&) {});
  ASSIGN_OR_RETURN(const auto stream, formats::open_stream(*reader));
  std::string head(formats::kTextHead, '\0');
  ASSIGN_OR_RETURN(const size_t size, stream->read(std::as_writable_bytes(std::span(head))));
  // Only the unpacked content of a packed file shows what it is.
  const bool whole = size < head.size();
  head.resize(size);
  return formats::check_text(reader->name(), head, whole, options.mode, rules);
}

}  // namespace

Result<std::vector<FoundInput>> find_inputs(const std::vector<std::string>& inputs) {
  if (inputs.empty()) return fail(ErrorCode::kInvalidArgument, "no inputs given");
  std::vector<std::string> typed;
  for (const std::string& input : inputs) {
    ASSIGN_OR_RETURN(const std::vector<std::string> patterns, read_list(input));
    for (const std::string& pattern : patterns) {
      ASSIGN_OR_RETURN(const std::vector<std::string> names, expand_names(pattern));
      typed.insert(typed.end(), names.begin(), names.end());
    }
  }
  // A file is taken by its name first, so "a[1].txt" needs no escape.
  ASSIGN_OR_RETURN(TypedFiles files, find_files(typed));
  std::vector<FoundInput> found;
  for (size_t i = 0; i < typed.size(); ++i) {
    if (files[i]) {
      found.push_back(*std::move(files[i]));
    } else {
      RETURN_IF_ERROR(add_many(typed[i], found));
    }
  }
  const auto place = [](const FoundInput& input) { return place_of(input.location); };
  std::ranges::stable_sort(found, {}, place);
  const auto [same, end] = std::ranges::unique(found, {}, place);
  found.erase(same, end);
  return found;
}

Result<std::vector<Input>> open_inputs(std::span<const FoundInput> all, const Task& task,
                                       const formats::DocumentOptions& options, const formats::TextRules& rules,
                                       const std::stop_token& stop) {
  const std::vector<std::string> names = stable_names(all);
  std::vector<size_t> own;
  for (auto i = static_cast<size_t>(task.index); i < all.size(); i += static_cast<size_t>(task.count)) own.push_back(i);
  std::vector<Input> inputs(own.size());
  const auto open = [&](int64_t number) -> Status {
    if (stop.stop_requested()) return fail(ErrorCode::kCancelled, "stopped");
    const auto i = static_cast<size_t>(number);
    const FoundInput& found = all[own[i]];
    const bool is_stored = found.location.storage != nullptr;
    Input& input = inputs[i];
    ASSIGN_OR_RETURN(input, is_stored ? pin_input(found) : pin_standard_input(task, stop));
    input.name = names[own[i]];
    input.front = read_front(input, options, rules, stop);
    if (i >= kKeptOpen && is_stored) input.reader.reset();
    return {};
  };
  RETURN_IF_ERROR(parallel_try(std::ssize(own), kOpenedAtOnce, "mr-open", open));
  return inputs;
}

Status check_fronts(std::span<const Input> inputs) {
  for (const Input& input : inputs) RETURN_IF_ERROR(Status(input.front));
  return {};
}

int64_t total_bytes(std::span<const Input> inputs) {
  int64_t bytes = 0;
  for (const Input& input : inputs) bytes += input.size;
  return bytes;
}

Result<std::unique_ptr<RandomReader>> open_input(const Input& input, std::stop_token stop) {
  if (input.reader) return std::make_unique<StoppableReader>(input.reader, std::move(stop));
  const OpenOptions options{.expected_version = input.version, .known_size = input.size};
  ASSIGN_OR_RETURN(auto reader, input.location.storage->open_read(input.location.key, options));
  return std::make_unique<StoppableReader>(std::move(reader), std::move(stop));
}

}  // namespace millrace::prepare
