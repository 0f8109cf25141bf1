// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "millrace/base/hash/hash.h"
#include "millrace/base/io/io.h"
#include "millrace/base/status.h"

namespace millrace::formats::detail {

// Reads a shard in blocks from `begin` to its end, hashes it, and returns extents in ascending order. finish() hashes
// the bytes before `begin` last. Belongs to one thread; the shard must outlive this object.
class HashedShard {
 public:
  explicit HashedShard(const RandomReader& shard, int64_t begin = 0)
      : shard_(shard), begin_(begin), limit_(shard.size()), at_(begin) {}

  // Returns the bytes [begin, end), valid until the next call. REQUIRES: `begin` is at or after the end of the
  // previous extent; `end` is at most the shard's size.
  [[nodiscard]] Result<std::span<const std::byte>> extent(int64_t begin, int64_t end) {
    RETURN_IF_ERROR(load(begin, end));
    return std::span<const std::byte>(buffer_).subspan(static_cast<size_t>(begin - at_),
                                                       static_cast<size_t>(end - begin));
  }

  [[nodiscard]] Result<Hash128> finish() {
    RETURN_IF_ERROR(load(limit_, limit_));
    buffer_.clear();
    at_ = 0;
    limit_ = begin_;
    RETURN_IF_ERROR(load(limit_, limit_));
    return hash_.digest();
  }

 private:
  static constexpr int64_t kBlock = 1 << 20;

  int64_t loaded() const { return at_ + static_cast<int64_t>(buffer_.size()); }

  // Reads on until the buffer holds [begin, end). Drops the bytes before `begin`.
  [[nodiscard]] Status load(int64_t begin, int64_t end) {
    while (loaded() < end) {
      const int64_t kept = std::min(begin, loaded());
      buffer_.erase(buffer_.begin(), buffer_.begin() + (kept - at_));
      at_ = kept;
      const int64_t next = loaded();
      const int64_t wanted = std::max(kBlock, begin <= next ? end - next : 0);
      const size_t behind = buffer_.size();
      buffer_.resize(behind + static_cast<size_t>(std::min(wanted, limit_ - next)));
      const auto fresh = std::span(buffer_).subspan(behind);
      RETURN_IF_ERROR(shard_.read_at(next, fresh));
      hash_.update(fresh);
    }
    return {};
  }

  const RandomReader& shard_;
  const int64_t begin_;
  int64_t limit_;                  // end of the bytes to read
  int64_t at_;                     // offset of the buffer in the shard
  std::vector<std::byte> buffer_;  // all of it is hashed
  Xxh3Stream hash_;
};

}  // namespace millrace::formats::detail
