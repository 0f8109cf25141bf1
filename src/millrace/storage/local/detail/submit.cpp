// SPDX-License-Identifier: Apache-2.0
#include "millrace/storage/local/detail/submit.h"

#include <utility>
#include <vector>

#include "millrace/storage/local/detail/objects.h"
#include "millrace/storage/submit.h"

namespace millrace::local {
namespace {

// The transfer of an operation that is one.
std::optional<Transfer> transfer_of(const Operation& operation) {
  if (const auto* read = std::get_if<Operation::Read>(&operation.what)) {
    const auto* reader = dynamic_cast<const LocalReader*>(read->reader);
    return reader != nullptr ? reader->transfer(read->offset, read->out) : std::nullopt;
  }
  const auto* write = std::get_if<Operation::Write>(&operation.what);
  const auto* writer = write != nullptr ? dynamic_cast<const RingWriter*>(write->writer) : nullptr;
  return writer != nullptr ? writer->transfer(write->offset, write->data) : std::nullopt;
}

class RingOperation final : public RingTask {
 public:
  RingOperation(std::unique_ptr<PendingOperation> pending, const Transfer& transfer, Executor& executor)
      : pending_(std::move(pending)), transfer_(transfer), executor_(executor) {}

  int priority() const override { return pending_->operation().priority; }

  std::optional<Transfer> begin() override {
    Status may_begin = pending_->check_may_begin();
    if (may_begin) return transfer_;
    pending_->end(std::move(may_begin));
    return {};
  }

  void end(int64_t result) override {
    if (result != std::ssize(transfer_.memory)) return run_on(executor_, std::move(pending_));
    const Operation& operation = pending_->operation();
    if (const auto* read = std::get_if<Operation::Read>(&operation.what)) {
      pending_->end(static_cast<const LocalReader*>(read->reader)->check_unchanged());
    } else {
      static_cast<RingWriter*>(std::get<Operation::Write>(operation.what).writer)->transferred(transfer_);
      pending_->end({});
    }
  }

 private:
  std::unique_ptr<PendingOperation> pending_;
  const Transfer transfer_;
  Executor& executor_;
};

}  // namespace

void submit_local(const Context& context, std::span<const Operation> operations, CompletionQueue& queue) {
  ProcessState& state = context.state->get();
  std::vector<std::unique_ptr<RingTask>> tasks;
  bool may_serve = context.rings;
  for (const Operation& operation : operations) {
    auto pending = std::make_unique<PendingOperation>(operation, queue);
    const auto transfer = may_serve ? transfer_of(operation) : std::nullopt;
    if (transfer && tasks.empty()) may_serve = state.rings.can_serve();
    if (transfer && may_serve) {
      tasks.push_back(std::make_unique<RingOperation>(std::move(pending), *transfer, state.executor));
    } else {
      run_on(state.executor, std::move(pending));
    }
  }
  if (!tasks.empty()) state.rings.submit(std::move(tasks));
}

}  // namespace millrace::local
