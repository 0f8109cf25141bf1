// SPDX-License-Identifier: Apache-2.0
// The questions of `job check` about what the job reads: data, the Hub's login, a container's image.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "millrace/base/hash/hash.h"
#include "millrace/base/text/json_members.h"
#include "millrace/base/text/units.h"
#include "millrace/base/thread/executor.h"
#include "millrace/http/http.h"
#include "millrace/jobs/container_image.h"
#include "millrace/jobs/preflight_parts.h"
#include "millrace/jobs/secrets.h"
#include "millrace/lerobot/validate.h"
#include "millrace/loader/shard_check.h"
#include "millrace/slurm/commands.h"
#include "millrace/storage/hub/hub.h"

namespace millrace::jobs {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kInfo = "meta/info.json";

// Data that must be there: flags of these names hold nothing else, or the value is a path or URL.
std::vector<NamedValue> data_places(const Preflight& check) {
  constexpr std::string_view kAlways[] = {"--shards",     "--data-dir",     "--data_dir",     "--data-path",
                                          "--data_path",  "--dataset-path", "--dataset_path", "--dataset-dir",
                                          "--train-data", "--train_data"};
  constexpr std::string_view kPerhaps[] = {"--data",      "--dataset",     "--valid",
                                           "--tokenizer", "--train-files", "--train_files"};
  std::vector<NamedValue> places;
  const auto add = [&](const NamedValue& value, bool always) {
    for (NamedValue& part : data_parts(check, value)) {
      std::error_code error;
      const bool path = contains(part.text, "://") || part.text.starts_with('/') || part.text.starts_with('.') ||
                        part.text.starts_with("pipe:");
      const bool there = !part.in_container && fs::exists(below_work_dir(check, part.text), error);
      if (always || path || there) places.push_back(std::move(part));
    }
  };
  for (const NamedValue& value : values_of(check.words, kAlways)) add(value, true);
  for (const NamedValue& value : values_of(check.words, kPerhaps)) add(value, false);
  for (const std::string& url : check.request.data) places.push_back({.text = url, .place = {}});
  return places;
}

struct Sound {
  DataRecord record;
  std::string evidence;
};

std::string hash_of(const std::string& text) {
  return to_hex(xxh3_128(text));
}

// --- LeRobot

Result<Sound> look_at_lerobot(const Preflight& check, const Location& root, const std::string& info) {
  lerobot::ValidateOptions options{.rows = check.request.deep, .most_per_rule = 1, .stop = check.slurm.stop};
  ASSIGN_OR_RETURN(const lerobot::Validation found, lerobot::validate_dataset(root, options));
  const FindingCounts counts = count_findings(found.findings);
  for (const Finding& finding : found.findings) {
    if (finding.severity() == Severity::kError && !finding.suppressed_because) {
      return fail(ErrorCode::kCorruption, "{} errors, such as: {} [{}]; millrace lerobot validate {}", counts.errors,
                  finding.message, finding.rule->id, root.url);
    }
  }
  return Sound{{root.url, "lerobot", hash_of(info)},
               fmt::format("LeRobot {}, {} episodes, {} frames", found.version, format_count(found.episodes),
                           format_count(found.frames))};
}

// --- shards

// Sizes of the files beside the shards: one listing a folder.
Result<std::map<std::string, int64_t>> sizes_in(Storage& storage, const std::string& folder) {
  std::map<std::string, int64_t> sizes;
  RETURN_IF_ERROR(for_each_object(
      storage, folder,
      [&](const ObjectInfo& object) -> Status {
        sizes[object.key] = object.size;
        return {};
      },
      false));
  return sizes;
}

std::string folder_of_key(const std::string& key) {
  const size_t slash = key.rfind('/');
  return slash == std::string::npos ? "" : key.substr(0, slash + 1);
}

// Every shard is there with its index, as long as the manifest says.
Status compare_sizes(const std::vector<loader::Shard>& shards) {
  std::map<std::pair<const Storage*, std::string>, std::map<std::string, int64_t>> listed;
  for (const loader::Shard& shard : shards) {
    const std::string folder = folder_of_key(shard.location.key);
    const auto place = std::pair{static_cast<const Storage*>(shard.location.storage.get()), folder};
    if (listed.count(place) == 0) {
      ASSIGN_OR_RETURN(listed[place], sizes_in(*shard.location.storage, folder));
    }
    const auto& sizes = listed[place];
    const auto found = sizes.find(shard.location.key);
    if (found == sizes.end()) return fail(ErrorCode::kNotFound, "{} is missing", shard.location.url);
    if (!shard.entry) continue;
    if (found->second != shard.entry->size) {
      return fail(ErrorCode::kCorruption, "{} has {} bytes, and its manifest says {}", shard.location.url,
                  found->second, shard.entry->size);
    }
    if (sizes.count(loader::index_location(shard).key) == 0) {
      return fail(ErrorCode::kNotFound, "{} is missing", loader::index_location(shard).url);
    }
  }
  return {};
}

Status read_whole(const std::vector<loader::Shard>& shards, const std::stop_token& stop) {
  return parallel_try(std::ssize(shards), available_cpus(), "check", [&](int64_t i) -> Status {
    if (stop.stop_requested()) return {};
    const loader::Shard& shard = shards[static_cast<size_t>(i)];
    const auto reader = shard.location.storage->open_read(shard.location.key);
    const loader::ShardCheck check =
        reader ? loader::check_shard_file(shard, **reader) : loader::unopened_shard(shard, reader.error());
    if (!check.damage.empty()) return tl::unexpected(check.damage[0]);
    if (check.failure) return tl::unexpected(*check.failure);
    return {};
  });
}

Result<Sound> look_at_shards(const Preflight& check, const std::string& url, const std::vector<loader::Shard>& shards) {
  RETURN_IF_ERROR(compare_sizes(shards));
  if (check.request.deep) RETURN_IF_ERROR(read_whole(shards, check.slurm.stop));
  Sound sound{{url, "shards", ""}, fmt::format("{} shards", format_count(std::ssize(shards)))};
  const loader::Shard& first = shards[0];
  const std::string beside = folder_of_key(first.location.key) + std::string(formats::kManifestName);
  if (const auto manifest = read_object(*first.location.storage, beside); manifest && first.entry) {
    sound.record.manifest_hash = hash_of(*manifest);
    sound.evidence += ", manifest " + sound.record.manifest_hash.substr(0, 12);
  }
  return sound;
}

// --- anything

// Megatron's readers take the name of the two files without their ends.
Result<Sound> look_at_megatron(const Location& location, const std::string& prefix) {
  std::error_code error;
  const bool tokens = fs::exists(prefix + ".bin", error), index = fs::exists(prefix + ".idx", error);
  if (tokens && index) return Sound{{location.url, "files", ""}, "the .bin and .idx of Megatron"};
  if (tokens || index) return fail(ErrorCode::kNotFound, "{}{} is missing", prefix, tokens ? ".idx" : ".bin");
  return fail(ErrorCode::kNotFound, "there is no such file or folder");
}

Result<Sound> look_at_files(const Location& location) {
  if (!location.storage->capabilities().is_local()) {
    ASSIGN_OR_RETURN(const ListPage page, location.storage->list(location.key, {.max_keys = 1}));
    if (page.objects.empty() && page.prefixes.empty())
      return fail(ErrorCode::kNotFound, "there is no such object or prefix");
    return Sound{{location.url, "files", ""}, "it can be listed with these credentials"};
  }
  std::error_code error;
  const fs::path path = "/" + location.key;
  if (!fs::exists(path, error)) return look_at_megatron(location, path.string());
  if (fs::is_directory(path, error) && fs::is_empty(path, error))
    return fail(ErrorCode::kNotFound, "the folder is empty");
  return Sound{{location.url, "files", ""}, fs::is_directory(path, error) ? "a folder of files" : "a file"};
}

Result<Sound> look_at(const Preflight& check, const std::string& url) {
  ASSIGN_OR_RETURN(const Location location, open_url(url));
  const Location info_at = location.child(kInfo);
  if (const auto info = read_object(*info_at.storage, info_at.key); info)
    return look_at_lerobot(check, location, *info);
  const auto shards = loader::find_shards({url});
  if (shards) return look_at_shards(check, url, *shards);
  const ErrorCode code = shards.error().code();
  // A folder whose parts are incomplete is not_found, too, and no folder of other files.
  const bool no_shards = code == ErrorCode::kNotFound && contains(shards.error().message(), "no shards there");
  const bool other = no_shards || code == ErrorCode::kInvalidArgument || code == ErrorCode::kUnsupported;
  const bool named = url.find_first_of("*?{[") != std::string::npos || url.ends_with(".tar") || url.ends_with(".bin");
  if (!other || named) return tl::unexpected(shards.error());
  return look_at_files(location);
}

// --- the Hub

bool needs_login(const Preflight& check) {
  const auto names_hub = [](const KnownWord& word) {
    const std::string_view program = word.begins ? base_name(word.text) : std::string_view();
    return word.text.starts_with("hf://") || program == "huggingface-cli" || program == "hf" ||
           contains(word.text, "push_to_hub") || contains(word.text, "push-to-hub");
  };
  return std::any_of(check.words.begin(), check.words.end(), names_hub) || check.job.expands("HF_TOKEN");
}

void ask_who(Preflight& check, const HubOptions& options) {
  http::Client client(options.client);
  const auto answer = client.fetch({.method = http::Method::kGet,
                                    .url = options.endpoint + "/api/whoami-v2",
                                    .headers = {"Authorization: Bearer " + options.token},
                                    .deadline = Clock::now() + options.timeout,
                                    .stop = check.slurm.stop});
  if (!answer) return check.unknown("login", answer.error().to_string());
  constexpr int kOk = 200, kUnauthorized = 401, kForbidden = 403;
  if (answer->status == kUnauthorized || answer->status == kForbidden) {
    return check.problem(
        "JC11", job_place(check.job),
        fmt::format("{} refuses the token of {} (status {})", options.endpoint, options.token_from, answer->status));
  }
  const auto who = text_at(nlohmann::json::parse(answer->body, nullptr, false), "name");
  if (answer->status != kOk || !who) {
    return check.unknown("login", fmt::format("{} answers with status {}", options.endpoint, answer->status));
  }
  check.fine("login", fmt::format("{} knows the token of {} as {}", options.endpoint, options.token_from, *who));
}

// --- containers

constexpr std::string_view kImageOption = "container-image";

std::vector<NamedValue> images(const Preflight& check) {
  constexpr std::string_view kNames[] = {"--container-image"};
  std::vector<NamedValue> found = values_of(check.words, kNames);
  if (const Option* option = check.asked.find(kImageOption)) found.push_back({option->value, option->place});
  return found;
}

void ask_for_image(Preflight& check, const NamedValue& image) {
  const auto name = parse_image_name(image.text);
  if (!name) return check.problem("JC12", image.place, name.error().to_string());
  RegistryOptions options{.stop = check.slurm.stop};
  if (const char* const allowed = std::getenv("ENROOT_ALLOW_HTTP");
      allowed != nullptr && allowed == std::string_view("yes")) {
    options.scheme = "http";
  }
  const auto answer = ask_registry(*name, options);
  if (!answer) return check.unknown("image", fmt::format("{}: {}", name->text(), answer.error().to_string()));
  switch (*answer) {
    case ImageAnswer::kThere:
      return check.fine("image", fmt::format("{} is in the registry", name->text()));
    case ImageAnswer::kMissing:
      return check.problem("JC12", image.place, fmt::format("{} is not in the registry", name->text()));
    case ImageAnswer::kHidden:
      break;
  }
  check.unknown("image", fmt::format("{} is private or not there: the registry tells only who has a login, which is "
                                     "enroot's and is not used here",
                                     name->text()));
}

}  // namespace

