// SPDX-License-Identifier: Apache-2.0
#include "millrace/sync/transfer.h"

#include <atomic>

#include "millrace/base/memory/buffer_pool.h"
#include "millrace/base/text/units.h"
#include "millrace/base/thread/answer.h"
#include "millrace/base/thread/sync.h"
#include "millrace/sync/detail/copy_scheduler.h"
#include "millrace/sync/detail/object_copy.h"

namespace millrace::sync {
namespace {

std::string url_of(const Location& location) {
  if (!location.url.empty()) return location.url;
  return fmt::format("{}/{}", location.storage->name(), location.key);
}

}  // namespace

std::string describe(const CopyRequest& request) {
  return fmt::format("copy {} to {}", url_of(request.from), url_of(request.to));
}

struct TransferEngine::Impl {
  explicit Impl(int objects_at_once) : scheduler(objects_at_once) {}

  std::unique_ptr<BufferPool> buffers;
  std::atomic<int> sending{0};
  CopyScheduler scheduler;  // the last member: its threads end before what they use
};

TransferEngine::TransferEngine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TransferEngine::~TransferEngine() = default;

Result<std::unique_ptr<TransferEngine>> TransferEngine::create(const EngineOptions& options) {
  if (options.memory_bytes < kLeastTransferMemoryBytes) {
    return fail(ErrorCode::kInvalidArgument, "transfers need at least {} of memory, not {}",
                format_bytes(kLeastTransferMemoryBytes), format_bytes(options.memory_bytes));
  }
  if (options.objects_at_once < 1) {
    return fail(ErrorCode::kInvalidArgument, "transfers of {} objects at once", options.objects_at_once);
  }
  auto impl = std::make_unique<Impl>(options.objects_at_once);
  ASSIGN_OR_RETURN(impl->buffers, BufferPool::reserve(*MemoryBudget::process(), "transfers", options.memory_bytes));
  return std::unique_ptr<TransferEngine>(new TransferEngine(std::move(impl)));
}

int64_t TransferEngine::memory_in_use_bytes() const {
  return impl_->buffers->in_use_bytes();
}

Result<TransferReport> TransferEngine::copy(const Location& from, const ObjectInfo& source, const Location& to,
                                            const TransferOptions& options, std::stop_token stop, Progress* progress) {
  return wait_for_answer<Result<TransferReport>>([&](auto done) {
    start({.from = from,
           .source = source,
           .to = to,
           .options = options,
           .stop = std::move(stop),
           .progress = progress,
           .done = done});
  });
}

void TransferEngine::start(CopyRequest request) {
  ObjectCopy::start({.buffers = *impl_->buffers, .scheduler = impl_->scheduler, .sending = impl_->sending},
                    std::move(request));
}

}  // namespace millrace::sync
