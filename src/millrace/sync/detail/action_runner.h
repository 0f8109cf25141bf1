// SPDX-License-Identifier: Apache-2.0
#pragma once

// Performs one action of a plan: settles it at once, compares, or copies. Thread-safe between actions.

#include <functional>
#include <memory>
#include <optional>
#include <stop_token>

#include "millrace/sync/detail/path_spool.h"
#include "millrace/sync/detail/pending_action.h"

namespace millrace::sync {

class ActionRunner {
 public:
  // Called once for each started action, on a thread of the engine. That thread does not use the action afterwards.
  using Ended = std::function<void(PendingAction&)>;
  // `batched`: the caller makes small files durable. REQUIRES: `source`, `target`, `options` and `engine` outlive this
  // object.
  ActionRunner(const Location& source, const Location& target, const SyncOptions& options, TransferEngine& engine,
               bool batched, std::stop_token stop, Progress* progress, Ended ended);

  // Whether the action reads or writes and so needs start(). Otherwise settle() performs it.
  bool takes_time(const Action& action) const;
  // Performs the action at once. Deletions are collected in `deletes` for the end of the run. REQUIRES: !takes_time().
  void settle(PendingAction& pending, PathSpool& deletes) const;
  void start(const std::shared_ptr<PendingAction>& pending);

  // From now on, a folder in the place of a file is an error, because the deletions are done.
  void expect_no_folders() { expects_folders_ = false; }

 private:
  void settle_skip(PendingAction& pending) const;
  void settle_folder(PendingAction& pending) const;
  bool is_to_be_copied(PendingAction& pending) const;
  [[nodiscard]] Result<const char*> difference(PendingAction& pending) const;
  [[nodiscard]] Result<bool> compare(PendingAction& pending) const;
  TransferOptions options_for(const Action& action) const;
  void take_copied(PendingAction& pending, Result<TransferReport> moved) const;
  bool is_folder_in_its_place(const Action& action, const Error& error) const;
  std::optional<RecordEntry> entry_of(const Action& action, const ObjectInfo& target,
                                      std::optional<Hash128> hash) const;

  const Location& source_;
  const Location& target_;
  const SyncOptions& options_;
  TransferEngine& engine_;
  const bool batched_;
  const bool folders_;  // the target has folders
  const std::stop_token stop_;
  Progress* const progress_;
  const Ended ended_;
  bool expects_folders_ = true;  // changes only while no action is under way
};

}  // namespace millrace::sync
