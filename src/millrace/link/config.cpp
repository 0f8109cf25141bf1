// SPDX-License-Identifier: Apache-2.0
#include "millrace/link/config.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>

#include "millrace/base/text/environment.h"
#include "millrace/base/text/units.h"
#include "millrace/link/emptied.h"
#include "millrace/link/guardian.h"
#include "millrace/link/hsm.h"
#include "millrace/link/state.h"
#include "millrace/storage/url.h"
#include "millrace/sync/entries.h"

namespace millrace::link {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* kFormat = "millrace-link";
constexpr int kVersion = 1;

std::string marker_path(const std::string& directory) {
  return fmt::format("{}/{}/link.json", directory, sync::kHiddenFolder);
}

// Errors: those of lstat(2): a folder of another user, for example.
Result<bool> exists(const std::string& path) {
  struct stat info{};
  if (::lstat(path.c_str(), &info) == 0) return true;
  if (errno == ENOENT || errno == ENOTDIR) return false;
  return tl::unexpected<Error>(errno_error(errno, "look for " + path));
}

Status write_json(const std::string& path, const Json& object) {
  ASSIGN_OR_RETURN(const Location at, open_url(path));
  ASSIGN_OR_RETURN(const ObjectInfo written, write_object(*at.storage, at.key, object.dump(2) + "\n"));
  (void)written;
  return {};
}

Result<Json> read_json(const std::string& path) {
  ASSIGN_OR_RETURN(const Location at, open_url(path));
  ASSIGN_OR_RETURN(const std::string text, read_object(*at.storage, at.key));
  Json object = Json::parse(text, nullptr, false);
  if (!object.is_object() || object.value("format", "") != kFormat) {
    return fail(ErrorCode::kCorruption, "{} is no file of a link", path);
  }
  if (object.value("version", 0) > kVersion) {
    return fail(ErrorCode::kUnsupported, "{} was written by a newer Millrace", path);
  }
  return object;
}

Json json_of(const LinkConfig& config) {
  return {{"format", kFormat},
          {"version", kVersion},
          {"name", config.name},
          {"id", config.id},
          {"directory", config.directory},
          {"url", config.url},
          {"import", carries_text(config.imports)},
          {"export", carries_text(config.exports)},
          {"delete_here", removal_text(config.here)},
          {"delete_bucket", removal_text(config.there)},
          {"conflict", conflict_rule_name(config.conflict)},
          {"quiet_s", config.quiet_s},
          {"poll_least_s", config.poll_least_s},
          {"poll_most_s", config.poll_most_s},
          {"lazy", config.lazy},
          {"show_at", config.show_at},
          {"hsm", config.hsm},
          {"max_delete", config.max_delete},
          {"filter", config.filter},
          {"release_below", config.release_below},
          {"release_until", config.release_until},
          {"pins", config.pins},
          {"changelog", config.changelog},
          {"next_use", config.next_use},
          {"take_over_s", config.take_over_s},
          {"joined", config.joined}};
}

Result<LinkConfig> config_of(const Json& object) {
  LinkConfig config;
  config.name = object.value("name", "");
  config.id = object.value("id", "");
  config.directory = object.value("directory", "");
  config.url = object.value("url", "");
  ASSIGN_OR_RETURN(config.imports, parse_carries(object.value("import", "")));
  ASSIGN_OR_RETURN(config.exports, parse_carries(object.value("export", "")));
  ASSIGN_OR_RETURN(config.here, parse_removal(object.value("delete_here", "")));
  ASSIGN_OR_RETURN(config.there, parse_removal(object.value("delete_bucket", "")));
  ASSIGN_OR_RETURN(config.conflict, parse_conflict_rule(object.value("conflict", "")));
  config.quiet_s = object.value("quiet_s", config.quiet_s);
  config.poll_least_s = object.value("poll_least_s", config.poll_least_s);
  config.poll_most_s = object.value("poll_most_s", config.poll_most_s);
  config.lazy = object.value("lazy", config.lazy);
  config.show_at = object.value("show_at", config.show_at);
  config.hsm = object.value("hsm", config.hsm);
  config.max_delete = object.value("max_delete", config.max_delete);
  config.filter = object.value("filter", config.filter);
  config.release_below = object.value("release_below", config.release_below);
  config.release_until = object.value("release_until", config.release_until);
  config.pins = object.value("pins", config.pins);
  config.changelog = object.value("changelog", config.changelog);
  config.next_use = object.value("next_use", config.next_use);
  config.take_over_s = object.value("take_over_s", config.take_over_s);
  config.joined = object.value("joined", config.joined);
  return config;
}

Status check_name(const std::string& name) {
  const bool legal = !name.empty() && name != "." && name != ".." && std::all_of(name.begin(), name.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_' || c == '.';
  });
  if (legal) return {};
  return fail(ErrorCode::kInvalidArgument, "\"{}\" is no name of a link: letters, digits, '-', '_' and '.' are", name);
}

