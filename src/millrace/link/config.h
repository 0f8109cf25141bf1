// SPDX-License-Identifier: Apache-2.0
#pragma once

// What a link is: a directory, a bucket's URL, and the rules between them. Each link has a folder in the folder of
// links of this user and machine: link.json, the state, a lock. The directory has a marker, .millrace/link.json, so
// that an unmounted or another directory is never taken for one whose files were all removed. Values; functions are
// thread-safe.

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/sync/filter.h"

namespace millrace::link {

// Which changes of one side the other side takes.
struct Carries {
  bool added = true, changed = true, deleted = false;
  bool operator==(const Carries&) const = default;
};
// "new,changed,deleted", any of them, or "none". Errors: invalid_argument.
[[nodiscard]] Result<Carries> parse_carries(std::string_view text);
std::string carries_text(const Carries& carries);

// What becomes of the copy of a removed file: it is removed too, at once, or lies in .millrace/trash for a time.
struct Removal {
  std::optional<std::chrono::seconds> trash = std::chrono::days(7);
  bool operator==(const Removal&) const = default;
};
// "propagate", "trash:7d". Errors: invalid_argument.
[[nodiscard]] Result<Removal> parse_removal(std::string_view text);
std::string removal_text(const Removal& removal);

// Which version stays where both sides changed. What loses under kBucket, kDirectory and kNewest goes to the trash of
// its side, where there is one.
enum class ConflictRule { kBoth, kBucket, kDirectory, kNewest };
std::string_view conflict_rule_name(ConflictRule rule);  // "both", "bucket", "directory", "newest"
[[nodiscard]] Result<ConflictRule> parse_conflict_rule(std::string_view text);

struct LinkConfig {
  std::string name;       // letters, digits, '-', '_' and '.'
  std::string id;         // random; also in the marker
  std::string directory;  // absolute
  std::string url;        // of the bucket's side
  Carries imports, exports;
  Removal here, there;  // of files that were removed from the bucket, and from the directory
  ConflictRule conflict = ConflictRule::kBoth;
  // A file is finished when no process has it open for writing and it did not change for so long.
  double quiet_s = 2;
  // Between two listings of the bucket: the first after a change, then longer and longer up to the second.
  double poll_least_s = 2, poll_most_s = 60;
  bool lazy = false;  // imported files are stubs until they are restored (release.h)
  // With `lazy`: where users see the directory, and any program's open(2) waits for the content (guardian.h). "":
  // nowhere.
  std::string show_at;
  bool hsm = false;                 // released and restored by the HSM of the directory's Lustre (hsm.h)
  int64_t max_delete = 1000;        // a sweep that would remove more from one side removes nothing there
  std::vector<std::string> filter;  // "+ PATTERN", "- PATTERN"
  // A link that runs releases files when less of the file system is free than the first (0 to 1; 0: never), until the
  // second is.
  double release_below = 0, release_until = 0;
  std::vector<std::string> pins;  // files that match one of these patterns are never released
  std::string changelog;          // "MDT:USER" of the directory's Lustre (changelog.h); "": none
  // Several nodes may run the link: one does, and another takes over when it was silent for so long. 0: one node.
  double take_over_s = 0;
  bool joined = false;   // another node made it
  std::string next_use;  // file of paths in the order of their use (release.h); "": none
};

// Folders of a link.
struct LinkHome {
  std::string folder;
  std::string config_path() const { return folder + "/link.json"; }
  std::string state_path() const { return folder + "/state.db"; }
  std::string lock_path() const { return folder + "/lock"; }
};

// MILLRACE_LINKS, else millrace/links in XDG_STATE_HOME or ~/.local/state. Error: not_found (no home).
[[nodiscard]] Result<std::string> links_folder();
LinkHome home_of(const std::string& links, std::string_view name);

// Writes the config and the marker. Errors: invalid_argument (the name, the URL), already_exists (a link of that name;
// the directory, one above or one below belongs to a link), not_found (no directory), unsupported (`links` lies on
// a network file system, where a state may not be).
[[nodiscard]] Status add_link(const std::string& links, LinkConfig config);
// Takes part in the link that another node made for several, and whose marker is in `directory`. `name` "": as there.
// Errors: not_found (no marker), invalid_argument (it is for one node), already_exists (the name, the directory).
[[nodiscard]] Result<LinkConfig> join_link(const std::string& links, const std::string& directory, std::string name);
// Removes config, state and marker (that of a joined link stays); files and objects stay. Errors: not_found,
// unavailable (it is running).
[[nodiscard]] Status remove_link(const std::string& links, std::string_view name);
[[nodiscard]] Result<LinkConfig> read_link(const std::string& links, std::string_view name);
// In the order of their names.
[[nodiscard]] Result<std::vector<LinkConfig>> read_links(const std::string& links);

// A file or a folder of a link.
struct LinkedPath {
  LinkConfig config;
  LinkHome home;
  std::string below;  // path below the directory; "": the directory itself
  std::string whole() const { return below.empty() ? config.directory : config.directory + "/" + below; }
};
// Whether `path` is `folder` or lies below it, by their names.
bool is_below(const std::string& path, const std::string& folder);
// A local path as the links know theirs: absolute, without links. Of any other URL itself.
std::string real_path(const std::string& path_or_url);
// By a path as a person types it, or by a URL of the bucket's side. Whether anything is there is not asked. Errors:
// not_found: it lies in no link.
[[nodiscard]] Result<LinkedPath> find_linked(const std::string& links, const std::string& path);
[[nodiscard]] Result<LinkedPath> find_linked_url(const std::string& links, std::string url);

// The bucket's side of a path by the marker of its directory, on any node. nullopt: no folder above it has one. Errors:
// corruption (a damaged marker).
struct MarkedPath {
  std::string url;    // of the link's bucket
  std::string below;  // of the directory and of the URL
};
[[nodiscard]] Result<std::optional<MarkedPath>> find_marked(const std::string& path);

// Whether the directory is there and is this link's. Errors: unavailable: it is not mounted, or the marker is gone.
[[nodiscard]] Status check_marker(const LinkConfig& config);
// The first folder above `path`, below the directory, that is a symbolic link; "" where there is none. What lies behind
// one is no part of the link: nothing is read, written or removed through it.
std::string link_above(const LinkConfig& config, std::string_view path);
// Whether lfs is there and the directory lies on a Lustre with HSM. Errors: not_found, unsupported, unavailable.
[[nodiscard]] Status check_hsm(const LinkConfig& config);

// The one process that runs a link, or changes its state. Errors: unavailable: another does.
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
