// SPDX-License-Identifier: Apache-2.0
#pragma once

// A dataset or a mixture, opened: what the loader reads, in which order, and into which memory. Constant once it is
// open, and thread-safe to read.

#include <cstdint>
#include <memory>
#include <stop_token>
#include <vector>

#include "millrace/base/memory/buffer_pool.h"
#include "millrace/base/metrics.h"
#include "millrace/base/status.h"
#include "millrace/loader/detail/sample_order.h"
#include "millrace/loader/options.h"

namespace millrace::loader {

// One cap, LoaderOptions::memory_bytes, in reservations, so that what is read cannot starve what is waited for.
struct LoaderMemory {
  int64_t most_batches = 0;             // that may be ready, beside those that the user keeps
  int64_t pooled_batches = 0;           // with those
  int64_t batch_bytes = 0;              // of one batch of token ids at most, whole pages
  std::unique_ptr<BufferPool> batches;  // what next() gives
  std::unique_ptr<BufferPool> blocks;   // token ids
  std::unique_ptr<BufferPool> runs;     // bytes of shards, from being asked for until they are decoded
  // Nothing is taken from these two: they stand for memory that others allocate.
  std::unique_ptr<BufferPool> held;  // lists of shards, indexes (SampleSource::held_bytes)
  std::unique_ptr<BufferPool> rows;  // of sources that read to plan, from being read until they are decoded
};

struct Dataset {
  LoaderMemory memory;
  std::vector<SourcePtr> sources;  // one, or those of a mixture
  std::unique_ptr<SampleOrder> order;
  Start beginning;  // of the order that the options and the sizes of the sources ask for
  std::vector<order::DamagedShard> damaged_shards;  // of all sources
};

// Opens the sources at once. Errors: those of `open_sources`; resource_exhausted (memory_bytes does not hold the
// batches, or the lists of shards and indexes); invalid_argument (no samples; sources of two tokenizers); corruption
// (more than max_bad shards are damaged).
[[nodiscard]] Result<std::unique_ptr<Dataset>> open_dataset(const LoaderOptions& options,
                                                            const std::vector<OpenSource>& open_sources,
                                                            Metrics& metrics, Activities& activities,
                                                            const std::stop_token& stop);

}  // namespace millrace::loader