Status check_others(const std::string& links, const LinkConfig& config) {
  ASSIGN_OR_RETURN(const std::vector<LinkConfig> others, read_links(links));
  for (const LinkConfig& other : others) {
    if (other.name == config.name) {
      return fail(ErrorCode::kAlreadyExists, "there is a link {} already, of {}", other.name, other.directory);
    }
    if (is_below(other.directory, config.directory)) {
      return fail(ErrorCode::kAlreadyExists, "{} below it belongs to the link {}", other.directory, other.name);
    }
  }
  return {};
}

// The directory, one above it and one below it: a file that two links carry would be moved to and fro.
Status check_overlap(const std::string& links, const LinkConfig& config) {
  for (fs::path folder = config.directory;; folder = folder.parent_path()) {
    const std::string marker = marker_path(folder == "/" ? "" : folder.string());
    ASSIGN_OR_RETURN(const bool is_linked, exists(marker));
    if (is_linked) {
      return fail(ErrorCode::kAlreadyExists,
                  "{} belongs to a link already (its marker: {}); remove that one first (`millrace link rm`), or where "
                  "it is long gone, its marker",
                  folder.string(), marker);
    }
    if (folder == folder.parent_path()) break;
  }
  return check_others(links, config);
}

// The link whose side holds `whole`; `shown` is what the user wrote.
Result<LinkedPath> linked(const std::string& links, const std::string& whole, const std::string& shown,
                          std::string (*side)(const LinkConfig&)) {
  ASSIGN_OR_RETURN(std::vector<LinkConfig> all, read_links(links));
  for (LinkConfig& config : all) {
    const std::string root = side(config);
    if (root.empty() || !is_below(whole, root)) continue;
    std::string below = whole.substr(std::min(whole.size(), root.ends_with('/') ? root.size() : root.size() + 1));
    LinkHome home = home_of(links, config.name);
    return LinkedPath{std::move(config), std::move(home), std::move(below)};
  }
  return fail(ErrorCode::kNotFound, "{} lies in no link of this user and machine; `millrace link status` lists them",
              shown);
}

// Makes the path whole, too.
Status check_show_at(LinkConfig& config) {
  std::error_code error;
  const fs::path shown = fs::canonical(config.show_at, error);
  if (error || !fs::is_directory(shown, error) || !fs::is_empty(shown, error)) {
    return fail(ErrorCode::kInvalidArgument, "\"{}\" is no empty directory, which the link's could be shown at",
                config.show_at);
  }
  config.show_at = shown.string();
  if (!config.lazy || config.take_over_s > 0) {
    return fail(ErrorCode::kInvalidArgument, "--show-at goes with --lazy, on one node");
  }
  return check_guard(config);
}

std::string new_id() {
  std::random_device source;
  const auto word = [&] { return (uint64_t{source()} << 32) | source(); };
  return to_hex(Hash128{word(), word()});
}

// The folder of the link's state, with its configuration.
Status make_home(const std::string& links, const LinkConfig& config) {
  const LinkHome home = home_of(links, config.name);
  std::error_code error;
  fs::create_directories(home.folder, error);
  if (error) return tl::unexpected<Error>(errno_error(error.value(), "make the folder " + home.folder));
  if (const Status may = check_state_folder(home.folder); !may) {
    fs::remove_all(home.folder, error);
    return tl::unexpected<Error>(may.error());
  }
  return write_json(home.config_path(), json_of(config));
}

}  // namespace

