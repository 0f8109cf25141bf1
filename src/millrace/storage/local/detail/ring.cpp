// SPDX-License-Identifier: Apache-2.0
#include "millrace/storage/local/detail/ring.h"

#include <liburing.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <map>
#include <thread>
#include <utility>

namespace millrace::local {
namespace {

constexpr int kDepth = 32;  // transfers under way on one ring; docs/benchmarks.md was measured with it
// transfers that a thread takes at once; a quarter of a ring, so that the other threads get some
constexpr int kBatch = 8;
constexpr std::chrono::milliseconds kPause{1};  // before a retry when the kernel lacks memory for a transfer

}  // namespace

struct Rings::Shared {
  Shared(Syscalls& calls, int count) : sys(calls), threads(count) {}
  // Wakes the thread that has slept longest: one that just fell asleep may still be copying.
  void wake_one() REQUIRES_LOCK(mutex);  // under the lock, or the thread could end before it is woken

  Syscalls& sys;
  const int threads;
  Mutex mutex;
  bool started GUARDED_BY(mutex) = false;
  bool stopping GUARDED_BY(mutex) = false;
  // The highest priority first, then the order of submission.
  std::map<std::pair<int, uint64_t>, std::unique_ptr<RingTask>> queue GUARDED_BY(mutex);
  uint64_t sequence GUARDED_BY(mutex) = 0;
  std::vector<Worker*> asleep GUARDED_BY(mutex);  // workers with room and an empty queue; the first slept longest
  std::vector<std::unique_ptr<Worker>> workers GUARDED_BY(mutex);
};

class Rings::Worker {
 public:
  // nullptr where io_uring is not available.
  static std::unique_ptr<Worker> start(Shared& shared) {
    std::unique_ptr<Worker> worker(new Worker(shared));
    return worker->open() ? std::move(worker) : nullptr;
  }
  ~Worker() {
    if (thread_.joinable()) thread_.join();
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

  // Takes the next transfers; false at the end. Sleeps when it has room and the queue is empty; wakes another worker
  // when it has no room.
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
    const auto [fd, is_write, offset, memory] = *transfer;
    const int64_t asked = shared_.sys.ring_transfer(memory.size());
    if (asked < 0) return task->end(asked);
    io_uring_sqe* const sqe = io_uring_get_sqe(&ring_);  // never null: there are twice as many entries as are used
    const auto size = static_cast<unsigned>(asked);
    const auto at = static_cast<__u64>(offset);
    if (is_write) {
      io_uring_prep_write(sqe, fd, memory.data(), size, at);
    } else {
      io_uring_prep_read(sqe, fd, memory.data(), size, at);
    }
    io_uring_sqe_set_data(sqe, task.release());
    ++under_way_;
  }

  void expect_wake() {
    io_uring_sqe* const sqe = io_uring_get_sqe(&ring_);
    io_uring_prep_read(sqe, wake_fd_, &wakes_, sizeof wakes_, 0);
    io_uring_sqe_set_data(sqe, nullptr);
  }

  // Entries that the kernel does not take now stay in the ring for the next call.
  void enter(bool wait) {
    const int entered = io_uring_submit_and_wait(&ring_, wait ? 1 : 0);
    if (entered < 0 && entered != -EINTR && io_uring_cq_ready(&ring_) == 0) pause();
  }

  // Until a transfer ends, which frees memory of the kernel, but at most kPause, since nothing tells of other memory.
  void pause() {
    io_uring_cqe* ended = nullptr;
    __kernel_timespec most{.tv_sec = 0, .tv_nsec = std::chrono::nanoseconds(kPause).count()};
    // Before Linux 5.11 the wait itself would take a place in the ring.
    const bool can_wait = (ring_.features & IORING_FEAT_EXT_ARG) != 0;
    const int waited = can_wait ? io_uring_wait_cqe_timeout(&ring_, &ended, &most) : -ENOSYS;
    if (waited < 0 && waited != -ETIME) std::this_thread::sleep_for(kPause);
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
        if (result < 0) pause();  // and the transfer is submitted again
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
  uint64_t wakes_ = 0;  // the kernel reads into it
  int under_way_ = 0;
  bool is_asleep_ = false;  // is in Shared::asleep, or a waking thread took it out
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
