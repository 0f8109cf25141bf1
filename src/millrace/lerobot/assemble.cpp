// SPDX-License-Identifier: Apache-2.0
#include "millrace/lerobot/assemble.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "millrace/base/hash/hash.h"
#include "millrace/lerobot/compute_stats.h"
#include "millrace/lerobot/episode_stats.h"
#include "millrace/lerobot/info.h"
#include "millrace/lerobot/making.h"
#include "millrace/lerobot/validate.h"

namespace millrace::lerobot {
namespace {

std::vector<const Source*> sources_of(const Assembly& assembly) {
  std::vector<const Source*> sources;
  for (const Pick& pick : assembly.picks) {
    if (std::ranges::find(sources, pick.source) == sources.end()) sources.push_back(pick.source);
  }
  return sources;
}

// What must be equal for a run to go on with another's files.
std::string identity_of(const std::vector<Assembly>& assemblies, const MakeOptions& options) {
  std::string all = fmt::format("{}\n{}\n", options.data_file_mb, options.video_file_mb);
  for (const Assembly& assembly : assemblies) {
    all += fmt::format("{}\n{}\n{}\n{}\n{}\n", assembly.name, static_cast<int>(assembly.to), assembly.groot,
                       assembly.renumber, assembly.modality.dump());
    const auto sources = sources_of(assembly);
    for (const Source* source : sources) {
      all += source->url() + "\n";
      for (const TreeFile& file : source->dataset.tree.files()) {
        all += fmt::format("{}\t{}\t{}\n", file.path, file.size, file.modified.ns_text());
      }
    }
    for (const Pick& pick : assembly.picks) {
      all += fmt::format("{}:{}\n", std::ranges::find(sources, pick.source) - sources.begin(), pick.episode);
    }
  }
  const Hash128 hash = xxh3_128(all);
  return fmt::format("{:016x}{:016x}\n", hash.high, hash.low);
}

// info.json of the result: what is not about files stays as the first source has it.
Json info_of(const Making& making) {
  const Assembly& assembly = making.assembly();
  const bool is_v3 = assembly.to == Version::kV30;
  Json info = assembly.info;
  info["codebase_version"] = version_text(assembly.to);
  for (const char* key : {"total_videos", "total_chunks", "data_files_size_in_mb", "video_files_size_in_mb"}) {
    info.erase(key);
  }
  const auto episodes = static_cast<int64_t>(making.episodes());
  const auto cameras = static_cast<int64_t>(making.cameras().size());
  if (is_v3) {
    info["data_files_size_in_mb"] = static_cast<int64_t>(making.options().data_file_mb);
    info["video_files_size_in_mb"] = static_cast<int64_t>(making.options().video_file_mb);
  } else {
    info["total_videos"] = episodes * cameras;
    info["total_chunks"] = (episodes + kFilesAChunk - 1) / kFilesAChunk;
  }
  info["chunks_size"] = kFilesAChunk;
  info["total_episodes"] = episodes;
  info["total_frames"] = making.first_row(making.episodes());
  info["total_tasks"] = assembly.tasks.size();
  if (assembly.renumber) info["splits"] = {{"train", fmt::format("0:{}", episodes)}};
  info["data_path"] = usual_template(assembly.to, false);
  info["video_path"] = cameras == 0 ? Json(nullptr) : Json(usual_template(assembly.to, true));
  for (auto& [name, feature] : info["features"].items()) {
    if (text_at(feature, "dtype").value_or("") == "video") continue;
    feature.erase("fps");
    if (is_v3) feature["fps"] = info["fps"];
  }
  return info;
}

// ---- meta/stats.json

// A list of numbers, and no lists within.
bool is_flat(const Json& value) {
  return value.is_array() && std::ranges::all_of(value, [](const Json& each) { return !each.is_array(); });
}

Result<ComputedStats> computed_of(const Making& making, bool groot) {
  Report problems(0);
  ASSIGN_OR_RETURN(const Dataset dataset, read_dataset(making.root(), problems));
  return compute_stats(dataset, {.groot = groot, .threads = making.options().threads, .stop = making.options().stop});
}

// Statistics of numbers are computed from all rows. Those of pictures, and of columns with a NaN, are merged from the
// episodes'.
Result<Json> global_stats(Making& making) {
  ASSIGN_OR_RETURN(const std::span<const Json> episodes, making.stats());
  Json all = Json::object();
  for (const Feature& feature : making.pick(0).source->dataset.info.features) {
    Json merged = merged_stats(episodes, feature.name);
    if (!merged.is_null()) all[feature.name] = std::move(merged);
  }
  const auto computed = computed_of(making, false);
  if (!computed && computed.error().code() != ErrorCode::kCorruption) return tl::unexpected(computed.error());
  if (!computed) return all;
  ASSIGN_OR_RETURN(Json exact, parse_python_json(stats_json(*computed, false)));
  for (auto& [feature, stats] : exact.items()) {
    const Json* const merged = member(all, feature);
    const Json* const mean = merged == nullptr ? nullptr : member(*merged, "mean");
    if (mean == nullptr || is_flat(*mean)) all[feature] = std::move(stats);
  }
  return all;
}

// Those that LeRobot wrote with v2.0. GR00T finds what it wants there, too, and does not write the file again.
Json stats_of_v20(const Making& making, const Json& all) {
  Json kept = Json::object();
  for (const auto& [name, stats] : all.items()) {
    const Feature* const feature = making.pick(0).source->dataset.info.find(name);
    const bool for_groot = !making.assembly().modality.is_null() && feature != nullptr && feature->is_float();
    Json& here = kept[name] = Json::object();
    for (const char* each : {"mean", "std", "max", "min"}) {
      if (const Json* const value = member(stats, each); value != nullptr) here[each] = *value;
    }
    for (const char* each : {"q01", "q99"}) {
      if (const Json* const value = member(stats, each); for_groot && value != nullptr) here[each] = *value;
    }
  }
  return kept;
}

Status write_global_stats(Making& making) {
  const Assembly& assembly = making.assembly();
  if (assembly.to == Version::kV21 && !assembly.groot) return {};
  return making.put("meta/stats.json", [&]() -> Result<std::vector<std::byte>> {
    if (!assembly.groot) {
      ASSIGN_OR_RETURN(const Json stats, global_stats(making));
      return bytes_of((assembly.to == Version::kV20 ? stats_of_v20(making, stats) : stats).dump(4) + "\n");
    }
    ASSIGN_OR_RETURN(const ComputedStats stats, computed_of(making, true));
    return bytes_of(stats_json(stats, true));
  });
}

// ---- one dataset

// Rules of error level that sources break. Their rows and pictures are those of the result, which may break them too.
Result<std::vector<std::string>> broken_by_sources(const Assembly& assembly, const ValidateOptions& options) {
  std::vector<std::string> rules;
  for (const Source* source : sources_of(assembly)) {
    ASSIGN_OR_RETURN(const Validation given, validate_dataset(source->dataset.tree.root(), options));
    for (std::string& rule : rules_in_error(given.findings)) rules.push_back(std::move(rule));
  }
  return rules;
}

Result<std::vector<std::string>> check_result(const Making& making) {
  ValidateOptions options;
  options.stop = making.options().stop;
  options.threads = making.options().threads;
  if (making.assembly().groot) options.groot = GrootVersion::kN17;
  ASSIGN_OR_RETURN(const Validation made, validate_dataset(making.root(), options));
  const std::vector<std::string> broken = rules_in_error(made.findings);
  if (broken.empty()) return broken;
  ASSIGN_OR_RETURN(const std::vector<std::string> known, broken_by_sources(making.assembly(), options));
  RETURN_IF_ERROR(refuse_errors(made.findings, "the result, which is not given its name", known));
  return broken;
}

void set_phase(const MakeOptions& options, const std::string& name, const char* phase) {
  if (options.progress != nullptr) options.progress->set_phase(name.empty() ? phase : name + ": " + phase);
}

Result<MadeDataset> make(const Assembly& assembly, const MakeOptions& options, PartialFolder& folder) {
  Making making(assembly, options, folder);
  set_phase(options, assembly.name, "files");
  RETURN_IF_ERROR(assembly.to == Version::kV30 ? write_v3(making) : write_v2(making));
  if (!assembly.modality.is_null()) {
    RETURN_IF_ERROR(making.put(
        kModalityFile, [&]() -> Result<std::vector<std::byte>> { return bytes_of(assembly.modality.dump(4) + "\n"); }));
  }
  RETURN_IF_ERROR(making.put(std::string(kInfoFile), [&]() -> Result<std::vector<std::byte>> {
    return bytes_of(info_of(making).dump(4) + "\n");
  }));
  set_phase(options, assembly.name, "statistics");
  RETURN_IF_ERROR(write_global_stats(making));
  set_phase(options, assembly.name, "validate");
  ASSIGN_OR_RETURN(auto inherited, check_result(making));
  MadeDataset made = making.report();
  made.inherited = std::move(inherited);
  return made;
}

// ---- a dry run

int64_t cameras_of(const Assembly& assembly) {
  return static_cast<int64_t>(assembly.picks.front().source->dataset.info.cameras().size());
}

int64_t items_of(const Assembly& assembly) {
  return static_cast<int64_t>(assembly.picks.size()) * (1 + cameras_of(assembly));
}

// Episodes of a camera in files that do not go whole into the result.
int64_t cut_episodes(const Assembly& assembly, const std::string& camera) {
  const PathOf path_of = video_path_of(camera);
  int64_t cut = 0;
  for (const EpisodeRun& run : runs_by_file(assembly, path_of)) {
    int64_t frames = 0;
    for (size_t i = run.begin; i < run.end; ++i) {
      frames += assembly.picks[i].source->episode(assembly.picks[i].episode).length;
    }
    const Source& source = *assembly.picks[run.begin].source;
    const auto all = source.file_frames.find(path_of(assembly.picks[run.begin]));
    const bool is_whole = all != source.file_frames.end() && all->second == frames && assembly.to == Version::kV30;
    if (source.is_v3() && !is_whole) cut += static_cast<int64_t>(run.end - run.begin);
  }
  return cut;
}

MadeDataset planned(const Assembly& assembly, const MakeOptions& options) {
  MadeDataset plan{.name = assembly.name, .version = std::string(version_text(assembly.to))};
  plan.episodes = static_cast<int64_t>(assembly.picks.size());
  for (const Pick& pick : assembly.picks) plan.frames += pick.source->episode(pick.episode).length;
  const bool is_v3 = assembly.to == Version::kV30;
  const bool adds_stats = assembly.groot && assembly.to == Version::kV21;         // to those of episodes
  plan.files = 4 + (adds_stats ? 1 : 0) + (assembly.modality.is_null() ? 0 : 1);  // of meta/
  const auto files_of = [&](const PathOf& path, double limit_mb) {
    return is_v3 ? static_cast<int64_t>(runs_by_size(assembly, path, limit_mb).size()) : plan.episodes;
  };
  plan.files += files_of(data_path_of(), options.data_file_mb);
  for (const Feature* camera : assembly.picks.front().source->dataset.info.cameras()) {
    plan.files += files_of(video_path_of(camera->name), options.video_file_mb);
    plan.cut_episodes += cut_episodes(assembly, camera->name);
  }
  return plan;
}

double bytes_of_picks(const Assembly& assembly) {
  double bytes = 0;
  for (const Pick& pick : assembly.picks) {
    bytes += pick.source->bytes_in(pick.source->data_path(pick.episode), pick.episode);
    for (size_t camera = 0; camera < pick.source->dataset.info.cameras().size(); ++camera) {
      bytes += pick.source->bytes_in(pick.source->video_path(pick.episode, camera), pick.episode);
    }
  }
  return bytes;
}

// Each file that an episode lies in must be there; a name stands for the others that are not.
Status check_files(const Assembly& assembly) {
  std::string first;
  int64_t missing = 0;
  std::set<std::string> seen;
  for (const Pick& pick : assembly.picks) {
    const Source& source = *pick.source;
    std::vector<std::string> paths{source.data_path(pick.episode)};
    for (size_t camera = 0; camera < source.dataset.info.cameras().size(); ++camera) {
      paths.push_back(source.video_path(pick.episode, camera));
    }
    for (const std::string& path : paths) {
      if (source.dataset.tree.find(path) != nullptr) continue;
      std::string url = source.dataset.tree.root().child(path).url;
      if (!seen.insert(url).second) continue;
      if (missing++ == 0) first = std::move(url);
    }
  }
  if (missing == 0) return {};
  return fail(
      ErrorCode::kNotFound,
      "{} is missing{}; `millrace lerobot validate` lists what is. A camera without videos is left out by taking "
      "its feature out of meta/info.json",
      first, missing == 1 ? "" : fmt::format(", and so are {} more", missing - 1));
}

// New files in a source would change it.
Status check_target(const std::vector<Assembly>& assemblies, const std::string& target) {
  ASSIGN_OR_RETURN(const Location place, open_url(target));
  if (!place.storage->capabilities().is_local()) {
    return fail(ErrorCode::kInvalidArgument,
                "{}: the result goes to a folder on this machine; `millrace sync` copies it", target);
  }
  for (const Assembly& assembly : assemblies) {
    for (const Source* source : sources_of(assembly)) {
      const Location& root = source->dataset.tree.root();
      if (!source->dataset.tree.is_local() || !place.key.starts_with(root.key + "/")) continue;
      return fail(ErrorCode::kInvalidArgument, "{} lies in the source {}: name a folder outside of it", target,
                  root.url);
    }
  }
  return {};
}

}  // namespace

Result<std::vector<MadeDataset>> assemble(const std::vector<Assembly>& assemblies, const std::string& target,
                                          const MakeOptions& options) {
  std::vector<MadeDataset> made;
  int64_t items = 0;
  for (const Assembly& assembly : assemblies) {
    RETURN_IF_ERROR(check_files(assembly));
    made.push_back(planned(assembly, options));
    items += items_of(assembly);
  }
  if (options.dry_run) return made;
  RETURN_IF_ERROR(check_target(assemblies, target));
  ASSIGN_OR_RETURN(const auto folder, PartialFolder::open(target, identity_of(assemblies, options)));
  if (folder->is_new()) {
    double bytes = 0;
    for (const Assembly& assembly : assemblies) bytes += bytes_of_picks(assembly);
    const Location& root = folder->root();
    RETURN_IF_ERROR(check_space(*root.storage, root.key + "/", static_cast<int64_t>(bytes), target));
  }
  if (options.progress != nullptr) options.progress->set_totals(0, items);
  for (size_t i = 0; i < assemblies.size(); ++i) {
    const int64_t cut = made[i].cut_episodes;
    ASSIGN_OR_RETURN(made[i], make(assemblies[i], options, *folder));
    made[i].cut_episodes = cut;
  }
  RETURN_IF_ERROR(folder->finish());
  return made;
}

}  // namespace millrace::lerobot