void check_data(Preflight& check) {
  std::set<std::string> seen;
  for (const NamedValue& place : data_places(check)) {
    const bool command = place.text.starts_with("pipe:");
    const auto there = command ? std::optional(place.text) : host_path(check, place);
    const std::string shown = url_to_show(there.value_or(place.text));
    if (!seen.insert(there.value_or(place.text)).second) continue;
    if (command) {
      check.unknown("data", fmt::format("{}: what this command prints", shown));
      continue;
    }
    if (!there) {
      check.unknown("data", fmt::format("{}: a path of the container that none of its mounts shows", shown));
      continue;
    }
    auto found = look_at(check, *there);
    if (found) {
      check.fine("data", fmt::format("{}: {}", shown, found->evidence));
      found->record.url = without_secrets(shown);
      check.report.data.push_back(std::move(found->record));
    } else if (const std::string why = made_before(check, place, *there); !why.empty()) {
      check.unknown("data", fmt::format("{}: {}", shown, why));
    } else {
      check.problem("JC10", place.place, fmt::format("{}: {}", shown, found.error().to_string()));
    }
  }
}

void check_login(Preflight& check) {
  if (!needs_login(check)) return;
  const auto options = HubOptions::from(process_url_options());
  if (!options && options.error().code() == ErrorCode::kUnsupported) {
    return check.unknown("login", options.error().to_string());
  }
  if (!options) return check.problem("JC11", job_place(check.job), options.error().to_string());
  if (!options->token.empty()) return ask_who(check, *options);
  if (check.job.definition("HF_TOKEN") != nullptr) return check.unknown("login", "the script sets HF_TOKEN itself");
  check.problem("JC11", job_place(check.job),
                fmt::format("the script uses the Hub, and there is no token in HF_TOKEN or {}", options->token_from),
                {}, Severity::kWarning);
}

void check_image(Preflight& check) {
  const std::vector<NamedValue> found = images(check);
  if (found.empty()) return;
  if (check.cluster != nullptr) {
    const auto help = slurm::run_slurm({"srun", "--help"}, check.slurm);
    if (help && help->ok && !contains(help->out, "--container-image")) {
      return check.problem("JC12", found[0].place, "this Slurm knows no --container-image: pyxis is not installed");
    }
  }
  for (const NamedValue& image : found) {
    std::error_code error;
    const bool file = image.text.starts_with('/') || image.text.starts_with('.') || image.text.ends_with(".sqsh");
    const std::string path = below_work_dir(check, image.text);
    if (file && !fs::exists(path, error)) {
      check.problem("JC12", image.place, fmt::format("the container's image {} is missing", path));
    } else if (file) {
      check.fine("image", path + " is there");
    } else {
      ask_for_image(check, image);
    }
  }
}

}  // namespace millrace::jobs
