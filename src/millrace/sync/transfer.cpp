// SPDX-License-Identifier: Apache-2.0
#include "millrace/sync/transfer.h"

#include "millrace/base/buffer_pool.h"
#include "millrace/base/executor.h"
#include "millrace/base/sync.h"
#include "millrace/base/units.h"
#include "millrace/sync/detail/object_copy.h"
#include "millrace/sync/detail/small_copies.h"
#include "millrace/sync/entries.h"

namespace millrace::sync {
namespace {

constexpr int kCopyThreads = 8;  // that wait for copies inside a storage
constexpr std::chrono::milliseconds kStopWait{50};

std::string url_of(const Location& location) {
  if (!location.url.empty()) return location.url;
  return fmt::format("{}/{}", location.storage->name(), location.key);
}

std::string describe(const Location& from, const Location& to) {
  return fmt::format("copy {} to {}", url_of(from), url_of(to));
}

}  // namespace

std::string describe(const CopyRequest& request) {
  return describe(request.from, request.to);
}

struct TransferEngine::Impl {
  explicit Impl(const EngineOptions& engine_options) : options(engine_options) {}

  // Waits for a place among the copies that run at once.
  Status enter(const std::stop_token& stop) {
    MutexLock lock(mutex);
    while (running >= options.objects_at_once) {
      if (stop.stop_requested()) return fail(ErrorCode::kCancelled, "stopped before it began");
      ended.wait_until(mutex, Clock::now() + kStopWait);
    }
    ++running;
    return {};
  }
  void leave() {
    MutexLock lock(mutex);
    --running;
    ended.notify_one();
  }

  const EngineOptions options;
  std::unique_ptr<BufferPool> buffers;
  Executor blocking{kCopyThreads, "mr-copy"};
  std::atomic<int> sending{0};
  Mutex mutex;
  CondVar ended;
  int running GUARDED_BY(mutex) = 0;
  std::unique_ptr<SmallCopies> small;
  Executor others{options.objects_at_once, "mr-sync"};
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
  auto impl = std::make_unique<Impl>(options);
  ASSIGN_OR_RETURN(impl->buffers, BufferPool::reserve(*MemoryBudget::process(), "transfers", options.memory_bytes));
  impl->small = std::make_unique<SmallCopies>(*impl->buffers, options.objects_at_once);
  return std::unique_ptr<TransferEngine>(new TransferEngine(std::move(impl)));
}

int64_t TransferEngine::memory_in_use_bytes() const {
  return impl_->buffers->in_use_bytes();
}

Result<TransferReport> TransferEngine::copy(const Location& from, const ObjectInfo& source, const Location& to,
                                            const TransferOptions& options, std::stop_token stop, Progress* progress) {
  Progress file(progress, std::string(name_of(source.key)), source.size);
  const CopyJob job{
      .from = from, .source = source, .to = to, .options = options, .stop = std::move(stop), .progress = &file};
  auto report = [&]() -> Result<TransferReport> {
    RETURN_IF_ERROR(impl_->enter(job.stop));
    auto copied =
        copy_object({.buffers = *impl_->buffers, .blocking = impl_->blocking, .sending = impl_->sending}, job);
    impl_->leave();
    return copied;
  }();
  if (!report) report.error().add_context(describe(from, to));
  return report;
}

void TransferEngine::start(CopyRequest request) {
  if (impl_->small->takes(request)) return impl_->small->start(std::move(request));
  impl_->others.submit([this, asked = std::move(request)] {
    asked.done(copy(asked.from, asked.source, asked.to, asked.options, asked.stop, asked.progress));
  });
}

}  // namespace millrace::sync
