// SPDX-License-Identifier: Apache-2.0
#include "millrace/sync/detail/small_copies.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <deque>
#include <utility>
#include <vector>

#include "millrace/base/open_files.h"
#include "millrace/sync/detail/copy_plan.h"

namespace millrace::sync {
namespace {

constexpr int64_t kSmallBytes = 256 << 10;
// Another thread is woken or started once each that is at work has more than this to do: to wake one for each thing
// that happens costs more than most of them take. Where threads wait for a slow file system, all come to be used.
constexpr int64_t kBacklog = 4;
// Where all sleep and this part of what has begun can be gone on with, one is called; for less, which keeps no server
// waiting, one looks now and then.
constexpr int64_t kIdleShare = 16;
constexpr std::chrono::milliseconds kLookEvery{2};

}  // namespace

// One copy under way. It belongs to the thread that works on it, or to what it waits for.
struct SmallCopies::Work {
  explicit Work(CopyRequest copy_request) : request(std::move(copy_request)) {}

  enum class Next { kBegin, kWrite, kEnd };
  Next next = Next::kBegin;
  CopyRequest request;
  CopyPlan plan;
  Buffer content;
  Hash128 hash;
  std::unique_ptr<Writer> writer;
};

// A queue of what can be gone on with, and the threads that do so.
struct SmallCopies::Impl final : CompletionQueue {
  Impl(BufferPool& pool, int most) : buffers(pool), most_threads(static_cast<size_t>(std::max(most, 1))) {}
  ~Impl() override {
    {
      MutexLock lock(mutex);
      while (begun > 0 || !waiting.empty()) ended.wait(mutex);
      stopping = true;
      wanted.notify_all();
    }
    threads.clear();
  }

  void add(std::unique_ptr<Work> work) {
    MutexLock lock(mutex);
    waiting.push_back(std::move(work));
    call_another();
  }

  void push(Completion completion) override {
    MutexLock lock(mutex);
    ready.push_back(std::move(completion));
    call_another();
  }

  static uint64_t tag_of(std::unique_ptr<Work> work) { return std::bit_cast<uint64_t>(work.release()); }

  int64_t to_do() const REQUIRES_LOCK(mutex) {
    return std::ssize(ready) + (may_begin() ? std::min(std::ssize(waiting), most_begun - begun) : 0);
  }

  // All that have begun fit into the pool, which may give each a block of twice its size: so none waits for memory that
  // another holds while nobody is left to go on with that one.
  bool may_begin() const REQUIRES_LOCK(mutex) {
    if (waiting.empty() || begun >= most_begun) return false;
    return begun == 0 || held_bytes + 2 * waiting.front()->request.source.size <= buffers.limit_bytes();
  }

  int64_t awake() const REQUIRES_LOCK(mutex) { return std::ssize(threads) - asleep; }

  void call_another() REQUIRES_LOCK(mutex) {
    if (to_do() <= (awake() > 0 ? kBacklog * awake() : std::min(kBacklog, begun / kIdleShare))) return;
    if (asleep > 0) {
      --asleep;
      ++called;
      wanted.notify_one();
    } else if (threads.size() < most_threads) {
      threads.emplace_back("mr-small", [this] { run(); });
    }
  }

  void run() {
    for (;;) {
      Completion next;
      {
        MutexLock lock(mutex);
        while (to_do() == 0 && !stopping) sleep();
        if (stopping) return;
        next = take();
      }
      // SAFETY: tags are made by tag_of() only, and each comes back once.
      go_on(std::unique_ptr<Work>(std::bit_cast<Work*>(next.tag)), std::move(next.status));
    }
  }

  // Until called. While something is under way one of those that sleep watches, and ends when it finds enough to do.
  void sleep() REQUIRES_LOCK(mutex) {
    ++asleep;
    while (called == 0 && !stopping) {
      if (begun == 0 || watched) {
        wanted.wait(mutex);
        continue;
      }
      watched = true;
      wanted.wait_until(mutex, Clock::now() + kLookEvery);
      watched = false;
      if (called == 0 && to_do() > kBacklog * awake()) {
        --asleep;
        return;
      }
    }
    if (!stopping) --called;
  }

  // First what is to begin, so that servers have something to do. REQUIRES: to_do() > 0.
  Completion take() REQUIRES_LOCK(mutex) {
    Completion next;
    if (may_begin()) {
      ++begun;
      held_bytes += 2 * waiting.front()->request.source.size;
      next.tag = tag_of(std::move(waiting.front()));
      waiting.pop_front();
    } else {
      next = std::move(ready.front());
      ready.pop_front();
    }
    return next;
  }

  void go_on(std::unique_ptr<Work> work, Status status) {
    if (status && work->request.stop.stop_requested() && work->next != Work::Next::kEnd) {
      status = fail(ErrorCode::kCancelled, "stopped");
    }
    if (!status) return end(std::move(work), tl::unexpected<Error>(std::move(status).error()));
    switch (work->next) {
      case Work::Next::kBegin:
        return begin(std::move(work));
      case Work::Next::kWrite:
        return write(std::move(work));
      case Work::Next::kEnd:
        return commit(std::move(work));
    }
  }

