// SPDX-License-Identifier: Apache-2.0
#include "millrace/storage/local/detail/ring.h"

#include <liburing.h>
#include <sys/eventfd.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <map>
#include <thread>
#include <utility>

#include "millrace/base/buffer_pool.h"
#include "millrace/base/log.h"
#include "millrace/base/units.h"

namespace millrace::local {
namespace {

constexpr int kDepth = 32;                              // transfers under way on one ring
constexpr int kBatch = 8;                               // that a thread takes at once, so that others get some
constexpr unsigned kSlots = 64;                         // registered buffers of a ring
constexpr size_t kLargestRegistered = size_t{1} << 30;  // the kernel's limit of one
constexpr std::chrono::milliseconds kPause{1};          // when the kernel lacks memory for what is to begin

}  // namespace

// Pins the memory of pools once for all transfers, instead of for each, and remembers what a ring has been told of.
class Rings::RegisteredBuffers {
 public:
  explicit RegisteredBuffers(io_uring& ring) : ring_(ring), watch_([this](auto block) { forget(block); }) {
    MutexLock lock(mutex_);
    has_slots_ = io_uring_register_buffers_sparse(&ring_, kSlots) == 0;  // not on Linux before 5.19
    for (unsigned slot = 0; has_slots_ && slot < kSlots; ++slot) free_.push_back(slot);
  }
  // A forked child that holds the ring too would keep the memory with it.
  ~RegisteredBuffers() {
    if (has_slots_) static_cast<void>(io_uring_unregister_buffers(&ring_));
  }
  RegisteredBuffers(const RegisteredBuffers&) = delete;
  RegisteredBuffers& operator=(const RegisteredBuffers&) = delete;

  // The slot of a registered buffer in which `memory` lies. For one thread.
  std::optional<unsigned> slot_of(std::span<const std::byte> memory) {
    {
      MutexLock lock(mutex_);
      auto known = slots_.upper_bound(memory.data());
      if (known != slots_.begin()) {
        const auto& [block, slot] = *--known;
        if (memory.data() + memory.size() <= block + slot.size) return slot.number;
      }
      if (free_.empty()) return {};
    }
    // Without the lock, since forget() is called under theirs.
    const auto block = PoolMemoryWatch::block_of(memory);
    if (block.empty() || block.size() > kLargestRegistered) return {};
    const int result = add(block);
    if (result >= 0) return static_cast<unsigned>(result);
    log(LogLevel::kDebug, "io_uring: {} of memory cannot be registered (errno {}); each transfer pins its own",
        format_bytes(std::ssize(block)), -result);
    return {};
  }

 private:
  struct Slot {
    unsigned number = 0;
    size_t size = 0;
  };

  // The slot, or -errno. REQUIRES: one is free, which only add() changes for the worse: it is for one thread.
  int add(std::span<std::byte> block) {
    MutexLock lock(mutex_);
    const unsigned slot = free_.back();
    if (const int error = update(slot, block); error < 0) {
      free_.clear();  // RLIMIT_MEMLOCK: 8 MiB for ordinary users. It will not get better
      return error;
    }
    free_.pop_back();
    slots_.emplace(block.data(), Slot{slot, block.size()});
    return static_cast<int>(slot);
  }
  // The kernel would go on with the old pages under an address that may be given out again.
  void forget(std::span<std::byte> block) {
    MutexLock lock(mutex_);
    const auto found = slots_.find(block.data());
    if (found == slots_.end()) return;
    static_cast<void>(update(found->second.number, {}));
    free_.push_back(found->second.number);
    slots_.erase(found);
  }
  int update(unsigned slot, std::span<std::byte> block) {
    const iovec range{.iov_base = block.data(), .iov_len = block.size()};
    const __u64 tag = 0;
    return io_uring_register_buffers_update_tag(&ring_, slot, &range, &tag, 1);
  }

