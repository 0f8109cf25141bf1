// SPDX-License-Identifier: Apache-2.0
#pragma once

// An open dataset or mixture: its sources, the order of their samples, and the memory for them. It does not change
// once it is open; threads may share it.

#include <cstdint>
#include <memory>
#include <stop_token>
#include <vector>

#include "millrace/base/memory/buffer_pool.h"
#include "millrace/base/metrics.h"
#include "millrace/base/status.h"
#include "millrace/loader/detail/sample_decoder.h"
#include "millrace/loader/detail/sample_order.h"
#include "millrace/loader/options.h"

namespace millrace::loader {

// Divides LoaderOptions::memory_bytes into separate pools, so that reading ahead cannot take memory that a waiting
// batch needs.
struct LoaderMemory {
  int64_t most_batches = 0;             // batches that may be ready, excluding those that the user keeps
  int64_t pooled_batches = 0;           // including those that the user keeps
  int64_t batch_bytes = 0;              // most bytes of a batch of token ids, in whole pages
  std::unique_ptr<BufferPool> batches;  // batches that next() returns
  std::unique_ptr<BufferPool> blocks;   // token ids
  std::unique_ptr<BufferPool> runs;     // bytes of shards, from the request until they are decoded
  // These two pools only count memory that is allocated elsewhere.
  std::unique_ptr<BufferPool> held;  // lists of shards, indexes (SampleSource::held_bytes)
  std::unique_ptr<BufferPool> rows;  // rows of sources that read in plan(), until the rows are decoded
};

struct Dataset {
  LoaderMemory memory;
  std::vector<SourcePtr> sources;                        // one source, or those of a mixture
  std::vector<std::unique_ptr<SampleDecoder>> decoders;  // one per source
  std::unique_ptr<SampleOrder> order;
  Start beginning;                                  // start of the order, by the options and the sources' sizes
  std::vector<order::DamagedShard> damaged_shards;  // damaged shards of all sources
};

// Opens the sources in parallel. Errors: those of `open_sources`; resource_exhausted (memory_bytes is too small for
// the batches, or for the lists of shards and indexes); invalid_argument (no samples; sources of two tokenizers);
// corruption (more than max_bad shards are damaged).
[[nodiscard]] Result<std::unique_ptr<Dataset>> open_dataset(const LoaderOptions& options,
                                                            const std::vector<OpenSource>& open_sources,
                                                            Metrics& metrics, Activities& activities,
                                                            const std::stop_token& stop);

}  // namespace millrace::loader
