// SPDX-License-Identifier: Apache-2.0
#include "millrace/lerobot/edit.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "millrace/lerobot/assemble.h"
#include "millrace/lerobot/source.h"

namespace millrace::lerobot {
namespace {

// An assembly of one source, without episodes yet.
Assembly assembly_of(const Source& source, Version to) {
  return {.to = to,
          .groot = to != Version::kV30 && !source.modality.is_null(),
          .tasks = source.tasks,
          .info = source.info,
          .modality = source.modality};
}

// Files of v3.0 as large as the source says.
MakeOptions options_for(const Source& source, MakeOptions options) {
  options.data_file_mb = source.dataset.info.data_file_mb.value_or(options.data_file_mb);
  options.video_file_mb = source.dataset.info.video_file_mb.value_or(options.video_file_mb);
  return options;
}

Result<std::vector<MadeDataset>> make_parts(const Source& source, const std::string& target,
                                            const std::vector<SplitPart>& parts, const MakeOptions& options) {
  if (parts.empty()) return fail(ErrorCode::kInvalidArgument, "there is no part to make");
  std::vector<Assembly> assemblies;
  for (const SplitPart& part : parts) {
    const auto repeated = std::ranges::count(parts, part.name, &SplitPart::name);
    if (!is_part_name(part.name) && !(part.name.empty() && parts.size() == 1)) {
      return fail(ErrorCode::kInvalidArgument, "'{}' is no name for a folder", part.name);
    }
    if (repeated > 1) return fail(ErrorCode::kInvalidArgument, "two parts are called '{}'", part.name);
    Assembly& assembly = assemblies.emplace_back(assembly_of(source, source.dataset.info.version));
    assembly.name = part.name;
    ASSIGN_OR_RETURN(const auto episodes, episodes_in(part.ranges, source.dataset.episodes.size()));
    for (const size_t episode : episodes) assembly.picks.push_back({&source, episode});
    if (episodes.empty()) return fail(ErrorCode::kInvalidArgument, "the part '{}' has no episodes", part.name);
  }
  return assemble(assemblies, target, options_for(source, options));
}

// ---- merging

// What two features must have in common; not what `info` says of a codec.
std::optional<std::string> feature_difference(const Json& a, const Json& b) {
  for (const char* key : {"dtype", "shape"}) {
    const Json *mine = member(a, key), *other = member(b, key);
    if ((mine == nullptr) != (other == nullptr) || (mine != nullptr && *mine != *other)) return key;
  }
  const Json *mine = member(a, "names"), *other = member(b, "names");
  const bool both = mine != nullptr && other != nullptr && !mine->is_null() && !other->is_null();
  if (both && *mine != *other) return "names";
  return std::nullopt;
}

std::optional<std::string> features_difference(const Json& a, const Json& b) {
  for (const auto& [name, feature] : a.items()) {
    const Json* const other = member(b, name);
    if (other == nullptr) return fmt::format("it has no feature {}", name);
    if (const auto key = feature_difference(feature, *other)) return fmt::format("{} of {} differs", *key, name);
  }
  for (const auto& [name, unused] : b.items()) {
    if (member(a, name) == nullptr) return fmt::format("it has the feature {} as well", name);
  }
  return std::nullopt;
}

Status check_alike(const Source& first, const Source& other) {
  const auto differ = [&](const std::string& what) {
    return fail(ErrorCode::kInvalidArgument, "{} cannot be merged with {}: {}", other.url(), first.url(), what);
  };
  const Info &a = first.dataset.info, &b = other.dataset.info;
  if (a.fps != b.fps) return differ(fmt::format("fps is {}, not {}", b.fps.value_or(0), a.fps.value_or(0)));
  if (a.robot_type != b.robot_type && !a.robot_type.empty() && !b.robot_type.empty()) {
    return differ(fmt::format("robot_type is '{}', not '{}'", b.robot_type, a.robot_type));
  }
  if (const auto what = features_difference(first.info["features"], other.info["features"])) return differ(*what);
  if (first.modality != other.modality) return differ("meta/modality.json differs");
  return {};
}

Version newest_of(const std::vector<std::unique_ptr<Source>>& sources) {
  Version newest = Version::kUnknown;
  for (const auto& source : sources) newest = std::max(newest, source->dataset.info.version);
  return newest;
}

// Adds the texts of `source` that are new, and says how its numbers change.
void add_tasks(Assembly& assembly, const Source& source) {
  std::vector<int64_t> numbers;
  bool same = true;
  for (const std::string& text : source.tasks) {
    const auto known = std::ranges::find(assembly.tasks, text);
    numbers.push_back(known - assembly.tasks.begin());
    same = same && numbers.back() + 1 == static_cast<int64_t>(numbers.size());
    if (known == assembly.tasks.end()) assembly.tasks.push_back(text);
  }
  if (!same) assembly.task_numbers[&source] = std::move(numbers);
}

}  // namespace

Result<std::vector<MadeDataset>> split_dataset(const Location& source, const std::string& target,
                                               const std::vector<SplitPart>& parts, const MakeOptions& options) {
  ASSIGN_OR_RETURN(const auto from, Source::open(source));
  return make_parts(*from, target, parts, options);
}

Result<std::vector<MadeDataset>> split_dataset(const Location& source, const std::string& target,
                                               const std::vector<SplitFraction>& fractions,
                                               const MakeOptions& options) {
  ASSIGN_OR_RETURN(const auto from, Source::open(source));
  std::vector<double> shares;
  for (const SplitFraction& each : fractions) shares.push_back(each.fraction);
  ASSIGN_OR_RETURN(const auto ends, ends_of_fractions(shares, from->dataset.episodes.size()));
  std::vector<SplitPart> parts;
  int64_t begin = 0;
  for (size_t i = 0; i < fractions.size(); ++i) {
    const auto end = static_cast<int64_t>(ends[i]);
    parts.push_back({fractions[i].name, {{begin, end - 1}}});
    begin = end;
  }
  return make_parts(*from, target, parts, options);
}

Result<MadeDataset> delete_episodes(const Location& source, const std::string& target,
                                    const std::vector<EpisodeRange>& ranges, const MakeOptions& options) {
  ASSIGN_OR_RETURN(const auto from, Source::open(source));
  const size_t count = from->dataset.episodes.size();
  ASSIGN_OR_RETURN(const auto gone, episodes_in(ranges, count));
  SplitPart kept;
  for (size_t i = 0; i < count; ++i) {
    const auto number = static_cast<int64_t>(i);
    if (!std::ranges::binary_search(gone, i)) kept.ranges.push_back({number, number});
  }
  if (kept.ranges.empty()) return fail(ErrorCode::kInvalidArgument, "no episode would be left");
  ASSIGN_OR_RETURN(const auto made, make_parts(*from, target, {kept}, options));
  return made.front();
}

Result<MadeDataset> merge_datasets(const std::vector<Location>& sources, const std::string& target, Version to,
                                   const MakeOptions& options) {
  if (sources.size() < 2) return fail(ErrorCode::kInvalidArgument, "a merge takes two datasets or more");
  std::vector<std::unique_ptr<Source>> opened;
  for (const Location& source : sources) {
    ASSIGN_OR_RETURN(opened.emplace_back(), Source::open(source));
    RETURN_IF_ERROR(check_alike(*opened.front(), *opened.back()));
    if (to == Version::kUnknown && opened.back()->is_v3() != opened.front()->is_v3()) {
      return fail(ErrorCode::kInvalidArgument, "{} is {} and {} is {}: say with --to which version to write",
                  opened.front()->url(), opened.front()->dataset.info.version_text, opened.back()->url(),
                  opened.back()->dataset.info.version_text);
    }
  }
  const Source& first = *opened.front();
  Assembly assembly = assembly_of(first, to == Version::kUnknown ? newest_of(opened) : to);
  for (const auto& source : opened) {
    add_tasks(assembly, *source);
    for (size_t i = 0; i < source->dataset.episodes.size(); ++i) assembly.picks.push_back({source.get(), i});
  }
  ASSIGN_OR_RETURN(const auto made, assemble({assembly}, target, options_for(first, options)));
  return made.front();
}

}  // namespace millrace::lerobot
