// SPDX-License-Identifier: Apache-2.0
#pragma once

// Makes batches: takes memory and collates rows into it. Thread-safe.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "millrace/base/memory/buffer_pool.h"
#include "millrace/base/metrics.h"
#include "millrace/base/status.h"
#include "millrace/base/thread/sync.h"
#include "millrace/loader/batch.h"
#include "millrace/loader/batch_ring.h"
#include "millrace/loader/collate.h"
#include "millrace/loader/detail/sample_rows.h"
#include "millrace/loader/options.h"

namespace millrace::loader {

class BatchMaker {
 public:
  // `memory` has room for `batches` batches; further batches take ordinary memory. The arguments must outlive this
  // object.
  BatchMaker(const LoaderOptions& options, BufferPool& memory, int64_t batches, Metrics& metrics)
      : options_(options), memory_(memory), batches_(batches), metrics_(metrics) {}

  // Appends the pieces of a row.
  using RowPieces = std::function<Status(int64_t row, std::vector<Piece>& pieces)>;
  // Makes a batch of `rows` rows of token ids. Does not set its place in the order. Errors: those of `pieces_of`.
  [[nodiscard]] Result<Batch> make(int64_t rows, const RowPieces& pieces_of);
  // Makes a batch of samples of any kind; nullptr is a row of padding. Errors: those of collate_samples.
  [[nodiscard]] Result<Batch> make(std::span<const DecodedSample* const> rows);
  // Writes batches of token ids into `ring` from now on, instead of `memory`.
  void set_ring(std::shared_ptr<BatchRing> ring);
  std::shared_ptr<BatchRing> ring() const;
  // Returns how many batches may be ready at once. For samples of any kind it depends on the largest batch so far,
  // because sizes differ.
  int64_t most_batches() const;

 private:
  struct Memory {
    std::shared_ptr<void> owner;
    std::byte* data = nullptr;
  };
  Memory take_memory(int64_t bytes);
  Memory ordinary_memory(int64_t bytes);
  void warn_of_copies();

  const LoaderOptions& options_;
  BufferPool& memory_;
  const int64_t batches_;
  Metrics& metrics_;
  std::atomic<bool> warned_{false};
  mutable Mutex mutex_;
  std::shared_ptr<BatchRing> ring_ GUARDED_BY(mutex_);
  std::atomic<int64_t> largest_{0};  // most bytes of one batch of samples of any kind so far
};

}  // namespace millrace::loader