  io_uring& ring_;
  bool has_slots_ = false;
  Mutex mutex_;
  std::map<const std::byte*, Slot> slots_ GUARDED_BY(mutex_);  // by where they begin
  std::vector<unsigned> free_ GUARDED_BY(mutex_);
  const PoolMemoryWatch watch_;  // the last: it calls while all others live
};

struct Rings::Shared {
  Shared(Syscalls& calls, int count) : sys(calls), threads(count) {}
  // The one that has slept longest: who fell asleep just now may still be copying what it began.
  void wake_one() REQUIRES_LOCK(mutex);  // under the lock, or it could end before it is woken

  Syscalls& sys;
  const int threads;
  Mutex mutex;
  bool started GUARDED_BY(mutex) = false;
  bool stopping GUARDED_BY(mutex) = false;
  // The highest priority first, then the order of submission.
  std::map<std::pair<int, uint64_t>, std::unique_ptr<RingTask>> queue GUARDED_BY(mutex);
  uint64_t sequence GUARDED_BY(mutex) = 0;
  std::vector<Worker*> asleep GUARDED_BY(mutex);  // may begin more, and found nothing; the first longest ago
  std::vector<std::unique_ptr<Worker>> workers GUARDED_BY(mutex);
};

class Rings::Worker {
 public:
  // Errors: nullptr, where there are no rings.
  static std::unique_ptr<Worker> start(Shared& shared) {
    std::unique_ptr<Worker> worker(new Worker(shared));
    return worker->open() ? std::move(worker) : nullptr;
  }
  ~Worker() {
    if (thread_.joinable()) thread_.join();
    buffers_.reset();
    if (is_open_) io_uring_queue_exit(&ring_);
    if (wake_fd_ >= 0) ::close(wake_fd_);
  }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  void wake() const { static_cast<void>(::eventfd_write(wake_fd_, 1)); }

 private:
  explicit Worker(Shared& shared) : shared_(shared) {}

  bool open() {
    wake_fd_ = ::eventfd(0, EFD_CLOEXEC);
    is_open_ = wake_fd_ >= 0 && shared_.sys.setup_ring(2 * kDepth, &ring_) == 0;
    if (!is_open_) return false;
    buffers_.emplace(ring_);
    thread_ = Thread("mr-local-ring", [this] { run(); });
    return true;
  }

  void run() {
    std::vector<std::unique_ptr<RingTask>> batch;
    expect_wake();
    while (take(batch)) {
      for (auto& task : batch) begin(std::move(task));
      const bool wait = is_asleep_ || batch.empty() || under_way_ == kDepth;
      batch.clear();
      enter(wait);
      end_what_ended();
    }
  }

  // What is to begin next; false when all is done. Falls asleep where it could begin more than is left in the queue,
  // and wakes another where it could not.
  bool take(std::vector<std::unique_ptr<RingTask>>& batch) {
    MutexLock lock(shared_.mutex);
    if (std::exchange(is_asleep_, false)) std::erase(shared_.asleep, this);
    auto& queue = shared_.queue;
    const int most = std::min(kBatch, kDepth - under_way_);
    while (std::ssize(batch) < most && !queue.empty()) {
      batch.push_back(std::move(queue.begin()->second));
      queue.erase(queue.begin());
    }
    if (shared_.stopping) return under_way_ > 0 || !batch.empty();
    is_asleep_ = queue.empty() && under_way_ + std::ssize(batch) < kDepth;
    if (is_asleep_) shared_.asleep.push_back(this);
    if (!queue.empty()) shared_.wake_one();
    return true;
  }

