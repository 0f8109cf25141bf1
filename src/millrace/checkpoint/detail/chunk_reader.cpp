// SPDX-License-Identifier: Apache-2.0
#include "millrace/checkpoint/detail/chunk_reader.h"

#include <algorithm>
#include <cstring>
#include <tuple>
#include <utility>

#include "millrace/base/buffer_pool.h"
#include "millrace/checkpoint/detail/first_error.h"

namespace millrace::checkpoint {

namespace {

constexpr int64_t kSmallBytes = 1 << 20;   // chunks below this are worth a copy to save a read
constexpr int64_t kGatherBytes = 4 << 20;  // one read of gathered chunks

// Neighbouring chunks [first, end) that are read at once.
struct ReadGroup {
  size_t first = 0, end = 0;
};

class ChunkReading {
 public:
  ChunkReading(std::vector<ChunkRead> chunks, const ChunkReadOptions& options)
      : chunks_(std::move(chunks)), options_(options) {
    std::sort(chunks_.begin(), chunks_.end(), [](const ChunkRead& a, const ChunkRead& b) {
      return std::tie(a.file, a.offset) < std::tie(b.file, b.offset);
    });
    for (size_t i = 0; i < chunks_.size(); ++i) {
      if (i == 0 || !joins(groups_.back(), chunks_[i])) groups_.push_back({i, i});
      groups_.back().end = i + 1;
    }
  }

  Status run(Executor& executor) {
    for (const ReadGroup& group : groups_) {
      if (needs_scratch(group)) scratch_bytes_ = std::max(scratch_bytes_, bytes_of(group));
    }
    if (scratch_bytes_ > 0) {
      const int64_t threads = std::min<int64_t>(executor.threads() + 1, static_cast<int64_t>(groups_.size()));
      scratch_bytes_ = (scratch_bytes_ + 4095) / 4096 * 4096;  // whole pages, as the pool counts
      ASSIGN_OR_RETURN(scratch_,
                       BufferPool::reserve(*MemoryBudget::process(), "checkpoint load", scratch_bytes_ * threads));
    }
    parallel_for(executor, static_cast<int64_t>(groups_.size()), [&](int64_t i) {
      if (error_.failed() && !options_.found) return;
      if (options_.stop.stop_requested()) return error_.set(Error(ErrorCode::kCancelled, "stopped while reading"));
      read(groups_[static_cast<size_t>(i)]);
    });
    return error_.status();
  }

 private:
  bool joins(const ReadGroup& group, const ChunkRead& next) const {
    const ChunkRead& first = chunks_[group.first];
    const ChunkRead& last = chunks_[group.end - 1];
    return next.file == last.file && next.offset == last.offset + last.bytes && next.bytes < kSmallBytes &&
           last.bytes < kSmallBytes && next.offset + next.bytes - first.offset <= kGatherBytes;
  }
  bool needs_scratch(const ReadGroup& group) const {
    return group.end - group.first > 1 || chunks_[group.first].out == nullptr;
  }
  int64_t bytes_of(const ReadGroup& group) const {
    const ChunkRead& last = chunks_[group.end - 1];
    return last.offset + last.bytes - chunks_[group.first].offset;
  }

  void failed(Error error) {
    if (options_.found) {
      MutexLock lock(found_mutex_);
      options_.found(error);
    }
    error_.set(std::move(error));
  }

  void read(const ReadGroup& group) {
    const ChunkRead& first = chunks_[group.first];
    const auto size = static_cast<size_t>(bytes_of(group));
    Buffer scratch;
    std::span<std::byte> bytes(first.out, size);
    if (needs_scratch(group)) {
      auto buffer = scratch_->acquire(static_cast<size_t>(scratch_bytes_));
      if (!buffer) return failed(std::move(buffer).error());
      scratch = std::move(*buffer);
      bytes = scratch.span().first(size);
    }
    if (auto status = first.file->read_at(first.offset, bytes); !status) return failed(std::move(status).error());
    for (size_t i = group.first; i < group.end; ++i) {
      const ChunkRead& chunk = chunks_[i];
      finish(chunk, bytes.subspan(static_cast<size_t>(chunk.offset - first.offset), static_cast<size_t>(chunk.bytes)));
    }
  }

  void finish(const ChunkRead& chunk, std::span<const std::byte> bytes) {
    if (xxh3_128(bytes) != chunk.hash) {
      const auto damage =
          fail(ErrorCode::kCorruption, "{}: tensor '{}', bytes [{}, {}) of the file do not match their hash",
               chunk.file->name(), chunk.tensor, chunk.offset, chunk.offset + chunk.bytes);
      return failed(damage.value());
    }
    if (chunk.out == nullptr) {
      if (options_.take) options_.take(chunk, bytes);
    } else if (chunk.out != bytes.data()) {
      std::memcpy(chunk.out, bytes.data(), bytes.size());
    }
    if (options_.progress != nullptr) options_.progress->add(chunk.bytes, chunk.items);
  }

  std::vector<ChunkRead> chunks_;
  const ChunkReadOptions& options_;
  std::vector<ReadGroup> groups_;
  int64_t scratch_bytes_ = 0;
  std::unique_ptr<BufferPool> scratch_;
  FirstError error_;
  Mutex found_mutex_;
};

}  // namespace

Status read_chunks(std::vector<ChunkRead> chunks, Executor& executor, const ChunkReadOptions& options) {
  return ChunkReading(std::move(chunks), options).run(executor);
}

}  // namespace millrace::checkpoint
