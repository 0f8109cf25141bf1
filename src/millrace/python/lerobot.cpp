// SPDX-License-Identifier: Apache-2.0
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <utility>
#include <variant>

#include "millrace/lerobot/diff.h"
#include "millrace/lerobot/edit.h"
#include "millrace/python/interruptible.h"
#include "millrace/python/path_arg.h"
#include "millrace/python/pyarrow.h"
#include "millrace/python/results.h"

namespace millrace::python {

namespace {

using lerobot::EpisodeRange;
using lerobot::MadeDataset;
using lerobot::MakeOptions;
using lerobot::Version;
using EpisodeList = std::variant<std::string, std::vector<int64_t>>;  // "0-9,12" or numbers

std::vector<EpisodeRange> ranges_of(const EpisodeList& list) {
  if (const auto* text = std::get_if<std::string>(&list)) return unwrap(lerobot::parse_episode_list(*text));
  std::vector<EpisodeRange> ranges;
  for (const int64_t episode : std::get<std::vector<int64_t>>(list)) {
    if (episode < 0) throw nb::value_error("episodes: numbers from 0");
    ranges.push_back({episode, episode});
  }
  return ranges;
}

Version version_of(std::string_view text) {
  const Version version = lerobot::parse_version(text);
  if (version == Version::kUnknown) throw nb::value_error("to: expected '2.0', '2.1' or '3.0'");
  return version;
}

MadeDatasetResult made_dict(const std::string& target, const MadeDataset& made) {
  MadeDatasetResult d;
  d["output"] = made.name.empty() ? target : target + (target.ends_with('/') ? "" : "/") + made.name;
  d["version"] = made.version;
  d["episodes"] = made.episodes;
  d["frames"] = made.frames;
  d["files"] = made.files;
  d["reused"] = made.reused;
  d["cut_episodes"] = made.cut_episodes;
  d["copied_videos"] = made.copied_videos;
  d["encoded_videos"] = made.encoded_videos;
  d["min_psnr_db"] = made.min_psnr_db;
  d["inherited"] = made.inherited;
  return d;
}

template <class T>
T made_by(bool dry_run, const std::function<Result<T>(const MakeOptions&)>& make) {
  find_pyarrow();
  return interruptible<T>([&](std::stop_token stop) { return make({.dry_run = dry_run, .stop = stop}); });
}

MadeDatasetResult convert_py(const PathArg& source, const PathArg& target, std::string_view to,
                             const std::optional<std::string>& modality, bool dry_run) {
  lerobot::ConvertTarget wanted{.groot = to == "groot", .modality_spec = modality.value_or("")};
  if (modality && !wanted.groot) throw nb::value_error("modality: it is for to='groot'");
  wanted.version = wanted.groot ? Version::kV21 : version_of(to);
  const MadeDataset made = made_by<MadeDataset>(dry_run, [&](const MakeOptions& options) -> Result<MadeDataset> {
    ASSIGN_OR_RETURN(const Location from, open_url(source.text));
    return lerobot::convert_dataset(from, target.text, wanted, options);
  });
  MadeDatasetResult d = made_dict(target.text, made);
  d["proposed"] = made.proposed;
  return d;
}

std::vector<lerobot::SplitPart> parts_of(const nb::dict& parts) {
  std::vector<lerobot::SplitPart> all;
  for (const auto& [name, list] : parts) {
    all.push_back({nb::cast<std::string>(name), ranges_of(nb::cast<EpisodeList>(list))});
  }
  return all;
}

std::vector<lerobot::SplitFraction> fractions_of(const nb::dict& fractions) {
  std::vector<lerobot::SplitFraction> all;
  for (const auto& [name, value] : fractions) all.push_back({nb::cast<std::string>(name), nb::cast<double>(value)});
  return all;
}

std::vector<MadeDatasetResult> split_py(const PathArg& source, const PathArg& target,
                                        const std::optional<EpisodeList>& episodes,
                                        const std::optional<nb::dict>& parts, const std::optional<nb::dict>& fractions,
                                        bool dry_run) {
  if ((episodes ? 1 : 0) + (parts ? 1 : 0) + (fractions ? 1 : 0) != 1) {
    throw nb::value_error("give episodes, parts or fractions, and one of these only");
  }
  const auto by_parts = episodes ? std::vector<lerobot::SplitPart>{{"", ranges_of(*episodes)}}
                        : parts  ? parts_of(*parts)
                                 : std::vector<lerobot::SplitPart>();
  const auto by_fractions = fractions ? fractions_of(*fractions) : std::vector<lerobot::SplitFraction>();
  using Made = std::vector<MadeDataset>;
  const Made made = made_by<Made>(dry_run, [&](const MakeOptions& options) -> Result<Made> {
    ASSIGN_OR_RETURN(const Location from, open_url(source.text));
    return fractions ? lerobot::split_dataset(from, target.text, by_fractions, options)
                     : lerobot::split_dataset(from, target.text, by_parts, options);
  });
  std::vector<MadeDatasetResult> all;
  for (const MadeDataset& each : made) all.push_back(made_dict(target.text, each));
  return all;
}

MadeDatasetResult merge_py(const std::vector<PathArg>& sources, const PathArg& target,
                           const std::optional<std::string>& to, bool dry_run) {
  const Version version = to ? version_of(*to) : Version::kUnknown;
  return made_dict(target.text, made_by<MadeDataset>(dry_run, [&](const MakeOptions& options) -> Result<MadeDataset> {
                     std::vector<Location> from;
                     for (const PathArg& source : sources) {
                       ASSIGN_OR_RETURN(from.emplace_back(), open_url(source.text));
                     }
                     return lerobot::merge_datasets(from, target.text, version, options);
                   }));
}

MadeDatasetResult delete_py(const PathArg& source, const PathArg& target, const EpisodeList& episodes, bool dry_run) {
  const auto ranges = ranges_of(episodes);
  return made_dict(target.text, made_by<MadeDataset>(dry_run, [&](const MakeOptions& options) -> Result<MadeDataset> {
                     ASSIGN_OR_RETURN(const Location from, open_url(source.text));
                     return lerobot::delete_episodes(from, target.text, ranges, options);
                   }));
}

LeRobotDiffResult diff_py(const PathArg& a, const PathArg& b, bool frames) {
  find_pyarrow();
  const auto diff = interruptible<lerobot::DatasetDiff>([&](std::stop_token stop) -> Result<lerobot::DatasetDiff> {
    ASSIGN_OR_RETURN(const Location at_a, open_url(a.text));
    ASSIGN_OR_RETURN(const Location at_b, open_url(b.text));
    return lerobot::diff_datasets(at_a, at_b, {.frames = frames, .stop = stop});
  });
  return nb::borrow<LeRobotDiffResult>(nb::module_::import_("json").attr("loads")(lerobot::diff_json(diff)));
}

}  // namespace

void register_lerobot(nb::module_& m) {
  m.def(
      "lerobot_convert", &convert_py, nb::arg("source"), nb::arg("target"), nb::kw_only(), nb::arg("to"),
      nb::arg("modality") = nb::none(), nb::arg("dry_run") = false,
      "Makes a dataset of version `to` of one of another version; the same as `millrace lerobot convert`.\n\n"
      "Args:\n"
      "    source: the dataset's folder, a path or URL; it is only read.\n"
      "    target: a new folder on this machine. A call that was stopped is continued by the same call.\n"
      "    to: '2.0', '2.1', '3.0' or 'groot': 2.1 with modality.json and GR00T's stats.json.\n"
      "    modality: for 'groot', the text of a spec with lines such as state.arm = observation.state[0:5];\n"
      "        None: the source's modality.json, else one that is proposed from names.\n"
      "    dry_run: count what would be made, and write nothing.\n"
      "Returns: a dict: output, version, episodes, frames, files, reused, cut_episodes, copied_videos,\n"
      "    encoded_videos, min_psnr_db, inherited (rules that source and result break),\n"
      "    proposed (lines of a spec).\n"
      "Raises: FileExistsError, ValueError, millrace.CorruptionError naming the damaged file, NotImplementedError (a\n"
      "    library is missing).");
  m.def("lerobot_split", &split_py, nb::arg("source"), nb::arg("target"), nb::kw_only(),
        nb::arg("episodes") = nb::none(), nb::arg("parts") = nb::none(), nb::arg("fractions") = nb::none(),
        nb::arg("dry_run") = false,
        "Makes datasets of some episodes of one; the same as `millrace lerobot split`.\n\n"
        "Args:\n"
        "    source, target, dry_run: as of convert.\n"
        "    episodes: those of the dataset `target`: \"0-9,12\" or a sequence of numbers.\n"
        "    parts: names and episodes, {\"train\": range(80), \"val\": \"80-99\"}, of datasets below `target`.\n"
        "    fractions: names and fractions of the episodes in their order, {\"train\": 0.9, \"val\": 0.1}.\n"
        "Returns: a list of dicts as of convert, one for each dataset. Raises as convert.");
  m.def("lerobot_merge", &merge_py, nb::arg("sources"), nb::arg("target"), nb::kw_only(), nb::arg("to") = nb::none(),
        nb::arg("dry_run") = false,
        "Makes one dataset of several with the same features and fps; the same as `millrace lerobot merge`.\n\n"
        "Args:\n"
        "    sources: the datasets in the order of their episodes.\n"
        "    target, dry_run: as of convert.\n"
        "    to: the version to write; None: that of the sources.\n"
        "Returns, raises: as convert.");
  m.def("lerobot_delete", &delete_py, nb::arg("source"), nb::arg("target"), nb::arg("episodes"), nb::kw_only(),
        nb::arg("dry_run") = false,
        "Makes a dataset without some episodes of another; the same as `millrace lerobot delete`.\n\n"
        "Args:\n"
        "    source, target, dry_run: as of convert.\n"
        "    episodes: those to leave out: \"3,7-9\" or a sequence of numbers.\n"
        "Returns, raises: as convert.");
  m.def("lerobot_diff", &diff_py, nb::arg("a"), nb::arg("b"), nb::kw_only(), nb::arg("frames") = false,
        "Says what differs between two datasets of any versions; the same as `millrace lerobot diff --json`.\n\n"
        "Args:\n"
        "    a, b: the datasets' folders, paths or URLs.\n"
        "    frames: also compare decoded frames of videos; of files with equal bytes none is decoded.\n"
        "Returns: a dict: a, b (url, version, episodes, frames), differences (their number), info, tasks, episodes,\n"
        "    features (rows, differ, first_episode, first_row, largest), stats, cameras, not_compared.\n"
        "Raises: FileNotFoundError, millrace.CorruptionError, NotImplementedError (a library is missing).");
}

}  // namespace millrace::python
