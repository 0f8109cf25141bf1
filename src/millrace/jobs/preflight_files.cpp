// SPDX-License-Identifier: Apache-2.0
// The questions of `job check` that file systems answer: logs, checkpoints, mounts, here and on a node.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "millrace/base/text/units.h"
#include "millrace/jobs/demand.h"
#include "millrace/jobs/preflight_parts.h"
#include "millrace/jobs/submit.h"
#include "millrace/slurm/commands.h"
#include "millrace/storage/url.h"

namespace millrace::jobs {

namespace {

namespace fs = std::filesystem;

bool can_write_in(const std::string& folder) {
  return ::access(folder.c_str(), W_OK | X_OK) == 0;
}

std::string nearest_folder(const std::string& path) {
  fs::path here(path);
  std::error_code error;
  while (here.has_relative_path() && !fs::exists(here, error)) here = here.parent_path();
  return here.string();
}

// --- the log

// The folder of a pattern: %x and %u are known before the job is, %j is not.
std::string log_folder(const Preflight& check, const std::string& pattern) {
  const Options& asked = check.asked;
  const std::string name(asked.has("job-name") ? asked.value("job-name") : base_name(check.request.script));
  std::string folder;
  const std::string raw = fs::path(pattern).parent_path().string();
  for (size_t i = 0; i < raw.size(); ++i) {
    const std::string_view letter = std::string_view(raw).substr(i, 2);
    const bool known = letter == "%x" || letter == "%u" || letter == "%%";
    if (known) folder += letter == "%x" ? name : letter == "%u" ? user_name() : "%", ++i;
    if (!known) folder += raw[i];
  }
  return folder;
}

void check_log_of(Preflight& check, const std::string& pattern, Place place) {
  if (pattern.starts_with("/dev/")) return;
  const std::string folder = log_folder(check, pattern);
  std::error_code error;
  if (fs::is_directory(folder, error)) {
    if (can_write_in(folder)) return check.fine("log", fmt::format("{} is there, and you may write to it", folder));
    return check.problem("JC01", place, fmt::format("you may not write to {}, where the log goes", folder),
                         "Change its permissions, or send the log to another folder by --output.");
  }
  if (contains(folder, "%")) {
    return check.problem(
        "JC01", place,
        fmt::format("the log's folder {} has a letter that Slurm replaces when the job starts, and Slurm "
                    "makes no folders",
                    folder),
        "Use %j and %A in the file's name only.");
  }
  const bool other = fs::exists(folder, error);
  check.problem("JC01", place, fmt::format("the log's folder {} {}", folder, other ? "is a file" : "is missing"),
                other ? "Send the log to a folder." : fmt::format("mkdir -p {}", folder));
}

// --- checkpoints

struct Found {
  int64_t count = 0, largest_bytes = 0, largest_files = 0;
};

// Checkpoints that lie in a folder: of Millrace (step-N), of the Trainer (checkpoint-N).
Found find_checkpoints(const std::string& folder) {
  Found found;
  std::error_code error;
  for (fs::directory_iterator each(folder, error), end; !error && each != end; each.increment(error)) {
    const std::string name = each->path().filename().string();
    if ((!name.starts_with("step-") && !name.starts_with("checkpoint-")) || !each->is_directory(error)) continue;
    int64_t bytes = 0, files = 0;
    for (fs::recursive_directory_iterator file(each->path(), error), last; !error && file != last;
         file.increment(error)) {
      std::error_code unread;
      if (!file->is_regular_file(unread)) continue;
      bytes += static_cast<int64_t>(file->file_size(unread));
      ++files;
    }
    ++found.count;
    found.largest_bytes = std::max(found.largest_bytes, bytes);
    found.largest_files = std::max(found.largest_files, files);
  }
  return found;
}

// Whether the script starts one of Isaac-GR00T's fine-tuning scripts.
bool tunes_groot(const Preflight& check) {
  return std::any_of(check.words.begin(), check.words.end(), [](const KnownWord& word) {
    return word.text.ends_with("launch_finetune.py") || word.text.ends_with("gr00t_finetune.py");
  });
}
// Its 3 billion parameters in bfloat16, and 8 bytes of AdamW's state for each that is trained: of the backbone's 2
// billion where a part of it is tuned, and of the action head's 1 billion.
constexpr int64_t kGrootBytes = 6'000'000'000, kBackbone = 2'000'000'000, kActionHead = 1'000'000'000;
constexpr int64_t kStateBytes = 8;

bool gives_flag(const Preflight& check, std::string_view flag) {
  return std::any_of(check.words.begin(), check.words.end(), [&](const KnownWord& word) {
    std::string text = word.text;
    std::replace(text.begin(), text.end(), '_', '-');  // its parser takes both
    return text == flag;
  });
}

struct GrootSize {
  int64_t model = kGrootBytes, trained = 0;
  int64_t bytes() const { return model + kStateBytes * trained; }
};

GrootSize size_of_groot(const Preflight& check) {
  GrootSize size;
  constexpr std::string_view kLora[] = {"--lora-rank", "--lora_rank"};
  const auto ranks = values_of(check.words, kLora);
  const bool by_lora = std::any_of(ranks.begin(), ranks.end(), [](const NamedValue& rank) { return rank.text != "0"; });
  if (by_lora || gives_flag(check, "--save-only-model")) return size;
  if (gives_flag(check, "--tune-llm") || gives_flag(check, "--tune-visual")) size.trained += kBackbone;
  if (!gives_flag(check, "--no-tune-projector") || !gives_flag(check, "--no-tune-diffusion-model")) {
    size.trained += kActionHead;
  }
  return size;
}

int64_t kept_checkpoints(const Preflight& check) {
  constexpr std::string_view kNames[] = {"--keep-last", "--keep_last", "--save-total-limit", "--save_total_limit"};
  if (check.request.keep_last > 0) return check.request.keep_last;
  for (const NamedValue& value : values_of(check.words, kNames)) {
    if (const auto count = parse_whole(value.text)) return std::max<int64_t>(1, *count);
  }
  if (!tunes_groot(check)) return 2;
  // The numbers of its scripts: N1.5's is fixed, the others' is a default.
  const bool is_fixed = std::any_of(check.words.begin(), check.words.end(),
                                    [](const KnownWord& word) { return word.text.ends_with("gr00t_finetune.py"); });
  return is_fixed ? 8 : 5;
}

int64_t ranks_of(const Preflight& check) {
  const Demand demand = demand_of(check.asked);
  return std::max<int64_t>(1, demand.nodes * std::max<int64_t>(1, demand.gpus));
}

struct CheckpointSize {
  int64_t bytes = 0;     // 0: not known
  std::string basis;     // where it comes from, unless somebody gave it
  bool certain = false;  // false: it may be less
};

// The given size, else of the largest that is there, else what the planner says, else what it is at least.
CheckpointSize size_of_checkpoint(const Preflight& check, const Found& found) {
  if (check.request.checkpoint_bytes > 0) return {check.request.checkpoint_bytes, "", true};
  if (found.largest_bytes > 0) return {found.largest_bytes, "", true};
  const bool groot = tunes_groot(check);
  if (groot && check.request.parameters <= 0) {
    const GrootSize size = size_of_groot(check);
    return {size.bytes(),
            fmt::format("about {} for the model of GR00T and {} for the optimizer's state of {:g} billion trained "
                        "parameters; --checkpoint-size sets it",
                        format_bytes(size.model), format_bytes(size.bytes() - size.model),
                        static_cast<double>(size.trained) * 1e-9),
            true};
  }
  if (const auto planned = planned_checkpoint(check)) return {planned->bytes, planned->basis, planned->given};
  return {};
}

Result<CheckpointRoom> room_in(const std::string& folder) {
  ASSIGN_OR_RETURN(const Location location, open_url(folder));
  ASSIGN_OR_RETURN(const FreeSpace space, location.storage->free_space(location.key));
  return CheckpointRoom{.free_bytes = space.bytes,
                        .limit = space.limit,
                        .free_files = space.files.value_or(-1),
                        .files_limit = space.files_limit};
}

void check_checkpoints_in(Preflight& check, const std::string& folder, Place place) {
  const std::string there = nearest_folder(folder);
  if (!can_write_in(there)) {
    return check.problem("JC07", place,
                         fmt::format("you may not write to {}, where checkpoints go to {}", there, folder),
                         "Change its permissions, or write them elsewhere.");
  }
  const auto room = room_in(there);
  if (!room) return check.unknown("checkpoints", fmt::format("{}: {}", folder, room.error().to_string()));
  const Found found = find_checkpoints(folder);
  const CheckpointSize size = size_of_checkpoint(check, found);
  CheckpointNeed need{.bytes = size.bytes,
                      .files = std::max(found.largest_files, ranks_of(check) + 2),
                      .keep_last = kept_checkpoints(check),
                      .there = found.count};
  const std::string files = room->free_files < 0 ? "" : fmt::format(" and {} files", format_count(room->free_files));
  const std::string free =
      fmt::format("{}: {}{} free ({})", folder, format_bytes(room->free_bytes), files, room->limit);
  if (const std::string missing = missing_room(*room, need); !missing.empty()) {
    const std::string basis = size.basis.empty() ? "" : fmt::format(" ({})", size.basis);
    // What the planner takes from a model's name is more than a training of a part of it saves.
    const auto severity = size.certain ? std::optional<Severity>() : std::optional(Severity::kWarning);
    return check.problem("JC07", place, fmt::format("{}: {}{}", folder, missing, basis), {}, severity);
  }
  if (need.bytes == 0) {
    return check.unknown("checkpoints",
                         free + "; the size of a checkpoint is not known (--checkpoint-size or --parameters)");
  }
  check.fine("checkpoints",
             fmt::format("{}; {} of {}{} are kept, and one more while it is written", free, need.keep_last,
                         format_bytes(need.bytes), size.basis.empty() ? "" : fmt::format(" ({})", size.basis)));
}

// --- mounts

// The first folder of an absolute path; below /mnt and /media the second, too.
std::string mount_of(const std::string& path) {
  const size_t first = path.find('/', 1);
  const std::string top = path.substr(0, first);
  if ((top != "/mnt" && top != "/media") || first == std::string::npos) return top;
  return path.substr(0, path.find('/', first + 1));
}

bool is_path(const std::string& text) {
  return text.size() > 1 && text[0] == '/' && text[1] != '/' &&
         text.find_first_of(" \n\t'\";|&<>(){}*?[$`") == std::string::npos;
}

// Host paths of "--container-mounts=SRC:DST,SRC".
std::vector<std::string> container_sources(const std::string& list) {
  std::vector<std::string> sources;
  for (size_t at = 0; at < list.size();) {
    const size_t end = std::min(list.find(',', at), list.size());
    sources.push_back(list.substr(at, std::min(list.find(':', at), end) - at));
    at = end + 1;
  }
  return sources;
}

// Paths that the script names, with the first place of each. Those of commands in a container are the container's.
std::map<std::string, Place> named_paths(const Preflight& check) {
  constexpr std::string_view kMounts[] = {"--container-mounts"};
  std::map<std::string, Place> paths;
  const auto add = [&](const std::string& text, Place place) {
    if (is_path(text)) paths.try_emplace(text, place);
  };
  for (const NamedValue& value : values_of(check.words, kMounts)) {
    for (const std::string& source : container_sources(value.text)) add(source, value.place);
  }
  if (check.asked.has("container-image")) return paths;
  for (const KnownWord& word : check.words) {
    if (word.in_container) continue;
    const size_t equals = word.text.find('=');
    add(equals == std::string::npos ? word.text : word.text.substr(equals + 1), word.place);
  }
  for (const Definition& definition : check.job.definitions()) {
    if (const auto value = check.job.value(definition.assignment->value)) add(*value, definition.assignment->place);
  }
  return paths;
}

// What a node must have: the log's folder and those of checkpoints to write to, and the mounts of other paths.
struct Wanted {
  std::string path;
  Place place;
  bool written = false;
};

std::vector<Wanted> wanted_on_nodes(const Preflight& check) {
  std::vector<Wanted> wanted;
  const LogFiles logs = log_files(check.asked, check.work_dir);
  for (const std::string& pattern : {logs.output, logs.error}) {
    const std::string folder = log_folder(check, pattern);
    if (!pattern.empty() && !pattern.starts_with("/dev/") && !contains(folder, "%")) {
      wanted.push_back({folder, check.place_of("output"), true});
    }
  }
  for (const NamedValue& place : checkpoint_places(check)) {
    const auto there = host_path(check, place);
    if (there && !contains(*there, "://")) wanted.push_back({nearest_folder(*there), place.place, true});
  }
  std::set<std::string> mounts;
  for (const auto& [path, place] : named_paths(check)) {
    if (mounts.insert(mount_of(path)).second) wanted.push_back({mount_of(path), place});
  }
  return wanted;
}

std::vector<std::string> probe_command(const Preflight& check, const std::vector<Wanted>& wanted) {
  std::vector<std::string> words{"srun",       "--quiet",           "--nodes=1",
                                 "--ntasks=1", "--cpus-per-task=1", "--mem=200",
                                 "--time=2",   "--immediate=30",    "--job-name=millrace-check"};
  const auto partitions = check.partitions();
  const auto add = [&](const char* option, const std::string& value) {
    if (!value.empty()) words.push_back(fmt::format("--{}={}", option, value));
  };
  add("partition", partitions.empty() ? "" : partitions[0]);
  add("account", check.held("account", "SBATCH_ACCOUNT"));
  add("qos", check.held("qos", "SBATCH_QOS"));
  add("reservation", std::string(check.asked.value("reservation")));
  constexpr const char* kLook =
      "echo \"node $SLURMD_NODENAME\"; for path; do if [ -w \"$path\" ]; then echo \"write $path\"; elif [ -e "
      "\"$path\" ]; "
      "then echo \"read $path\"; else echo \"none $path\"; fi; done";
  words.insert(words.end(), {"sh", "-c", kLook, "look"});
  for (const Wanted& each : wanted) words.push_back(each.path);
  return words;
}

void tell_probe(Preflight& check, const std::vector<Wanted>& wanted, const std::string& answer) {
  std::set<std::string> lines;
  std::string node = "a node";
  for (const std::string& line : shell::split_lines(answer)) {
    lines.insert(line);
    if (line.starts_with("node ")) node = line.substr(5);
  }
  int64_t good = 0;
  for (const Wanted& each : wanted) {
    if (lines.count("none " + each.path) > 0) {
      check.problem("JC09", each.place, fmt::format("{} is not there on {}", each.path, node));
    } else if (each.written && lines.count("read " + each.path) > 0) {
      check.problem("JC09", each.place, fmt::format("you may not write to {} on {}", each.path, node));
    } else if (lines.count("write " + each.path) + lines.count("read " + each.path) > 0) {
      ++good;
    }
  }
  check.fine("probe", fmt::format("{} of {} paths are good on {}", good, wanted.size(), node));
}

void probe_node(Preflight& check) {
  const std::vector<Wanted> wanted = wanted_on_nodes(check);
  slurm::AskOptions patient = check.slurm;
  patient.time_limit = std::chrono::seconds(60);  // srun itself gives up when no node is free for 30 s
  const auto ran = slurm::run_slurm(probe_command(check, wanted), patient);
  if (!ran) return check.unknown("probe", ran.error().to_string());
  if (!ran->ok) return check.unknown("probe", "srun: " + slurm::reason_of(*ran));
  tell_probe(check, wanted, ran->out);
}

}  // namespace

std::string missing_room(const CheckpointRoom& room, const CheckpointNeed& need) {
  const int64_t more = std::max<int64_t>(0, need.keep_last + 1 - need.there);
  if (need.bytes > 0 && more > 0 && room.free_bytes / need.bytes < more) {
    return fmt::format("{} checkpoints of {} are still to come, and {} are free ({})", more, format_bytes(need.bytes),
                       format_bytes(room.free_bytes), room.limit);
  }
  if (room.free_files >= 0 && need.files > 0 && room.free_files / need.files < more) {
    return fmt::format("{} checkpoints of {} files are still to come, and {} more files may be made ({})", more,
                       format_count(need.files), format_count(room.free_files), room.files_limit);
  }
  return {};
}

std::vector<NamedValue> checkpoint_places(const Preflight& check) {
  constexpr std::string_view kNames[] = {
      "--checkpoint-dir", "--checkpoint_dir", "--ckpt-dir",   "--ckpt_dir",   "--save-dir",
      "--save_dir",       "--checkpoints",    "--output-dir", "--output_dir", "--out"};
  std::vector<NamedValue> places = values_of(check.words, kNames);
  for (const std::string& path : check.request.checkpoints) places.push_back({.text = path, .place = {}});
  return places;
}

void check_log_folder(Preflight& check) {
  const LogFiles logs = log_files(check.asked, check.work_dir);
  check_log_of(check, logs.output, check.place_of("output"));
  if (!logs.error.empty() && fs::path(logs.error).parent_path() != fs::path(logs.output).parent_path()) {
    check_log_of(check, logs.error, check.place_of("error"));
  }
}

void check_checkpoints(Preflight& check) {
  std::set<std::string> seen;
  for (const NamedValue& place : checkpoint_places(check)) {
    const auto there = host_path(check, place);
    if (!seen.insert(there.value_or(place.text)).second) continue;
    if (!there) {
      check.unknown("checkpoints", place.text + ": a path of the container that none of its mounts shows");
    } else if (contains(*there, "://")) {
      check.unknown("checkpoints", *there + ": a bucket tells neither its room nor a quota");
    } else {
      check_checkpoints_in(check, *there, place.place);
    }
  }
}

void check_mounts(Preflight& check) {
  std::map<std::string, Place> missing;
  std::set<std::string> there;
  for (const auto& [path, place] : named_paths(check)) {
    const std::string mount = mount_of(path);
    std::error_code error;
    if (fs::exists(mount, error)) {
      there.insert(mount);
    } else {
      missing.try_emplace(mount, place);
    }
  }
  for (const auto& [mount, place] : missing) {
    check.problem("JC08", place, fmt::format("{} is not there on this machine", mount));
  }
  if (missing.empty() && !there.empty()) check.fine("mounts", fmt::format("{} are there", fmt::join(there, ", ")));
  if (check.request.probe && check.cluster != nullptr) probe_node(check);
}

}  // namespace millrace::jobs
