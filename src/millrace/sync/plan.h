// SPDX-License-Identifier: Apache-2.0
#pragma once

// What a sync will do, as a pure merge of three sorted streams: the source, the target, and the record of what was made
// equal before. It reads no content and writes no data. For one thread.

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/sync/entries.h"
#include "millrace/sync/record.h"

namespace millrace::sync {

// How two files of one path are told apart.
enum class CompareBy {
  kUsual,     // by the record, or what else proves it; else by content
  kChecksum,  // both are read
  kSize,      // by size alone
  kNone,      // every file is copied, but for those that the record proves equal
};

struct PlanOptions {
  CompareBy compare = CompareBy::kUsual;
  bool delete_extra = false;    // what only the target has is removed
  bool target_folders = false;  // Capabilities::folders of the target
  bool attributes = false;      // owner, mode and times are to be equal too
  // Reading a side costs much less than a transfer: it is on this machine.
  bool cheap_source = false, cheap_target = false;
  // What proves, without reading, that two files of one size are the same, as text for people; nullptr: no proof.
  std::function<const char*(const ObjectInfo& source, const ObjectInfo& target)> proof;
};

struct Action {
  enum class Kind {
    kCopy,
    kCompare,     // the contents decide: the source against `recorded->hash` where `known_target`, else both are read
    kAttributes,  // the contents are taken for equal; owner, mode and times decide
    kSkip,        // equal
    kDelete,      // from the target
    kExtra,       // only the target has it; it stays
    kFolder,      // an empty folder, to be made where there is none
    kPass,        // no file, passed over by policy: a link, a device, a folder marker
    kRefuse,      // cannot be copied, and that is an error
    kUnreadable,  // the source may hold anything there: an error, after which no file is deleted
    kKeep,        // neither side has it now, but the record's entry may stay (`recorded`)
  };
  Kind kind = Kind::kCopy;
  std::string path;
  std::string reason;         // for people: "changed since the last sync"
  int64_t size = 0;           // of what is moved, skipped or deleted
  ObjectInfo source, target;  // as listed; empty keys where a side has none
  std::optional<RecordEntry> recorded;
  bool known_target = false;
  bool after_deletes = false;  // a file that is to be deleted lies where its folder belongs
};

class Plan {
 public:
  using Entries = std::function<Result<std::optional<Entry>>()>;
  using Records = std::function<Result<std::optional<RecordEntry>>()>;
  // Each call gives the next in byte order of the path, then std::nullopt. `left_out` says whether a path is outside of
  // what the two sides were asked for (a filter).
  Plan(Entries source, Entries target, Records records, std::function<bool(std::string_view)> left_out,
       const PlanOptions& options);

  // The next action in byte order of the path; std::nullopt after the last. Errors: those of the two sides, each ends
  // the plan; a record that fails is treated as ending there.
  [[nodiscard]] Result<std::optional<Action>> next();

  // Files that the source had so far.
  int64_t source_files() const { return source_files_; }
  // The record's entries that the plan has not come to; ends it.
  [[nodiscard]] std::optional<RecordEntry> rest_of_record();
  // Why the record ended early; empty when it did not.
  const std::string& record_problem() const { return record_problem_; }

 private:
  // The entries of one side that a path may lie below: those whose path begins it.
  class Above {
   public:
    void pass(const Entry& entry);
    // The kind of the entry that is a folder of `path`.
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
