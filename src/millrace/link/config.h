// SPDX-License-Identifier: Apache-2.0
#pragma once

// The configuration of a link: a directory, a bucket's URL, and the rules between them. Each link has its own folder,
// with link.json, the state and a lock, in the links folder of this user and machine. The directory holds a marker,
// .millrace/link.json, so that an unmounted or wrong directory is never mistaken for one whose files were all removed.
// Values; functions are thread-safe.

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/sync/filter.h"

namespace millrace::link {

// The changes of one side that are carried to the other.
struct Carries {
  bool added = true, changed = true, deleted = false;
  bool operator==(const Carries&) const = default;
};
// Parses "none" or any of "new,changed,deleted". Errors: invalid_argument.
[[nodiscard]] Result<Carries> parse_carries(std::string_view text);
std::string carries_text(const Carries& carries);

// The fate of a copy after the original was removed: it stays in .millrace/trash for a time, or is removed at once
// (nullopt).
struct Removal {
  std::optional<std::chrono::seconds> trash = std::chrono::days(7);
  bool operator==(const Removal&) const = default;
};
// Parses "propagate" or "trash:7d". Errors: invalid_argument.
[[nodiscard]] Result<Removal> parse_removal(std::string_view text);
std::string removal_text(const Removal& removal);

// The version that is kept when both sides changed. With kBucket, kDirectory and kNewest, the other version goes to
// the trash of its side, if there is one.
enum class ConflictRule { kBoth, kBucket, kDirectory, kNewest };
std::string_view conflict_rule_name(ConflictRule rule);  // "both", "bucket", "directory", "newest"
[[nodiscard]] Result<ConflictRule> parse_conflict_rule(std::string_view text);

struct LinkConfig {
  std::string name;       // letters, digits, '-', '_' and '.'
  std::string id;         // random; also stored in the marker
  std::string directory;  // absolute
  std::string url;        // the bucket's side
  Carries imports, exports;
  Removal here, there;  // for files removed from the bucket, and for files removed from the directory
  ConflictRule conflict = ConflictRule::kBoth;
  // A file is finished when no process has it open for writing and it has not changed for this long.
  double quiet_s = 2;
  // Seconds between two listings of the bucket. The pause is the first value after a change, then grows up to the
  // second.
  double poll_least_s = 2, poll_most_s = 60;
  bool lazy = false;  // imported files are stubs until they are restored (release.h)
  // With `lazy`: the path where users see the directory, and where any program's open(2) waits for the content
  // (guardian.h). "": none.
  std::string show_at;
  bool hsm = false;                 // the HSM of the directory's Lustre releases and restores files (hsm.h)
  int64_t max_delete = 1000;        // a sweep that would remove more files from one side removes none there
  std::vector<std::string> filter;  // "+ PATTERN", "- PATTERN"
  // A running link releases files when the free share of the file system is below the first value (0 to 1; 0: never),
  // until it reaches the second.
  double release_below = 0, release_until = 0;
  std::vector<std::string> pins;  // files that match one of these patterns are never released
  std::string changelog;          // "MDT:USER" of the directory's Lustre (changelog.h); "": none
  // With several nodes, one runs the link, and another takes over after it has been silent for this long. 0: one node
  // only.
  double take_over_s = 0;
  bool joined = false;   // another node made it
  std::string next_use;  // file that lists paths in the order of their next use (release.h); "": none
};

// The folder of a link and the paths in it.
struct LinkHome {
  std::string folder;
  std::string config_path() const { return folder + "/link.json"; }
  std::string state_path() const { return folder + "/state.db"; }
  std::string lock_path() const { return folder + "/lock"; }
};

// Returns MILLRACE_LINKS, else millrace/links in XDG_STATE_HOME or ~/.local/state. Error: not_found (no home).
[[nodiscard]] Result<std::string> links_folder();
LinkHome home_of(const std::string& links, std::string_view name);

// Writes the config and the marker. Errors: invalid_argument (the name, the URL), already_exists (a link of that name;
// the directory, one above it or one below it belongs to a link), not_found (no directory), unsupported (`links` is on
// a network file system, which cannot hold a state).
[[nodiscard]] Status add_link(const std::string& links, LinkConfig config);
// Joins a link that another node made for several nodes. Its marker is in `directory`. `name` "": the name in the
// marker. Errors: not_found (no marker), invalid_argument (the link is for one node), already_exists (the name, the
// directory).
[[nodiscard]] Result<LinkConfig> join_link(const std::string& links, const std::string& directory, std::string name);
// Removes the config, the state and the marker (a joined link's marker stays). Files and objects stay. Errors:
// not_found, unavailable (the link is running).
[[nodiscard]] Status remove_link(const std::string& links, std::string_view name);
[[nodiscard]] Result<LinkConfig> read_link(const std::string& links, std::string_view name);
// Returns all links, in the order of their names.
[[nodiscard]] Result<std::vector<LinkConfig>> read_links(const std::string& links);

// A file or a folder in a link.
struct LinkedPath {
  LinkConfig config;
  LinkHome home;
  std::string below;  // path below the directory; "": the directory itself
  std::string whole() const { return below.empty() ? config.directory : config.directory + "/" + below; }
};
// Returns whether `path` is `folder` or is below it. Compares names only.
bool is_below(const std::string& path, const std::string& folder);
// Returns a local path as links store it: absolute, without symbolic links. Returns any other URL unchanged.
std::string real_path(const std::string& path_or_url);
// Find the link of a path as a person types it, or of a URL of the bucket's side. Neither checks that the file exists.
// Errors: not_found (no link has the path).
[[nodiscard]] Result<LinkedPath> find_linked(const std::string& links, const std::string& path);
[[nodiscard]] Result<LinkedPath> find_linked_url(const std::string& links, std::string url);

// A path's place in the bucket, from the marker of its directory, on any node.
struct MarkedPath {
  std::string url;    // URL of the link's bucket side
  std::string below;  // path below the directory, and below the URL
};
// Finds the marker in the nearest folder above `path`; nullopt if there is none. Errors: corruption (a damaged
// marker).
[[nodiscard]] Result<std::optional<MarkedPath>> find_marked(const std::string& path);

// Checks that the directory is there and belongs to this link. Errors: unavailable (it is not mounted, or the marker
// is gone).
[[nodiscard]] Status check_marker(const LinkConfig& config);
// Returns the first folder of `path`, below the directory, that is a symbolic link; "" if none is. Files behind a
// symbolic link are not part of the link: nothing is read, written or removed through it.
std::string link_above(const LinkConfig& config, std::string_view path);
// Checks that lfs is installed and the directory is on a Lustre with HSM. Errors: not_found, unsupported, unavailable.
[[nodiscard]] Status check_hsm(const LinkConfig& config);

// Held by the one process that runs a link or changes its state. Errors: unavailable (another process holds it).
class LinkLock {
 public:
  [[nodiscard]] static Result<LinkLock> take(const LinkHome& home);
  static bool is_taken(const LinkHome& home);
  ~LinkLock();
  LinkLock(LinkLock&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  LinkLock& operator=(LinkLock&&) = delete;

 private:
  explicit LinkLock(int fd) : fd_(fd) {}
  int fd_;
};

}  // namespace millrace::link