Result<Carries> parse_carries(std::string_view text) {
  Carries carries{.added = false, .changed = false, .deleted = false};
  if (text == "none") return carries;
  while (true) {
    const std::string_view word = text.substr(0, text.find(','));
    if (word == "new") {
      carries.added = true;
    } else if (word == "changed") {
      carries.changed = true;
    } else if (word == "deleted") {
      carries.deleted = true;
    } else {
      return fail(ErrorCode::kInvalidArgument, "\"{}\" is none of new, changed, deleted and none", word);
    }
    if (word.size() == text.size()) return carries;
    text.remove_prefix(word.size() + 1);
  }
}

std::string carries_text(const Carries& carries) {
  std::string text;
  for (const auto& [name, on] :
       {std::pair("new", carries.added), {"changed", carries.changed}, {"deleted", carries.deleted}}) {
    if (on) text += (text.empty() ? "" : ",") + std::string(name);
  }
  return text.empty() ? "none" : text;
}

Result<Removal> parse_removal(std::string_view text) {
  constexpr std::string_view kTrash = "trash:";
  if (text == "propagate") return Removal{.trash = std::nullopt};
  if (text.starts_with(kTrash)) {
    ASSIGN_OR_RETURN(const auto time, parse_duration(text.substr(kTrash.size())));
    return Removal{.trash = std::chrono::duration_cast<std::chrono::seconds>(time)};
  }
  return fail(ErrorCode::kInvalidArgument, "\"{}\" is neither propagate nor trash:TIME (trash:7d)", text);
}

std::string removal_text(const Removal& removal) {
  return removal.trash ? fmt::format("trash:{}s", removal.trash->count()) : "propagate";
}

std::string_view conflict_rule_name(ConflictRule rule) {
  switch (rule) {
    case ConflictRule::kBoth:
      return "both";
    case ConflictRule::kBucket:
      return "bucket";
    case ConflictRule::kDirectory:
      return "directory";
    case ConflictRule::kNewest:
      return "newest";
  }
  return "";
}

Result<ConflictRule> parse_conflict_rule(std::string_view text) {
  for (const ConflictRule rule :
       {ConflictRule::kBoth, ConflictRule::kBucket, ConflictRule::kDirectory, ConflictRule::kNewest}) {
    if (text == conflict_rule_name(rule)) return rule;
  }
  return fail(ErrorCode::kInvalidArgument, "\"{}\" is none of both, bucket, directory and newest", text);
}

Result<std::string> links_folder() {
  if (std::string folder = environment_variable("MILLRACE_LINKS"); !folder.empty()) {
    std::error_code error;
    const fs::path whole = fs::absolute(folder, error);
    if (error) return tl::unexpected<Error>(errno_error(error.value(), "find the folder of links " + folder));
    return whole.string();
  }
  if (const std::string state = environment_variable("XDG_STATE_HOME"); !state.empty())
    return state + "/millrace/links";
  if (const std::string home = environment_variable("HOME"); !home.empty())
    return home + "/.local/state/millrace/links";
  return fail(ErrorCode::kNotFound, "there is no HOME to keep links in; set MILLRACE_LINKS to a folder");
}

LinkHome home_of(const std::string& links, std::string_view name) {
  return {fmt::format("{}/{}", links, name)};
}

