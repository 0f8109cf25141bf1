// SPDX-License-Identifier: Apache-2.0
#include "millrace/loader/detail/batch_maker.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "millrace/base/log.h"
#include "millrace/loader/packed_batch.h"

namespace millrace::loader {

namespace {

void end_document(int64_t end, Batch& batch) {
  const int32_t length = static_cast<int32_t>(end) - batch.cu_seqlens.back();
  if (length == 0) return;
  batch.cu_seqlens.push_back(static_cast<int32_t>(end));
  batch.max_seqlen = std::max(batch.max_seqlen, length);
}

void add_documents(std::span<const Piece> pieces, int64_t row, Batch& batch) {
  int64_t at = row * batch.seq_len;
  for (const Piece& piece : pieces) end_document(at += std::ssize(piece.ids), batch);
  end_document((row + 1) * batch.seq_len, batch);
}

}  // namespace

Result<Batch> BatchMaker::make(int64_t rows, const RowPieces& pieces_of) {
  MetricTimer timer(metrics_, Metric::kCollateSeconds);
  Batch batch{.rows = rows, .seq_len = options_.seq_len, .type = options_.id_type};
  const auto specs = batch_arrays(options_.collate, options_.documents);
  const int64_t stride = array_stride(options_, rows);
  batch.space_bytes = stride * std::ssize(specs);
  Memory memory;
  if (const auto into = ring(); into != nullptr) {
    batch.space_bytes = packed_bytes(options_, rows);
    const auto buffer = into->try_take(batch.space_bytes);
    memory = buffer != nullptr ? Memory{buffer, buffer.get()} : ordinary_memory(batch.space_bytes);
  } else {
    memory = take_memory(batch.space_bytes);
  }
  batch.memory = memory.owner;
  std::vector<std::byte*> arrays;
  for (size_t i = 0; i < specs.size(); ++i) {
    arrays.push_back(memory.data + static_cast<int64_t>(i) * stride);
    batch.arrays.push_back({specs[i].name, arrays.back()});
  }
  if (options_.documents) batch.cu_seqlens.push_back(0);
  std::vector<Piece> pieces;
  for (int64_t row = 0; row < rows; ++row) {
    pieces.clear();
    RETURN_IF_ERROR(pieces_of(row, pieces));
    collate_row(options_.collate, options_.id_type, pieces, options_.seq_len, options_.pad_id, row, arrays);
    if (options_.documents) add_documents(pieces, row, batch);
    int64_t tokens = 0;
    for (const Piece& piece : pieces) tokens += static_cast<int64_t>(piece.ids.size());
    batch.tokens += std::min(tokens, options_.seq_len);
    if (tokens > options_.seq_len) metrics_.add(Metric::kTruncatedTokens, tokens - options_.seq_len);
  }
  return batch;
}

Result<Batch> BatchMaker::make(std::span<const DecodedSample* const> rows) {
  MetricTimer timer(metrics_, Metric::kCollateSeconds);
  Batch batch;
  int64_t bytes = 0;
  const auto take = [&](int64_t size) -> std::pair<std::byte*, std::shared_ptr<void>> {
    bytes += size;
    Memory memory = take_memory(size);
    return {memory.data, std::move(memory.owner)};
  };
  RETURN_IF_ERROR(collate_samples(rows, *options_.fields, take, batch));
  int64_t largest = largest_;
  while (bytes > largest && !largest_.compare_exchange_weak(largest, bytes)) {
  }
  return batch;
}

void BatchMaker::set_ring(std::shared_ptr<BatchRing> ring) {
  MutexLock lock(mutex_);
  ring_ = std::move(ring);
}

std::shared_ptr<BatchRing> BatchMaker::ring() const {
  MutexLock lock(mutex_);
  return ring_;
}

int64_t BatchMaker::most_batches() const {
  if (!options_.has_fields()) {
    const auto into = ring();
    return into != nullptr ? std::min(batches_, into->most_batches()) : batches_;
  }
  // The user holds one or two of them.
  const int64_t largest = std::max<int64_t>(largest_, 1);
  return std::clamp<int64_t>(memory_.limit_bytes() / largest - 2, 2, batches_);
}

// Pooled memory, or ordinary memory when the user holds more batches than the pool has: next() never waits for the
// user.
BatchMaker::Memory BatchMaker::take_memory(int64_t bytes) {
  auto pooled = memory_.try_acquire(static_cast<size_t>(bytes));
  if (pooled && *pooled) {
    auto owner = std::make_shared<Buffer>(std::move(*pooled));
    std::byte* const data = owner->data();
    return {std::move(owner), data};
  }
  return ordinary_memory(bytes);
}

BatchMaker::Memory BatchMaker::ordinary_memory(int64_t bytes) {
  warn_of_copies();
  auto owner = std::make_shared<std::vector<std::byte>>(static_cast<size_t>(std::max<int64_t>(bytes, 1)));
  std::byte* const data = owner->data();
  return {std::move(owner), data};
}

void BatchMaker::warn_of_copies() {
  metrics_.add(Metric::kBatchCopies, 1);
  if (warned_.exchange(true)) return;
  log(LogLevel::kWarning,
      "more than {} batches are kept at once; further ones take new memory beyond memory_bytes. Copy what you keep, or "
      "raise memory_bytes",
      batches_);
}

}  // namespace millrace::loader
