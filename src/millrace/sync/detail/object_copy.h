// SPDX-License-Identifier: Apache-2.0
#pragma once

// Performs one requested copy as a job of the scheduler: plans, makes one attempt or several, and answers the request.
// The operations of its attempts push their completions to this object, and each completion starts the next step. The
// object owns itself until the request is answered.

#include <memory>
#include <optional>
#include <vector>

#include "millrace/sync/detail/copy_attempt.h"

namespace millrace::sync {

class ObjectCopy final : public CompletionQueue {
 public:
  // Starts the copy and returns at once. REQUIRES: the objects in `tools` live until the request is answered and the
  // scheduler is destroyed.
  static void start(const CopyTools& tools, CopyRequest request);

  ObjectCopy(const CopyTools& tools, CopyRequest request);
  void push(Completion completion) override;

 private:
  using Next = CopyScheduler::Next;

  Next run();
  bool rest();
  Next go_on(std::span<Completion> completions);
  [[nodiscard]] Status plan();
  void show_progress();
  void end_attempt(Result<TransferReport> report);
  void end();

  const CopyTools tools_;
  CopyRequest request_;  // options change from attempt to attempt
  const CopyScheduler::Weight weight_;
  std::optional<Progress> progress_;  // progress of this object alone
  CopyJob job_;
  std::unique_ptr<CopyAttempt> attempt_;
  std::optional<Result<TransferReport>> report_;
  int64_t moved_bytes_ = 0, resumed_bytes_ = 0;  // sums over all attempts
  std::unique_ptr<ObjectCopy> self_;

  Mutex mutex_;
  std::vector<Completion> completions_ GUARDED_BY(mutex_);
  bool is_resting_ GUARDED_BY(mutex_) = false;  // no step runs or is queued until a completion comes
};

}  // namespace millrace::sync
