// SPDX-License-Identifier: Apache-2.0
#pragma once

// One requested copy as a job of the scheduler: it plans, makes one attempt or several, and answers the request. It is
// the queue in which the operations of its attempts end, and takes its next step when one has. Owns itself until then.

#include <memory>
#include <optional>
#include <vector>

#include "millrace/sync/detail/copy_attempt.h"

namespace millrace::sync {

class ObjectCopy final : public CompletionQueue {
 public:
  // Returns at once. REQUIRES: what `tools` refers to lives until the request is answered and the scheduler is gone.
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
  int64_t moved_bytes_ = 0, resumed_bytes_ = 0;  // by all attempts
  std::unique_ptr<ObjectCopy> self_;

  Mutex mutex_;
  std::vector<Completion> completions_ GUARDED_BY(mutex_);
  bool is_resting_ GUARDED_BY(mutex_) = false;  // no step is running, nor to be run, until a completion comes
};

}  // namespace millrace::sync
