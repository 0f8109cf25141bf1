// SPDX-License-Identifier: Apache-2.0
#pragma once

// One sync from its listings to its report. For one thread; the copies run on those of a TransferEngine.

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "millrace/base/thread/stop_later.h"
#include "millrace/sync/detail/action_runner.h"
#include "millrace/sync/detail/action_window.h"
#include "millrace/sync/detail/folder_attributes.h"
#include "millrace/sync/detail/moved_files.h"
#include "millrace/sync/detail/path_spool.h"
#include "millrace/sync/detail/record_keeper.h"
#include "millrace/sync/detail/sync_streams.h"

namespace millrace::sync {

// Errors: invalid_argument: one is inside the other.
[[nodiscard]] Status check_apart(const Location& source, const Location& target, const SyncOptions& options);

class SyncRun {
 public:
  // `options` and `progress` outlive this.
  SyncRun(const Location& source, const Location& target, const SyncOptions& options, const std::stop_token& stop,
          Progress* progress);

  // As sync(). Once.
  [[nodiscard]] Result<SyncReport> run();

 private:
  using NextAction = std::function<Result<std::optional<Action>>()>;

  std::unique_ptr<SyncStreams> open_streams();
  void phase(const char* name);
  [[nodiscard]] Status plan_ahead();
  [[nodiscard]] Result<SyncTotals> count_all();
  [[nodiscard]] Status check_room(int64_t needed_bytes);
  [[nodiscard]] Status check_source();
  [[nodiscard]] Result<std::optional<Action>> next_action();

  [[nodiscard]] Status copy_all();
  [[nodiscard]] Status copy_postponed();
  [[nodiscard]] Status copy_each(const NextAction& next);
  void begin(Action action);
  void report(const PendingActions& ended);
  void finish(PendingAction& pending);
  void count(const PendingAction& pending);
  void note_failure(Error error);

  [[nodiscard]] Status delete_extra();
  [[nodiscard]] Status remove_source();
  void deleted(const std::string& path, int64_t size, const Status& status);
  void carry_folder_attributes();
  void save_record();
  void abort_abandoned();

  const Location source_, target_;
  const SyncOptions& options_;
  const std::stop_token stop_;
  Progress* const progress_;
  const bool batched_;     // small files are made durable together
  StopLater record_stop_;  // what was copied before a stop is written down
  const Location record_at_;
  RecordKeeper record_;
  std::unique_ptr<SyncStreams> streams_;
  std::deque<Action> ahead_;  // planned and not begun
  bool planned_ = false;      // no action comes behind `ahead_`
  PathSpool deletes_;
  std::vector<Action> postponed_;  // until something in their place is deleted
  bool after_deletes_ = false;
  bool range_stopped_ = false;  // what ended was not done
  MovedFiles moved_;
  FolderAttributes folders_;
  SyncReport report_;
  ActionWindow window_;
  std::optional<ActionRunner> runner_;
  std::unique_ptr<TransferEngine> engine_;  // the last member: its threads end before what they use
};

}  // namespace millrace::sync