  void begin(std::unique_ptr<Work> work) {
    const CopyRequest& asked = work->request;
    if (Status ready_to_read = prepare(*work); !ready_to_read) return go_on(std::move(work), std::move(ready_to_read));
    work->next = Work::Next::kWrite;
    const RandomReader& source = *work->plan.source;
    if (!work->content) return write(std::move(work));
    if (asked.from.storage->capabilities().is_local()) {  // to hand it over would cost more than to read it
      Status read = source.read_at(0, work->content.span());
      return go_on(std::move(work), std::move(read));
    }
    const std::shared_ptr<Storage> storage = asked.from.storage;
    Operation read{.what = Operation::Read{&source, 0, work->content.span()}, .stop = asked.stop};
    read.tag = tag_of(std::move(work));
    storage->submit(std::span(&read, 1), *this);
  }

  Status prepare(Work& work) {
    const CopyRequest& asked = work.request;
    const CopyJob job{
        .from = asked.from, .source = asked.source, .to = asked.to, .options = asked.options, .stop = asked.stop};
    ASSIGN_OR_RETURN(work.plan, plan_copy(job, asked.options.delta));
    if (asked.source.size == 0) return {};
    ASSIGN_OR_RETURN(work.content, buffers.acquire(static_cast<size_t>(asked.source.size), asked.stop));
    return {};
  }

  void write(std::unique_ptr<Work> work) {
    if (Status written = write_content(*work); !written) return go_on(std::move(work), std::move(written));
    work->next = Work::Next::kEnd;
    Writer& writer = *work->writer;
    const Durability durability = work->request.options.durability;
    Work* const left = work.release();  // another thread may be at it before start_commit() returns
    if (!writer.start_commit(durability, std::bit_cast<uint64_t>(left), *this)) commit(std::unique_ptr<Work>(left));
  }

  Status write_content(Work& work) {
    const CopyRequest& asked = work.request;
    work.hash = xxh3_128(work.content.span());
    ASSIGN_OR_RETURN(work.writer, asked.to.storage->open_write(asked.to.key, work.plan.write));
    if (!work.content) return {};
    RETURN_IF_ERROR(work.writer->write_at(0, work.content.span()));
    work.content = {};
    return {};
  }

  void commit(std::unique_ptr<Work> work) {
    auto object = work->writer->commit(work->request.options.durability);
    if (!object) return end(std::move(work), tl::unexpected<Error>(std::move(object).error()));
    const int64_t size = work->request.source.size;
    if (work->request.progress != nullptr) work->request.progress->add(size, 0);
    end(std::move(work), TransferReport{.object = *std::move(object), .hash = work->hash, .moved_bytes = size});
  }

  void end(std::unique_ptr<Work> work, Result<TransferReport> report) {
    const auto done = std::move(work->request.done);
    const int64_t held = 2 * work->request.source.size;
    if (!report) report.error().add_context(describe(work->request));
    work.reset();
    done(std::move(report));
    MutexLock lock(mutex);
    held_bytes -= held;
    if (--begun == 0) ended.notify_all();
  }

  BufferPool& buffers;
  const size_t most_threads;
  Mutex mutex;
  CondVar wanted, ended;
  std::deque<std::unique_ptr<Work>> waiting GUARDED_BY(mutex);  // to begin
  std::deque<Completion> ready GUARDED_BY(mutex);               // to be gone on with
  int64_t begun GUARDED_BY(mutex) = 0;                          // and not ended
  int64_t held_bytes GUARDED_BY(mutex) = 0;                     // by those, at most
  int64_t asleep GUARDED_BY(mutex) = 0;                         // threads that were not called yet
  int64_t called GUARDED_BY(mutex) = 0;                         // threads that are to wake up
  bool watched GUARDED_BY(mutex) = false;                       // one that sleeps looks by itself what there is to do
  bool stopping GUARDED_BY(mutex) = false;
  // Each may have a file open, beside the connections that they go over.
  const int64_t most_begun = std::clamp<int64_t>(open_file_limit() / 4, 1, kMostBegun);
  std::vector<Thread> threads;  // changed under the mutex, by those who push
};

SmallCopies::SmallCopies(BufferPool& buffers, int most_threads)
    : impl_(std::make_unique<Impl>(buffers, most_threads)) {}
SmallCopies::~SmallCopies() = default;

bool SmallCopies::takes(const CopyRequest& request) const {
  Storage& to = *request.to.storage;
  const bool cheap_source = request.from.storage->capabilities().is_local();
  const bool cheap_target = to.capabilities().is_local();
  // Of an object and a file of one size, the file may prove to be the object.
  const bool may_be_it = !cheap_source && request.options.target && request.options.target->size == request.source.size;
  const bool asks_target =
      may_be_it || (!cheap_target && (request.options.target || to.copies_from(*request.from.storage)));
  // Of an empty object, whether it has always been that.
  const bool asks_source =
      !cheap_source && (request.source.size == 0 || (request.options.posix && !request.source.posix));
  return request.source.size <= std::min(kSmallBytes, impl_->buffers.limit_bytes() / 2) && !asks_target &&
         !asks_source && !request.options.dry_run;
}

void SmallCopies::start(CopyRequest request) {
  impl_->add(std::make_unique<Work>(std::move(request)));
}

}  // namespace millrace::sync
