// SPDX-License-Identifier: Apache-2.0
#include "millrace/checkpoint/io/chunk_reader.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <stop_token>
#include <tuple>
#include <utility>

#include "millrace/base/io/stream_copy.h"
#include "millrace/base/memory/buffer_pool.h"
#include "millrace/checkpoint/io/first_error.h"
#include "millrace/storage/submit.h"

// Chunks that are neighbours in their file form groups. A group is read into one buffer, a slot, by one or more
// operations; when the last of them has ended, the slot is ready. Each thread, in a loop, starts reads while there are
// idle slots, and else verifies and copies out a slot that is ready, after which the slot is idle. Reads that hang are
// left with all that they use: the last of them to end, if ever, frees it.

namespace millrace::checkpoint {

namespace {

constexpr int64_t kPage = 4096;  // what direct reads align to
// A group, and one operation. A local disk was fastest with 8 to 32 reads of 1 to 2 MiB under way; a service splits
// long ranges itself.
constexpr int64_t kLocalGroup = 4 << 20, kLocalRead = 2 << 20, kRemoteGroup = 8 << 20;
constexpr int64_t kGapBytes = 64 << 10;      // read along: less than the time of another read
constexpr int kSlotsAhead = 8;               // read while the threads work
constexpr int64_t kBufferBytes = 128 << 20;  // of all slots, unless two need more
constexpr size_t kStreamCopy = 256 << 10;    // from here on the copy goes past the cache
// After a stop, reads under way hang when none has ended for so long. A choice: far above the time of one read.
constexpr std::chrono::milliseconds kLeaveGrace{1'000};

int64_t page_floor(int64_t value) {
  return value / kPage * kPage;
}
int64_t page_ceil(int64_t value) {
  return page_floor(value + kPage - 1);
}

// Chunks [first, end), read as the file's bytes [begin, begin + bytes).
struct ReadGroup {
  size_t first = 0, end = 0;
  int64_t begin = 0, bytes = 0;
};

class ChunkReading final : public CompletionQueue, public std::enable_shared_from_this<ChunkReading> {
 public:
  ChunkReading(Storage& storage, std::vector<ChunkRead> chunks, const ChunkReadOptions& options)
      : storage_(storage), is_local_(storage.capabilities().is_local()), chunks_(std::move(chunks)), options_(options) {
    std::sort(chunks_.begin(), chunks_.end(), [](const ChunkRead& a, const ChunkRead& b) {
      return std::tie(a.file, a.offset) < std::tie(b.file, b.offset);
    });
    for (size_t i = 0; i < chunks_.size(); ++i) {
      if (i == 0 || !joins(groups_.back(), chunks_[i])) add_group(i);
      extend(groups_.back(), i);
    }
  }

  Status run(Executor& executor) {
    if (groups_.empty()) return {};
    const int workers = executor.threads() + 1;  // with the caller
    RETURN_IF_ERROR(make_slots(workers + kSlotsAhead));
    const std::stop_callback wake(options_.stop, [this] {  // a stop shortens the wait
      MutexLock lock(mutex_);
      changed_.notify_all();
    });
    parallel_for(executor, workers, [&](int64_t) { work(); });
    return error_.status();
  }

  // An operation of the slot `tag` has ended.
  void push(Completion completion) override {
    std::shared_ptr<ChunkReading> left;
    {
      MutexLock lock(mutex_);
      Slot& slot = slots_[completion.tag];
      if (!completion.status && slot.status) slot.status = std::move(completion.status);
      --under_way_;
      answered_ = Clock::now();
      if (--slot.operations == 0 && !is_left_) {
        ready_.push_back(&slot);
        changed_.notify_all();  // under the lock: when the last slot is done, this is destroyed
      }
      if (under_way_ == 0) left = std::move(left_);
    }
    // Not on this thread, which may belong to what is freed.
    if (left) Thread("mr-ckpt-left", [left = std::move(left)] {}).detach();
  }

 private:
  struct Slot {
    Buffer buffer;
    const ReadGroup* group = nullptr;
    size_t operations = 0;  // under way
    Status status;
  };

  void add_group(size_t chunk) {
    const int64_t begin = page_floor(chunks_[chunk].offset);
    groups_.push_back({.first = chunk, .end = chunk, .begin = begin});
  }
  bool joins(const ReadGroup& group, const ChunkRead& next) const {
    const int64_t end = group.begin + group.bytes, limit = is_local_ ? kLocalGroup : kRemoteGroup;
    return next.file == chunks_[group.first].file && next.offset <= end + kGapBytes &&
           next.offset + next.bytes - group.begin <= limit;
  }
  void extend(ReadGroup& group, size_t chunk) {
    const ChunkRead& added = chunks_[chunk];
    group.end = chunk + 1;
    const int64_t end = std::min(page_ceil(added.offset + added.bytes), added.file->size());
    group.bytes = std::max(group.bytes, end - group.begin);
  }

  // As many slots as the memory allows, at least one.
  Status make_slots(int wanted) {
    int64_t size = kPage;
    for (const ReadGroup& group : groups_) size = std::max(size, page_ceil(group.bytes));
    const auto limit = std::max<int64_t>(kBufferBytes / size, 2);
    int64_t count = std::min({static_cast<int64_t>(wanted), static_cast<int64_t>(groups_.size()), limit});
    auto pool = BufferPool::reserve(*MemoryBudget::process(), "checkpoint load", count * size);
    if (!pool && count > 1) pool = BufferPool::reserve(*MemoryBudget::process(), "checkpoint load", size * (count = 1));
    if (!pool) return tl::unexpected<Error>(std::move(pool).error());
    pool_ = std::move(*pool);
    slots_.reserve(static_cast<size_t>(count));  // idle_ and ready_ point into it
    MutexLock lock(mutex_);
    for (int64_t i = 0; i < count; ++i) {
      Slot& slot = slots_.emplace_back();
      ASSIGN_OR_RETURN(slot.buffer, pool_->acquire(static_cast<size_t>(size)));
      idle_.push_back(&slot);
    }
    return {};
  }

  void work() {
    for (;;) {
      Slot* to_start = nullptr;
      Slot* const slot = next(to_start);
      if (to_start != nullptr) {
        start(*to_start);
      } else if (slot != nullptr) {
        finish(*slot);
        MutexLock lock(mutex_);
        idle_.push_back(slot);
        --busy_;
        changed_.notify_all();
      } else {
        return;
      }
    }
  }

  // A slot that is ready, or one in `to_start` whose group is to be read; neither when all is done.
  Slot* next(Slot*& to_start) {
    std::vector<const ReadGroup*> unread;
    {
      MutexLock lock(mutex_);
      while (!is_hanging()) {
        Slot* slot = nullptr;
        if (take_work(slot, to_start)) return slot;
        wait();
      }
      unread = leave();
    }
    for (const ReadGroup* group : unread) lose(*group, hang_error(*group));
    return nullptr;
  }

  // False: there is nothing to do yet.
  bool take_work(Slot*& slot, Slot*& to_start) REQUIRES_LOCK(mutex_) {
    if (options_.stop.stop_requested()) error_.set(Error(ErrorCode::kCancelled, "stopped while reading"));
    const bool more = next_group_ < groups_.size() && !is_ending() && !is_left_;
    if (more && !idle_.empty()) {
      to_start = idle_.back();
      idle_.pop_back();
      to_start->group = &groups_[next_group_++];
      ++busy_;
      return true;
    }
    if (!ready_.empty()) {
      slot = ready_.front();
      ready_.pop_front();
      return true;
    }
    return busy_ == 0 || is_left_;
  }

  void wait() REQUIRES_LOCK(mutex_) {
    const auto until = hang_time();
    if (!until) return changed_.wait(mutex_);
    static_cast<void>(changed_.wait_until(mutex_, *until));
  }
  // From when on the reads under way count as hanging; nullopt: they do not, or there are none.
  std::optional<Clock::time_point> hang_time() const REQUIRES_LOCK(mutex_) {
    if (options_.patience.count() == 0 || is_left_ || under_way_ == 0 || !ready_.empty()) return std::nullopt;
    return answered_ + (options_.stop.stop_requested() ? std::min(options_.patience, kLeaveGrace) : options_.patience);
  }
  bool is_hanging() const REQUIRES_LOCK(mutex_) {
    const auto at = hang_time();
    return at && Clock::now() >= *at;
  }
  // Leaves the reads under way to themselves. Returns the groups that nobody will read here.
  std::vector<const ReadGroup*> leave() REQUIRES_LOCK(mutex_) {
    std::vector<const ReadGroup*> unread;
    for (const Slot& slot : slots_) {
      if (slot.operations > 0) unread.push_back(slot.group);
    }
    while (next_group_ < groups_.size()) unread.push_back(&groups_[next_group_++]);
    is_left_ = true;
    left_ = shared_from_this();
    changed_.notify_all();
    return unread;
  }
  Error hang_error(const ReadGroup& group) const {
    if (options_.stop.stop_requested()) return Error(ErrorCode::kCancelled, "stopped while reading");
    return Error(ErrorCode::kTimeout, fmt::format("{}: has not answered for {:g} s", chunks_[group.first].file->name(),
                                                  std::chrono::duration<double>(options_.patience).count()));
  }
  bool is_ending() const { return options_.stop.stop_requested() || (error_.failed() && !options_.found); }

  // Whole pages, and at least 1 MiB unless the group is smaller: smaller reads go through the page cache.
  int64_t operation_bytes(const ReadGroup& group) const {
    if (!is_local_ || group.bytes < 2 * kLocalRead) return group.bytes;
    const int64_t count = group.bytes / kLocalRead;
    return page_ceil((group.bytes + count - 1) / count);
  }

  void start(Slot& slot) {
    const ReadGroup& group = *slot.group;
    const RandomReader* const file = chunks_[group.first].file;
    const int64_t step = operation_bytes(group);
    std::vector<Operation> operations;
    for (int64_t at = 0; at < group.bytes; at += step) {
      const auto size = static_cast<size_t>(std::min(step, group.bytes - at));
      const ReadRange range{file, group.begin + at, slot.buffer.span().subspan(static_cast<size_t>(at), size)};
      operations.push_back({.tag = static_cast<uint64_t>(&slot - slots_.data()), .what = range, .stop = options_.stop});
    }
    bool is_left = false;
    {
      MutexLock lock(mutex_);
      is_left = is_left_;
      if (!is_left) {
        slot.operations = operations.size();
        slot.status = {};
        if (under_way_ == 0) {
          answered_ = Clock::now();
          changed_.notify_all();  // threads that wait may from now on wait for reads that hang
        }
        under_way_ += operations.size();
      }
    }
    if (is_left) return lose(group, hang_error(group));
    if (options_.readers) return submit_operations(*options_.readers, operations, *this);
    storage_.submit(operations, *this);
  }

  void failed(Error error) {
    if (options_.found) {
      MutexLock lock(found_mutex_);
      options_.found(error);
    }
    error_.set(std::move(error));
  }

  bool is_lost(const ChunkRead& chunk, const Error& error) const {
    return options_.lost && error.code() != ErrorCode::kCancelled && options_.lost(chunk, error);
  }

  void lose(const ReadGroup& group, const Error& error) {
    bool all = true;
    for (size_t i = group.first; i < group.end; ++i) all = is_lost(chunks_[i], error) && all;
    if (!all) failed(error);
  }

  void finish(Slot& slot) {
    const ReadGroup& group = *slot.group;
    if (!slot.status) return lose(group, slot.status.error());
    for (size_t i = group.first; i < group.end && !is_ending(); ++i) {
      const ChunkRead& chunk = chunks_[i];
      use(chunk, slot.buffer.span().subspan(static_cast<size_t>(chunk.offset - group.begin),
                                            static_cast<size_t>(chunk.bytes)));
    }
  }

  void use(const ChunkRead& chunk, std::span<const std::byte> bytes) {
    if (chunk.hash && xxh3_128(bytes) != *chunk.hash) {
      Error error = damage(chunk);
      if (!is_lost(chunk, error)) failed(std::move(error));
      return;
    }
    if (chunk.use == ChunkRead::Use::kTake) options_.take(chunk, bytes);
    if (chunk.use == ChunkRead::Use::kCopy) {
      if (bytes.size() >= kStreamCopy) {
        stream_copy(chunk.out, bytes.data(), bytes.size());
      } else {
        std::copy(bytes.begin(), bytes.end(), chunk.out);
      }
    }
    if (options_.progress != nullptr && !chunk.tensor.empty()) options_.progress->add(chunk.bytes, chunk.items);
  }

  static Error damage(const ChunkRead& chunk) {
    if (chunk.tensor.empty())
      return Error(ErrorCode::kCorruption, fmt::format("{}: its header does not match its hash", chunk.file->name()));
    return Error(ErrorCode::kCorruption,
                 fmt::format("{}: tensor '{}', bytes [{}, {}) of the file do not match their hash", chunk.file->name(),
                             chunk.tensor, chunk.offset, chunk.offset + chunk.bytes));
  }

  Storage& storage_;
  const bool is_local_;
  std::vector<ChunkRead> chunks_;
  const ChunkReadOptions options_;  // the callbacks are the caller's, and nothing that was left calls them
  std::vector<ReadGroup> groups_;
  std::unique_ptr<BufferPool> pool_;
  FirstError error_;
  Mutex found_mutex_;
  Mutex mutex_;
  CondVar changed_;
  std::vector<Slot> slots_;
  std::vector<Slot*> idle_ GUARDED_BY(mutex_);
  std::deque<Slot*> ready_ GUARDED_BY(mutex_);
  size_t next_group_ GUARDED_BY(mutex_) = 0;
  int64_t busy_ GUARDED_BY(mutex_) = 0;                           // slots that are neither idle nor free of operations
  size_t under_way_ GUARDED_BY(mutex_) = 0;                       // operations
  Clock::time_point answered_ GUARDED_BY(mutex_) = Clock::now();  // when the last operation ended, or the first began
  bool is_left_ GUARDED_BY(mutex_) = false;
  std::shared_ptr<ChunkReading> left_ GUARDED_BY(mutex_);  // itself, while operations that were left are under way
};

}  // namespace

Status read_chunks(Storage& storage, std::vector<ChunkRead> chunks, Executor& executor,
                   const ChunkReadOptions& options) {
  return std::make_shared<ChunkReading>(storage, std::move(chunks), options)->run(executor);
}

}  // namespace millrace::checkpoint
