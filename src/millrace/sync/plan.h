// SPDX-License-Identifier: Apache-2.0
#pragma once

// Plans a sync as a pure merge of three sorted streams: the source, the target, and the record of files made equal
// before. Reads no content and writes no data. For one thread.

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/sync/entries.h"
#include "millrace/sync/record.h"

namespace millrace::sync {

// How two files of one path are compared.
enum class CompareBy {
  kUsual,     // by the record or another proof; else by content
  kChecksum,  // reads both
  kSize,      // by size alone
  kNone,      // copies every file, except those that the record proves equal
};

struct PlanOptions {
  CompareBy compare = CompareBy::kUsual;
  bool delete_extra = false;    // removes files that only the target has
  bool target_folders = false;  // Capabilities::folders of the target
  bool attributes = false;      // owner, mode and times must be equal, too
  // Reading this side costs much less than a transfer, because it is on this machine.
  bool cheap_source = false, cheap_target = false;
  // Proves without reading that two files of one size are equal. Returns the proof as text for people; nullptr: no
  // proof.
  std::function<const char*(const ObjectInfo& source, const ObjectInfo& target)> proof;
};

struct Action {
  enum class Kind {
    kCopy,
    kCompare,     // compares the source with `recorded->hash` if `known_target`, else both contents
    kAttributes,  // the contents are assumed equal; owner, mode and times decide
    kSkip,        // the files are equal
    kDelete,      // deletes it from the target
    kExtra,       // only the target has the file; it stays
    kFolder,      // an empty folder, to be created if missing
    kPass,        // no file, skipped by policy: a link, a device, a folder marker
    kRefuse,      // cannot be copied, which is an error
    kUnreadable,  // the source cannot be read there: an error, after which nothing is deleted
    kKeep,        // neither side has the file now, but its record entry may stay (`recorded`)
  };
  Kind kind = Kind::kCopy;
  std::string path;
  std::string reason;         // for people: "changed since the last sync"
  int64_t size = 0;           // bytes moved, skipped or deleted
  ObjectInfo source, target;  // as listed; a side without the file has an empty key
  std::optional<RecordEntry> recorded;
  bool known_target = false;
  bool after_deletes = false;  // a file that will be deleted is in the place of its folder
};

class Plan {
 public:
  using Entries = std::function<Result<std::optional<Entry>>()>;
  using Records = std::function<Result<std::optional<RecordEntry>>()>;
  // Each call of `source`, `target` and `records` returns the next entry in byte order of the path, then std::nullopt.
  // `left_out` tells whether a path is left out of the listings of both sides, by a filter.
  Plan(Entries source, Entries target, Records records, std::function<bool(std::string_view)> left_out,
       const PlanOptions& options);

  // Returns the next action in byte order of the path; std::nullopt after the last. Errors: those of the two sides;
  // each ends the plan. A record that fails is treated as ending there.
  [[nodiscard]] Result<std::optional<Action>> next();

  // The number of files in the source so far.
  int64_t source_files() const { return source_files_; }
  // Returns the next record entry that the plan has not reached. Ends the plan.
  [[nodiscard]] std::optional<RecordEntry> rest_of_record();
  // The reason why the record ended early; empty when it did not.
  const std::string& record_problem() const { return record_problem_; }

 private:
  // Finds entries of one side that occupy the place of a folder: a file "a" where "a/b" needs a folder "a".
  class Above {
   public:
    void pass(const Entry& entry);
    // Returns the kind of the entry in the place of a folder of `path`.
    std::optional<Entry::Kind> of(std::string_view path) const;

   private:
    std::vector<std::pair<std::string, Entry::Kind>> open_;
  };

  void accept_any_key(std::optional<Entry>& entry) const;
  [[nodiscard]] Status fill();
  void fill_record();
  Action decide(std::string path, std::optional<Entry> source, std::optional<Entry> target,
                std::optional<RecordEntry> recorded);
  void decide_source(Action& action, const Entry& source, const std::optional<Entry>& target) const;
  void decide_files(Action& action) const;
  void decide_target(Action& action, const Entry& target) const;

  const Entries next_source_, next_target_;
  const Records next_record_;
  const std::function<bool(std::string_view)> left_out_;
  const PlanOptions options_;
  std::optional<Entry> source_, target_;
  std::optional<RecordEntry> recorded_;
  bool source_ended_ = false, target_ended_ = false, record_ended_ = false;
  int64_t source_files_ = 0;
  std::string record_problem_;
  Above source_above_, target_above_;
};

}  // namespace millrace::sync