  void begin(std::unique_ptr<RingTask> task) {
    const auto transfer = task->begin();
    if (!transfer) return;
    const auto [fd, is_write, is_direct, offset, memory] = *transfer;
    const int64_t asked = shared_.sys.ring_transfer(memory.size());
    if (asked < 0) return task->end(asked);
    io_uring_sqe* const sqe = io_uring_get_sqe(&ring_);  // there are twice as many as are ever used
    const auto size = static_cast<unsigned>(asked);
    const auto slot = is_direct ? buffers_->slot_of(memory) : std::nullopt;
    const auto at = static_cast<__u64>(offset);
    if (slot && is_write) io_uring_prep_write_fixed(sqe, fd, memory.data(), size, at, static_cast<int>(*slot));
    if (slot && !is_write) io_uring_prep_read_fixed(sqe, fd, memory.data(), size, at, static_cast<int>(*slot));
    if (!slot && is_write) io_uring_prep_write(sqe, fd, memory.data(), size, at);
    if (!slot && !is_write) io_uring_prep_read(sqe, fd, memory.data(), size, at);
    io_uring_sqe_set_data(sqe, task.release());
    ++under_way_;
  }

  void expect_wake() {
    io_uring_sqe* const sqe = io_uring_get_sqe(&ring_);
    io_uring_prep_read(sqe, wake_fd_, &wakes_, sizeof wakes_, 0);
    io_uring_sqe_set_data(sqe, nullptr);
  }

  // What the kernel does not take now stays in the ring's memory and is taken by the next call.
  void enter(bool wait) {
    const int entered = io_uring_submit_and_wait(&ring_, wait ? 1 : 0);
    if (entered < 0 && entered != -EINTR && io_uring_cq_ready(&ring_) == 0) std::this_thread::sleep_for(kPause);
  }

  void end_what_ended() {
    struct Ended {
      RingTask* task = nullptr;
      int32_t result = 0;
    };
    std::array<Ended, kDepth + 1> all;  // and the wake-up
    unsigned head = 0, count = 0;
    io_uring_cqe* cqe = nullptr;
    io_uring_for_each_cqe(&ring_, head, cqe) {
      if (count == all.size()) break;
      all[count++] = {static_cast<RingTask*>(io_uring_cqe_get_data(cqe)), cqe->res};
    }
    io_uring_cq_advance(&ring_, count);
    for (const auto& [ended, result] : std::span(all).first(count)) {
      if (ended == nullptr) {
        if (result < 0) std::this_thread::sleep_for(kPause);  // then it is asked for again and again
        expect_wake();
        continue;
      }
      --under_way_;
      const std::unique_ptr<RingTask> task(ended);
      task->end(result);
    }
  }

  Shared& shared_;
  io_uring ring_{};
  bool is_open_ = false;
  int wake_fd_ = -1;
  uint64_t wakes_ = 0;  // read from there by the kernel
  int under_way_ = 0;
  bool is_asleep_ = false;  // is in Shared::asleep, or was taken out by who woke it
  std::optional<RegisteredBuffers> buffers_;
  Thread thread_;
};

void Rings::Shared::wake_one() {
  if (asleep.empty()) return;
  asleep.front()->wake();
  asleep.erase(asleep.begin());
}

Rings::Rings(Syscalls& sys, int threads) : shared_(std::make_unique<Shared>(sys, threads)) {}

Rings::~Rings() {
  decltype(Shared::queue) dropped;
  std::vector<std::unique_ptr<Worker>> workers;
  {
    MutexLock lock(shared_->mutex);
    shared_->stopping = true;
    dropped.swap(shared_->queue);
    workers.swap(shared_->workers);
  }
  dropped.clear();
  for (const auto& worker : workers) worker->wake();
}

bool Rings::can_serve() {
  MutexLock lock(shared_->mutex);
  if (!std::exchange(shared_->started, true)) {
    for (int i = 0; i < shared_->threads; ++i) {
      auto worker = Worker::start(*shared_);
      if (!worker) break;
      shared_->workers.push_back(std::move(worker));
    }
  }
  return !shared_->workers.empty();
}

void Rings::submit(std::vector<std::unique_ptr<RingTask>> tasks) {
  MutexLock lock(shared_->mutex);
  for (auto& task : tasks) shared_->queue.emplace(std::pair{-task->priority(), shared_->sequence++}, std::move(task));
  for (ptrdiff_t taken = 0; taken < std::ssize(tasks); taken += kBatch) shared_->wake_one();
}

}  // namespace millrace::local
