// SPDX-License-Identifier: Apache-2.0
#pragma once

// The memory of a link: the versions of both sides of each file when they were last equal, conflicts, problems, and
// facts for `link status`. Stored in an SQLite file with a write-ahead log (docs/format/link_state.md). Losing it
// loses no data: the next sweep finds out again which files are equal. Thread-safe. Any number of processes may use
// it; each commits often.

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
    kEqual,      // both sides have the same content
    kReleased,   // the directory has name, size and times; the content is in the bucket only
    kReleasing,  // being released; after a kill it is released, or still has its content
    kGoneHere,   // removed from the directory; the rules keep the object
    kGoneThere,  // removed from the bucket; the rules keep the file
  };
  std::string path;  // below the directory, and below the bucket's URL
  int64_t size = 0;
  sync::RecordedVersion here;   // version in the directory
  std::string there;            // version of the object
  std::optional<Hash128> hash;  // XXH3-128 of the content, if it passed through this process
  State state = State::kEqual;
  uint32_t mode = 0;  // permissions of a released file, for its restore
  std::string proof;  // the proof that the object holds this content ("etag", ...); "" while unproven
  bool operator==(const LinkFile&) const = default;
};

// A row that a link learned: a path with its file, or without one if the link forgot it.
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

// Returns "NFS", "Lustre", "FUSE" or "GPFS" if `path` is on one of these; else "". Errors: those of statfs(2).
[[nodiscard]] Result<std::string_view> network_file_system(const std::string& path);
// Checks that a state may be kept in this folder. Errors: unsupported (NFS, Lustre, FUSE or GPFS, which would damage
// the log of SQLite), those of statfs(2).
[[nodiscard]] Status check_state_folder(const std::string& folder);
// Pretends that every folder is on the file system with this number of statfs(2); nullopt: the real one. For tests.
void set_file_system_for_test(std::optional<int64_t> number);

class LinkState {
 public:
  // Opens `path`, or creates it. Puts a damaged file aside, with a warning. Errors: unsupported (SQLite is missing; a
  // network file system, which would damage its log), those of the file system.
  [[nodiscard]] static Result<std::unique_ptr<LinkState>> open(const std::string& path);
  // Opens the state to read it while another process writes it. Errors: not_found (no sweep has begun yet).
  [[nodiscard]] static Result<std::unique_ptr<LinkState>> open_to_read(const std::string& path);
  ~LinkState();

  [[nodiscard]] Result<std::optional<LinkFile>> find(std::string_view path);
  // Returns a file that has this version in the directory; a renamed file keeps its version. Prefers a released file.
  [[nodiscard]] Result<std::optional<LinkFile>> find_here(std::string_view version);
  // Returns up to `most` files after `after` whose path begins with `prefix`, in byte order of the path.
  [[nodiscard]] Result<std::vector<LinkFile>> page(std::string_view after, std::string_view prefix, size_t most);
  // Returns up to `most` paths after `after` of files in `state`, in byte order.
  [[nodiscard]] Result<std::vector<std::string>> paths_in(LinkFile::State state, std::string_view after, size_t most);
  [[nodiscard]] Status put(const LinkFile& file);
  [[nodiscard]] Status forget(std::string_view path);

  [[nodiscard]] Status add_conflict(const Conflict& conflict);
  // Returns up to `most` conflicts, the latest first.
  [[nodiscard]] Result<std::vector<Conflict>> conflicts(size_t most);
  // Sets the error of a path. If it has one already, the time of the first stays.
  [[nodiscard]] Status set_problem(std::string_view path, std::string_view error);
  [[nodiscard]] Status clear_problem(std::string_view path);
  [[nodiscard]] Result<std::vector<Problem>> problems(size_t most);

  [[nodiscard]] Status set_fact(std::string_view name, std::string_view value);
  [[nodiscard]] Result<std::string> fact(std::string_view name);  // "": no such fact

  // Turns notes of changed paths on or off. With notes, put() and forget() of all processes also record the path until
  // the other tasks have been told of it. For a link that several tasks run (shared_state.h).
  [[nodiscard]] Status note_changes(bool on);
  // Returns up to `most` of the noted paths, with their current rows.
  [[nodiscard]] Result<std::vector<Learned>> changes(size_t most);
  // Drops the notes of `told`, unless a path has changed since.
  [[nodiscard]] Status changes_are_told(const std::vector<Learned>& told);
  // Returns up to `most` files in (after, until], in byte order, and drops the notes of the range they cover. `until`
  // "": up to the last file.
  [[nodiscard]] Result<std::vector<LinkFile>> take_range(std::string_view after, std::string_view until, size_t most);
  // Replaces the rows of (after, until] by `files`, which other tasks learned. Paths with a note keep their row.
  [[nodiscard]] Status replace_range(std::string_view after, std::string_view until,
                                     const std::vector<LinkFile>& files);
  [[nodiscard]] Status learn(const std::vector<Learned>& learned);
  // Keeps the rows of a task's journal.
  [[nodiscard]] Status add_journal(std::string_view owner, int64_t number, const std::vector<Learned>& rows);
  // Applies the kept journals to paths in (after, until] again, except each owner's journals up to its number in
  // `heard`.
  [[nodiscard]] Status learn_from_journals(std::string_view after, std::string_view until,
                                           const std::map<std::string, int64_t>& heard);
  // Drops the journals of owners that are not in `first`, and of the others those before their number in it.
  [[nodiscard]] Status keep_journals(const std::map<std::string, int64_t>& first);

  [[nodiscard]] Result<StateCounts> counts();
  // Commits everything written so far. Other processes see it from then on, and may write. Until then a kill may undo
  // it, which only costs a comparison.
  [[nodiscard]] Status commit();

 private:
  struct Impl;
  explicit LinkState(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace millrace::link
