// SPDX-License-Identifier: Apache-2.0
#pragma once

// What a link remembers: of each file the versions of both sides when they were last equal, conflicts, what failed, and
// facts for `link status`. An SQLite file with a write-ahead log (docs/format/link_state.md). Losing it loses no data:
// the next sweep finds out again what is equal. Thread-safe. Any number of processes may use it; each commits often.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/hash/hash.h"
#include "millrace/base/thread/sync.h"
#include "millrace/sync/record.h"

namespace millrace::link {

struct LinkFile {
  enum class State {
    kEqual,      // both sides have one content
    kReleased,   // the directory has name, size and times; the content is in the bucket only
    kReleasing,  // on the way there: a process that died here has left it in one of the two
    kGoneHere,   // removed from the directory, and the policy keeps the object
    kGoneThere,  // removed from the bucket, and the policy keeps the file
  };
  std::string path;  // below the directory, and below the bucket's URL
  int64_t size = 0;
  sync::RecordedVersion here;   // of the directory
  std::string there;            // version of the object
  std::optional<Hash128> hash;  // XXH3-128 of the content, where it passed through this process
  State state = State::kEqual;
  uint32_t mode = 0;  // permissions of a released file, which it gets back
  std::string proof;  // what proves that the object holds this content ("etag", ...); "" while unproven
  bool operator==(const LinkFile&) const = default;
};

// What a link learned of a path: its file, or that it forgot it.
struct Learned {
  std::string path;
  std::optional<LinkFile> file;
};

struct Conflict {
  int64_t time = 0;  // UTC seconds since 1970
  std::string path;
  std::string reason;   // "both sides changed"
  std::string outcome;  // "the directory's version is now a (conflict ...).txt"
};

struct Problem {
  std::string path;
  int64_t since = 0;  // UTC seconds since 1970
  std::string error;
};

struct StateCounts {
  int64_t files = 0, bytes = 0;  // on both sides
  int64_t released = 0, released_bytes = 0;
  int64_t proven = 0;
  int64_t conflicts = 0, problems = 0;
};

// "NFS", "Lustre", "FUSE" or "GPFS" where `path` lies on one of these; else "". Errors: those of statfs(2).
[[nodiscard]] Result<std::string_view> network_file_system(const std::string& path);
// Whether a state may lie in this folder. Errors: unsupported: on NFS, Lustre, FUSE or GPFS the log of SQLite would be
// damaged; those of statfs(2).
[[nodiscard]] Status check_state_folder(const std::string& folder);
// As if every folder lay on the file system that statfs(2) gives this number; nullopt: as it is. For tests.
void set_file_system_for_test(std::optional<int64_t> number);

class LinkState {
 public:
  // Opens or makes `path`. A damaged file is put aside, with a warning. Errors:
  // unsupported (SQLite is missing; a network file system, where its log would be damaged), those of the file system.
  [[nodiscard]] static Result<std::unique_ptr<LinkState>> open(const std::string& path);
  // For reading beside that process. Errors: not_found: no sweep has begun yet.
  [[nodiscard]] static Result<std::unique_ptr<LinkState>> open_to_read(const std::string& path);
  ~LinkState();

  [[nodiscard]] Result<std::optional<LinkFile>> find(std::string_view path);
  // A file whose version in the directory this is: one that was renamed keeps it. A released one before others.
  [[nodiscard]] Result<std::optional<LinkFile>> find_here(std::string_view version);
  // Up to `most` files behind `after` that begin with `prefix`, in byte order of the path.
  [[nodiscard]] Result<std::vector<LinkFile>> page(std::string_view after, std::string_view prefix, size_t most);
  // Up to `most` paths behind `after` in this state, in byte order.
  [[nodiscard]] Result<std::vector<std::string>> paths_in(LinkFile::State state, std::string_view after, size_t most);
  [[nodiscard]] Status put(const LinkFile& file);
  [[nodiscard]] Status forget(std::string_view path);

  [[nodiscard]] Status add_conflict(const Conflict& conflict);
  // The latest first.
  [[nodiscard]] Result<std::vector<Conflict>> conflicts(size_t most);
  // The error of a path; it keeps the time of the first.
  [[nodiscard]] Status set_problem(std::string_view path, std::string_view error);
  [[nodiscard]] Status clear_problem(std::string_view path);
  [[nodiscard]] Result<std::vector<Problem>> problems(size_t most);

  [[nodiscard]] Status set_fact(std::string_view name, std::string_view value);
  [[nodiscard]] Result<std::string> fact(std::string_view name);  // "" where there is none

  // Where several tasks run the link (shared_state.h), put() and forget() of all processes also note the path, until
  // the other tasks have been notified.
  [[nodiscard]] Status note_changes(bool on);
  // Up to `most` of the noted paths, as they are now.
  [[nodiscard]] Result<std::vector<Learned>> changes(size_t most);
  [[nodiscard]] Status changes_are_told(const std::vector<Learned>& told);
  // Up to `most` files in (after, until], in byte order; their notes go. `until` "": no end.
  [[nodiscard]] Result<std::vector<LinkFile>> take_range(std::string_view after, std::string_view until, size_t most);
  // What other tasks learned: these are all files in (after, until]. Paths with a note stay as they are here.
  [[nodiscard]] Status replace_range(std::string_view after, std::string_view until,
                                     const std::vector<LinkFile>& files);
  [[nodiscard]] Status learn(const std::vector<Learned>& learned);
  // Keeps what a journal of another task told, and learns again what journals tell of (after, until]: of each owner
  // those behind the number that `heard` has for it.
  [[nodiscard]] Status add_journal(std::string_view owner, int64_t number, const std::vector<Learned>& rows);
  [[nodiscard]] Status learn_from_journals(std::string_view after, std::string_view until,
                                           const std::map<std::string, int64_t>& heard);
  // Drops journals of other owners than these, and of these what is before their number.
  [[nodiscard]] Status keep_journals(const std::map<std::string, int64_t>& first);

  [[nodiscard]] Result<StateCounts> counts();
  // Writes down everything so far; other processes see it then, and may write. Until then a kill may undo it, which
  // costs a comparison.
  [[nodiscard]] Status commit();

 private:
  struct Impl;
  explicit LinkState(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace millrace::link
