// SPDX-License-Identifier: Apache-2.0
#pragma once

// One action of a sync. It lives from its beginning until all earlier actions have ended and it is reported. A value.

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "millrace/base/progress.h"
#include "millrace/sync/plan.h"
#include "millrace/sync/sync.h"
#include "millrace/sync/transfer.h"

namespace millrace::sync {

struct PendingAction {
  Action action;
  SyncEvent::Kind result = SyncEvent::Kind::kCopied;
  TransferReport moved;
  std::optional<RecordEntry> entry;  // entry to write to the record
  std::optional<Error> error;
  bool is_durable = true;      // a power cut does not undo it
  bool is_blocked = false;     // a folder is in its place; the files of the folder are deleted first
  bool is_new_folder = false;  // an empty folder that was not at the target
  bool is_done = false;        // set last

  void fail_with(Error what, Progress* progress) {
    if (progress != nullptr && what.code() != ErrorCode::kCancelled) progress->add_failed();
    result = SyncEvent::Kind::kFailed;
    error = std::move(what);
    entry.reset();
  }
};

using PendingActions = std::vector<std::shared_ptr<PendingAction>>;

}  // namespace millrace::sync