Status add_link(const std::string& links, LinkConfig config) {
  RETURN_IF_ERROR(check_name(config.name));
  std::error_code error;
  const fs::path directory = fs::canonical(config.directory, error);
  if (error || !fs::is_directory(directory, error)) {
    return fail(ErrorCode::kNotFound, "\"{}\" is no directory; make it first, on the file system that it belongs to",
                config.directory);
  }
  config.directory = directory.string();
  ASSIGN_OR_RETURN(const Location bucket, open_url(config.url));
  if (bucket.storage->capabilities().folders) {
    const fs::path there_is = fs::canonical(real_path(config.url), error);
    if (error || !fs::is_directory(there_is, error)) {
      return fail(ErrorCode::kNotFound, "{} is neither a URL (s3://bucket/prefix) nor a directory", config.url);
    }
    config.url = there_is.string();
    if (is_below(config.url, config.directory) || is_below(config.directory, config.url)) {
      return fail(ErrorCode::kInvalidArgument, "{} and {} lie in each other", config.directory, config.url);
    }
  }
  if (config.hsm && config.lazy) {
    return fail(ErrorCode::kInvalidArgument,
                "stubs of --lazy are files that Lustre's HSM knows nothing of: not with --hsm");
  }
  sync::Filter filter;
  for (const std::string& line : config.filter) RETURN_IF_ERROR(filter.add_lines(line, "the filter"));
  for (const std::string& pattern : config.pins) RETURN_IF_ERROR(with_context(filter.exclude(pattern), "--pin"));
  RETURN_IF_ERROR(check_overlap(links, config));
  if (!config.show_at.empty()) RETURN_IF_ERROR(check_show_at(config));
  config.id = new_id();
  RETURN_IF_ERROR(make_home(links, config));
  Json marker = {
      {"format", kFormat}, {"version", kVersion}, {"name", config.name}, {"id", config.id}, {"url", config.url}};
  if (config.take_over_s > 0) marker = json_of(config);  // which other nodes take
  Status written = write_json(marker_path(config.directory), marker);
  if (written && config.hsm) {
    written = check_hsm(config);
    if (!written) fs::remove(marker_path(config.directory), error);
  }
  if (!written) fs::remove_all(home_of(links, config.name).folder, error);
  return written;
}

Result<LinkConfig> join_link(const std::string& links, const std::string& directory, std::string name) {
  std::error_code error;
  const std::string whole = fs::canonical(directory, error).string();
  if (error) return tl::unexpected<Error>(errno_error(error.value(), fmt::format("the directory \"{}\"", directory)));
  const auto marker = read_json(marker_path(whole));
  if (!marker && marker.error().code() != ErrorCode::kNotFound) return tl::unexpected<Error>(marker.error());
  if (!marker) {
    return fail(ErrorCode::kNotFound, "{} is the directory of no link: make it there with `millrace link add` ({})",
                directory, marker.error().message());
  }
  if (marker->value("take_over_s", 0.0) <= 0) {
    return fail(ErrorCode::kInvalidArgument, "the link of {} is for one node: make it with --take-over", directory);
  }
  ASSIGN_OR_RETURN(LinkConfig config, config_of(*marker));
  config.directory = whole;
  config.joined = true;
  if (!name.empty()) config.name = std::move(name);
  RETURN_IF_ERROR(check_name(config.name));
  RETURN_IF_ERROR(check_others(links, config));
  RETURN_IF_ERROR(make_home(links, config));
  return config;
}

std::string link_above(const LinkConfig& config, std::string_view path) {
  struct stat info{};
  for (size_t slash = path.find('/'); slash != path.npos; slash = path.find('/', slash + 1)) {
    std::string folder(path.substr(0, slash));
    if (::lstat(fmt::format("{}/{}", config.directory, folder).c_str(), &info) != 0) return "";
    if (S_ISLNK(info.st_mode)) return folder;
  }
  return "";
}

Status check_hsm(const LinkConfig& config) {
  const auto state = hsm_state(marker_path(config.directory), {});
  return state ? Status() : tl::unexpected<Error>(state.error());
}

Status remove_link(const std::string& links, std::string_view name) {
  ASSIGN_OR_RETURN(const LinkConfig config, read_link(links, name));
  const LinkHome home = home_of(links, name);
  ASSIGN_OR_RETURN(const LinkLock lock, LinkLock::take(home));
  std::error_code error;
  // A directory that is not mounted keeps its marker, which is found when it is mounted again.
  if (!config.joined && check_marker(config)) {
    static_cast<void>(write_emptied(config, {}));
    fs::remove(marker_path(config.directory), error);
  }
  fs::remove_all(home.folder, error);
  if (error) return tl::unexpected<Error>(errno_error(error.value(), "remove " + home.folder));
  return {};
}

Result<LinkConfig> read_link(const std::string& links, std::string_view name) {
  auto object = read_json(home_of(links, name).config_path());
  if (!object && object.error().code() == ErrorCode::kNotFound) {
    return fail(ErrorCode::kNotFound, "there is no link \"{}\"; `millrace link status` lists them", name);
  }
  if (!object) return tl::unexpected<Error>(std::move(object).error());
  return config_of(*object);
}

