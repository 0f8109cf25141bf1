// SPDX-License-Identifier: Apache-2.0
#include "millrace/storage/local/detail/submit.h"

#include <utility>

#include "millrace/storage/local/detail/objects.h"

namespace millrace::local {
namespace {

class RingOperation final : public RingTask {
 public:
  RingOperation(std::unique_ptr<PendingOperation> pending, const Transfer& transfer, std::function<Status()> ended,
                Executor& executor)
      : pending_(std::move(pending)), transfer_(transfer), ended_(std::move(ended)), executor_(executor) {}

  int priority() const override { return pending_->operation().priority; }

  std::optional<Transfer> begin() override {
    Status may_begin = pending_->check_may_begin();
    if (may_begin) return transfer_;
    pending_->end(std::move(may_begin));
    return {};
  }

  void end(int64_t result) override {
    if (result != std::ssize(transfer_.memory)) return run_on(executor_, std::move(pending_));
    pending_->end(ended_());
  }

 private:
  std::unique_ptr<PendingOperation> pending_;
  const Transfer transfer_;
  const std::function<Status()> ended_;
  Executor& executor_;
};

}  // namespace

void RingBatch::add(std::unique_ptr<PendingOperation>& operation, const std::optional<Transfer>& transfer,
                    std::function<Status()> ended) {
  if (!transfer || !may_serve_) return;
  if (tasks_.empty()) may_serve_ = state_.rings.can_serve();
  if (!may_serve_) return;
  tasks_.push_back(std::make_unique<RingOperation>(std::move(operation), *transfer, std::move(ended), state_.executor));
}

void RingBatch::submit() {
  if (!tasks_.empty()) state_.rings.submit(std::move(tasks_));
}

void submit_local(const Context& context, std::span<const Operation> operations, CompletionQueue& queue) {
  PendingOperations pending = pending_operations(operations, queue);
  RingBatch reads(context);
  for (auto& one : pending) {
    const auto* read = std::get_if<Operation::Read>(&one->operation().what);
    // A cast, since the reads of many readers go to the rings at once, and those of a wrapper must not pass it by.
    const auto* reader = read != nullptr ? dynamic_cast<const LocalReader*>(read->reader) : nullptr;
    if (reader == nullptr) continue;
    reads.add(one, reader->transfer(read->offset, read->out), [reader] { return reader->check_unchanged(); });
  }
  std::erase(pending, nullptr);
  reads.submit();
  start_operations(context.state->get().executor, std::move(pending));
}

}  // namespace millrace::local
