// SPDX-License-Identifier: Apache-2.0
#include "millrace/checkpoint/records/keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <set>
#include <utility>

namespace millrace::checkpoint {

namespace {

constexpr std::string_view kStepPrefix = "step-";

std::optional<int64_t> parse_digits(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

}  // namespace

std::string prefix_below(const Location& location) {
  return location.key.empty() ? "" : location.key + "/";
}

std::string step_name(int64_t step) {
  return fmt::format("{}{:012}", kStepPrefix, step);
}

std::optional<int64_t> parse_step_name(std::string_view name) {
  if (!name.starts_with(kStepPrefix)) return std::nullopt;
  const auto step = parse_digits(name.substr(kStepPrefix.size()));
  if (!step || step_name(*step) != name) return std::nullopt;
  return step;
}

std::string RankPlaces::folder(int64_t rank) const {
  return in_folders ? fmt::format("ranks-{:05}", rank / kRanksOfFolder) : "";
}
std::string RankPlaces::file(int64_t rank) const {
  return fmt::format("{}{}rank-{:05}-of-{:05}.safetensors", folder(rank), in_folders ? "/" : "", rank, world_size);
}
std::string RankPlaces::record(int64_t rank) const {
  return fmt::format("{}{}part-{:05}-of-{:05}.json", folder(rank), in_folders ? "/" : "", rank, world_size);
}

std::string RankPlaces::failure(int64_t rank) const {
  return fmt::format("{}{}failed-{:05}-of-{:05}.json", folder(rank), in_folders ? "/" : "", rank, world_size);
}

std::optional<int64_t> restart_of(std::string_view attempt) {
  const size_t dash = attempt.find('-');
  if (!attempt.starts_with('r') || dash == attempt.npos || dash > 10) return std::nullopt;
  const std::string_view nonce = attempt.substr(dash + 1);
  const bool plain =
      std::all_of(nonce.begin(), nonce.end(), [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z'); });
  if (nonce.empty() || nonce.size() > 32 || !plain) return std::nullopt;
  return parse_digits(attempt.substr(1, dash - 1));
}

Result<Level> list_level(const Location& location) {
  const std::string prefix = prefix_below(location);
  Level level;
  ListPages pages(*location.storage, prefix, {.recursive = false});
  while (!pages.is_at_end()) {
    ASSIGN_OR_RETURN(ListPage page, pages.next());
    for (const std::string& directory : page.prefixes)
      level.directories.push_back(directory.substr(prefix.size(), directory.size() - prefix.size() - 1));
    for (ObjectInfo& object : page.objects) {
      object.key.erase(0, prefix.size());
      level.objects.push_back(std::move(object));
    }
  }
  return level;
}

Result<std::vector<ObjectInfo>> list_rank_files(const Location& attempt, const RankPlaces& places,
                                                std::span<const int64_t> ranks) {
  std::set<std::string> folders;
  for (const int64_t rank : ranks) folders.insert(places.folder(rank));
  std::vector<ObjectInfo> objects;
  for (const std::string& folder : folders) {
    ASSIGN_OR_RETURN(Level level, list_level(folder.empty() ? attempt : attempt.child(folder)));
    for (ObjectInfo& object : level.objects) {
      if (!folder.empty()) object.key.insert(0, folder + "/");
      objects.push_back(std::move(object));
    }
  }
  return objects;
}

Result<std::vector<int64_t>> list_step_directories(const Location& root) {
  ASSIGN_OR_RETURN(const Level level, list_level(root));
  std::vector<int64_t> steps;
  for (const std::string& name : level.directories) {
    if (const auto step = parse_step_name(name)) steps.push_back(*step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

Result<std::vector<std::string>> list_keys(const Location& location) {
  std::vector<std::string> keys;
  RETURN_IF_ERROR(for_each_object(*location.storage, prefix_below(location), [&](const ObjectInfo& object) {
    keys.push_back(object.key);
    return Status();
  }));
  return keys;
}

}  // namespace millrace::checkpoint