Result<std::vector<LinkConfig>> read_links(const std::string& links) {
  std::vector<LinkConfig> found;
  std::error_code error;
  for (fs::directory_iterator entry(links, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    ASSIGN_OR_RETURN(const bool is_link, exists((entry->path() / "link.json").string()));
    if (!is_link) continue;
    ASSIGN_OR_RETURN(LinkConfig config, read_link(links, entry->path().filename().string()));
    found.push_back(std::move(config));
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    return tl::unexpected<Error>(errno_error(error.value(), "read the folder of links " + links));
  }
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return found;
}

bool is_below(const std::string& path, const std::string& folder) {
  return path == folder || path.starts_with(folder == "/" ? folder : folder + "/");
}

std::string real_path(const std::string& path_or_url) {
  constexpr std::string_view kLocal = "file://";
  const std::string path = path_or_url.starts_with(kLocal) ? path_or_url.substr(kLocal.size()) : path_or_url;
  if (path.find("://") != path.npos) return path;
  std::error_code error;
  // Without the folder that this process works in, which may be gone, a path has no place.
  const fs::path absolute = fs::absolute(path, error);
  if (error) return path;
  std::string whole = fs::weakly_canonical(absolute, error).string();
  while (whole.size() > 1 && whole.ends_with('/')) whole.pop_back();
  return whole;
}

Result<LinkedPath> find_linked(const std::string& links, const std::string& path) {
  const std::string whole = real_path(path);
  auto found = linked(links, whole, path, [](const LinkConfig& config) { return config.directory; });
  if (found || found.error().code() != ErrorCode::kNotFound) return found;
  return linked(links, whole, path, [](const LinkConfig& config) { return config.show_at; });
}

Result<LinkedPath> find_linked_url(const std::string& links, std::string url) {
  while (url.size() > 1 && url.ends_with('/')) url.pop_back();
  return linked(links, url, url, [](const LinkConfig& config) { return config.url; });
}

Result<std::optional<MarkedPath>> find_marked(const std::string& path) {
  for (fs::path folder = fs::path(path).parent_path();; folder = folder.parent_path()) {
    const std::string marker = marker_path(folder == "/" ? "" : folder.string());
    ASSIGN_OR_RETURN(const bool is_linked, exists(marker));
    if (is_linked) {
      ASSIGN_OR_RETURN(const Json object, read_json(marker));
      return MarkedPath{object.value("url", ""), fs::path(path).lexically_relative(folder).string()};
    }
    if (folder == folder.parent_path()) return std::nullopt;
  }
}

Status check_marker(const LinkConfig& config) {
  auto marker = read_json(marker_path(config.directory));
  if (marker && marker->value("id", "") == config.id) return {};
  if (!marker && marker.error().code() == ErrorCode::kCorruption) {
    return fail(
        ErrorCode::kUnavailable,
        "{}; nothing is carried. Remove it, then `millrace link rm {}` and add the link anew: what is equal on both "
        "sides is not copied again",
        marker.error().message(), config.name);
  }
  if (marker) {
    return fail(ErrorCode::kUnavailable, "{} has the marker of another link: is another file system mounted there?",
                config.directory);
  }
  return fail(ErrorCode::kUnavailable,
              "{} is not mounted, or its marker {} is gone; nothing is carried until it is back", config.directory,
              marker_path(config.directory));
}

Result<LinkLock> LinkLock::take(const LinkHome& home) {
  const int fd = ::open(home.lock_path().c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) return tl::unexpected<Error>(errno_error(errno, "open " + home.lock_path()));
  LinkLock lock(fd);
  if (::flock(fd, LOCK_EX | LOCK_NB) == 0) return lock;
  return fail(ErrorCode::kUnavailable, "another process runs this link ({} is locked)", home.lock_path());
}

bool LinkLock::is_taken(const LinkHome& home) {
  const int fd = ::open(home.lock_path().c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return false;
  const LinkLock closes(fd);
  return ::flock(fd, LOCK_SH | LOCK_NB) != 0;
}

LinkLock::~LinkLock() {
  if (fd_ >= 0) ::close(fd_);
}

}  // namespace millrace::link
