// SPDX-License-Identifier: Apache-2.0
#pragma once

// A pipeline of one reading thread, N encoding threads and a caller that takes out the batches in input order. Memory
// is bounded: a slice enters only while the text under way fits into the memory that reserve_memory() found. The
// memory of finished batches is reused. The pipeline belongs to one thread; its destructor stops and joins the others.

#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <stop_token>
#include <vector>

#include "millrace/base/memory/buffer_pool.h"
#include "millrace/base/metrics.h"
#include "millrace/base/thread/sync.h"
#include "millrace/prepare/detail/inputs.h"
#include "millrace/prepare/detail/samples.h"

namespace millrace::prepare {

struct PipelineOptions {
  int threads = 1;
  // A chunk is the result of one read. A slice ends after `slice_documents` documents, because even the smallest one
  // becomes 2 KiB of tar. That makes about 1 MiB, which stays in a core's cache until it is hashed and written.
  int64_t chunk_bytes = 256 << 10;
  size_t slice_documents = 512;
  // The largest amount of text under way. A larger document enters alone. Set by reserve_memory().
  int64_t bytes_in_flight = 16 << 20;
  bool hashes_only = false;  // samples hold only the hash of their text
};

// Reserves memory for the text under way and its encoded form, until the result is dropped. Sets
// options.bytes_in_flight to the amount that fits, which is less than `options` asks for when the budget is nearly
// used up. Errors: resource_exhausted (not even two chunks fit).
[[nodiscard]] Result<std::unique_ptr<BufferPool>> reserve_memory(PipelineOptions& options, MemoryBudget& budget);

class Pipeline {
 public:
  // Starts reading at `begin`. `inputs` and `metrics` must outlive the pipeline.
  Pipeline(std::span<const Input> inputs, const Position& begin, const SampleFormat& format,
           std::shared_ptr<const tokenizer::Tokenizer> tokenizer, const PipelineOptions& options, std::stop_token stop,
           Metrics& metrics);
  ~Pipeline();
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  // Returns the next batch in the order of the inputs, nullopt after the last. The first error in that order ends the
  // pipeline. Errors: cancelled, those of reading and encoding.
  [[nodiscard]] Result<std::optional<Batch>> next();
  // Takes back the memory of a batch, for another batch.
  void recycle(Batch&& batch);

 private:
  void read_all_inputs();
  [[nodiscard]] Status read_input(size_t i, const Position& begin, int64_t& document);
  [[nodiscard]] Result<std::optional<formats::DocumentChunk>> read_chunk(formats::DocumentSource& source);
  // Returns false if the pipeline is stopping.
  bool enqueue(Slice slice);
  void encode_slices();
  void stop_all();

  const std::span<const Input> inputs_;
  const Position begin_;
  const SampleFormat format_;
  const std::shared_ptr<const tokenizer::Tokenizer> tokenizer_;
  const PipelineOptions options_;
  const std::stop_token stop_;
  Metrics& metrics_;

  struct Numbered {
    int64_t number;
    Batch batch;
  };
  Mutex mutex_;
  CondVar room_, work_, done_;
  std::deque<Numbered> waiting_ GUARDED_BY(mutex_);
  std::map<int64_t, Result<Batch>> encoded_ GUARDED_BY(mutex_);
  std::vector<Batch> spare_ GUARDED_BY(mutex_);
  int64_t slices_read_ GUARDED_BY(mutex_) = 0;
  int64_t slices_taken_ GUARDED_BY(mutex_) = 0;
  int64_t bytes_in_flight_ GUARDED_BY(mutex_) = 0;
  std::optional<Status> read_ended_ GUARDED_BY(mutex_);
  bool stopping_ GUARDED_BY(mutex_) = false;

  std::vector<Thread> threads_;
  std::optional<std::stop_callback<std::function<void()>>> on_stop_;
};

}  // namespace millrace::prepare
