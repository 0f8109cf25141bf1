// SPDX-License-Identifier: Apache-2.0
#pragma once

// Makes one tree of files equal to another, from any Storage to any Storage: lists both in order, decides file by file
// (plan.h), copies what differs many at once (transfer.h), and remembers what is equal (record.h). An error of one file
// is counted and the rest goes on. Thread-safe; each call starts its own threads. docs/design/sync.md,
// docs/transfer.md.

#include <chrono>
#include <functional>
#include <optional>
#include <stop_token>
#include <string>

#include "millrace/base/progress.h"
#include "millrace/storage/local/lustre.h"
#include "millrace/sync/filter.h"
#include "millrace/sync/plan.h"
#include "millrace/sync/transfer.h"

namespace millrace::sync {

// The outcome for one path, or with dry_run the planned one.
struct SyncEvent {
  enum class Kind { kCopied, kSkipped, kDeleted, kExtra, kPassed, kRefused, kFailed };
  Kind kind = Kind::kCopied;
  std::string path;
  std::string reason;
  int64_t size = 0;
  int64_t moved_bytes = 0;  // bytes that went through this process
};
// "copy", "skip", "delete", "extra", "pass", "refuse", "fail".
std::string_view event_name(SyncEvent::Kind kind);

struct SyncOptions {
  Filter filter;  // holds for both sides: what is left out is neither copied nor deleted
  CompareBy compare = CompareBy::kUsual;
  bool follow_links = false;                  // follow links of the source; else links are passed over
  bool delete_extra = false;                  // remove from the target what the source does not have
  std::optional<int64_t> max_delete;          // when more would be removed, no file is
  bool remove_source = false;                 // at the end, remove from the source what is at the target now
  bool dry_run = false;                       // change nothing; events and report say what would be done
  std::optional<LustreLayout> lustre_layout;  // layout of the target directory; off Lustre only a warning
  bool record = true;                         // keep and use a record at the target
  // How often what is equal so far is written down, so that a killed run is not done again.
  std::chrono::milliseconds record_every{10'000};
  TransferOptions transfer;
  EngineOptions engine;
  KeyRange* range = nullptr;  // only the paths in it, from which others may be taken meanwhile; outlives the sync
  // Called from one thread at a time, in byte order of the path, deletions last. Default: none.
  std::function<void(const SyncEvent&)> on_event;
};

struct SyncReport {
  int64_t copied_files = 0;
  int64_t copied_bytes = 0;   // their size
  int64_t moved_bytes = 0;    // bytes that went through this process
  int64_t server_bytes = 0;   // bytes that the target's storage copied by itself: S3's servers, a file system
  int64_t resumed_bytes = 0;  // bytes that an earlier run had moved
  int64_t skipped_files = 0;
  int64_t skipped_bytes = 0;
  int64_t deleted_files = 0;
  int64_t deleted_bytes = 0;
  int64_t extra_files = 0;    // only at the target, and left there
  int64_t removed_files = 0;  // from the source, with remove_source
  int64_t made_folders = 0;   // empty ones that the target did not have
  int64_t set_folders = 0;    // got other attributes, with TransferOptions::posix
  int64_t passed = 0;         // links, devices, folder markers
  int64_t refused = 0;
  int64_t failed = 0;
  int64_t retries = 0;  // requests that were sent again (those of the whole process, while this ran)
  double seconds = 0;
  std::string not_deleted;             // why nothing was deleted although it was asked for; else empty
  std::optional<Error> first_failure;  // error of the first file that failed
  Status end;                          // the error that ended the run early: cancelled, a listing that failed, no space

  // Bytes that this run did not have to copy: equal ones, and those that an earlier run had moved.
  int64_t saved_bytes() const { return skipped_bytes + copied_bytes - moved_bytes - server_bytes; }
  // `end`; else an error when any file failed or was refused, or deletion was.
  [[nodiscard]] Status status() const;
};

// Copies the files below `source` to the same paths below `target`. Errors: those of the arguments (a URL, a source
// that is not there, a target inside the source); what goes wrong later is in the report.
[[nodiscard]] Result<SyncReport> sync(const std::string& source, const std::string& target,
                                      const SyncOptions& options = {}, std::stop_token stop = {},
                                      Progress* progress = nullptr);
[[nodiscard]] Result<SyncReport> sync(const Location& source, const Location& target, const SyncOptions& options = {},
                                      std::stop_token stop = {}, Progress* progress = nullptr);

// One of several tasks that share the work of one sync (share.h): each calls this with the same URLs and `job`, and
// comes back when all is done. The report is of this task's part. There is no record of what is equal.
struct SharedSync {
  std::string job;  // names the board below the target: another one for each sync
  // A task is taken for dead after so long without a sign of life, and another goes on with what it had.
  std::chrono::duration<double> dead_after{60};
};
// Errors: as of sync(), invalid_argument (deletion, removal of the source, a dry run; a job that is no name).
[[nodiscard]] Result<SyncReport> sync_shared(const std::string& source, const std::string& target,
                                             const SharedSync& shared, const SyncOptions& options = {},
                                             std::stop_token stop = {}, Progress* progress = nullptr);

}  // namespace millrace::sync
