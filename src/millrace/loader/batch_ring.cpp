// SPDX-License-Identifier: Apache-2.0
#include "millrace/loader/batch_ring.h"

namespace millrace::loader {

Result<std::shared_ptr<BatchRing>> BatchRing::create(std::byte* data, int64_t buffer_bytes, int64_t buffers,
                                                     int64_t kept) {
  constexpr int64_t kFewest = 2;
  const auto address = reinterpret_cast<uintptr_t>(data);
  if (data == nullptr || address % kAlignment != 0 || buffer_bytes <= 0 || buffer_bytes % kAlignment != 0) {
    return fail(ErrorCode::kInvalidArgument, "loader: buffers for batches begin and end at multiples of {} bytes",
                kAlignment);
  }
  if (kept < 0 || buffers - kept < kFewest) {
    return fail(ErrorCode::kInvalidArgument, "loader: of {} buffers for batches {} are kept; {} more are needed",
                buffers, kept, kFewest);
  }
  return std::shared_ptr<BatchRing>(new BatchRing(data, buffer_bytes, buffers, kept));
}

BatchRing::BatchRing(std::byte* data, int64_t buffer_bytes, int64_t buffers, int64_t kept)
    : data_(data), buffer_bytes_(buffer_bytes), buffers_(buffers), kept_(kept) {
  for (int64_t i = buffers - 1; i >= 0; --i) free_.push_back(data + i * buffer_bytes);
}

std::shared_ptr<std::byte> BatchRing::try_take(int64_t bytes) {
  std::byte* taken = nullptr;
  {
    MutexLock lock(mutex_);
    if (bytes > buffer_bytes_ || free_.empty()) return nullptr;
    taken = free_.back();
    free_.pop_back();
  }
  return {taken, [ring = shared_from_this()](std::byte* data) {
            MutexLock lock(ring->mutex_);
            ring->free_.push_back(data);
          }};
}

int64_t BatchRing::number_of(const std::byte* data) const {
  const auto at = reinterpret_cast<uintptr_t>(data), begin = reinterpret_cast<uintptr_t>(data_);
  const auto size = static_cast<uintptr_t>(buffer_bytes_);
  const bool is_here =
      at >= begin && (at - begin) % size == 0 && (at - begin) / size < static_cast<uintptr_t>(buffers_);
  return is_here ? static_cast<int64_t>((at - begin) / size) : -1;
}

int64_t BatchRing::free_buffers() const {
  MutexLock lock(mutex_);
  return std::ssize(free_);
}

}  // namespace millrace::loader
