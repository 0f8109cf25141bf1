// SPDX-License-Identifier: Apache-2.0
#pragma once

// Reads samples of a dataset by number, in canonical order: shard after shard, in the order of find_shards. Each read
// reads and verifies one range; an index or shard is opened by the first read that needs it. Thread-safe; reads may
// run in parallel. A child after a fork must open its own reader.

#include <cstdint>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "millrace/base/metrics.h"
#include "millrace/base/status.h"
#include "millrace/order/sample_source.h"

namespace millrace::loader {

struct StoredSample {
  struct Field {
    std::string name;
    std::span<const std::byte> data;  // in `memory`
  };
  std::string key;
  std::vector<Field> fields;
  std::shared_ptr<const std::vector<std::byte>> memory;
};

struct DatasetOptions {
  std::string ids_field;    // empty: the field that the manifest or the index names
  std::string cache;        // folder of the node's cache (cache/node_cache.h) for remote data; empty: no cache
  int64_t cache_bytes = 0;  // cap of the cache; 0: half of the disk
};

class DatasetReader {
 public:
  // Opens the `shards`, given as for find_shards. `stop` ends the opening. Errors: invalid_argument (no shards; a cap
  // without a cache), those of find_shards, open_shard_source and NodeCache::of_process.
  [[nodiscard]] static Result<std::unique_ptr<DatasetReader>> open(const std::vector<std::string>& shards,
                                                                   const DatasetOptions& options,
                                                                   const std::stop_token& stop = {});

  int64_t size() const { return first_.back(); }  // samples
  bool waits_for_server() const { return waits_for_server_; }
  // Reads sample `number`. Errors: out_of_range, corruption naming shard and sample, cancelled (`stop`), those of the
  // storage.
  [[nodiscard]] Result<StoredSample> read(int64_t number, const std::stop_token& stop = {});
  // Reads the token ids of a sample. Errors: as read(); corruption (the sample lacks the field), unsupported (the
  // dataset has no token ids).
  [[nodiscard]] Result<std::vector<uint32_t>> read_ids(int64_t number, const std::stop_token& stop = {});

 private:
  DatasetReader() = default;
  order::Window window_of(int64_t number) const;

  Metrics metrics_;
  std::unique_ptr<order::SampleSource> source_;
  bool waits_for_server_ = false;
  std::vector<int64_t> first_;  // number of each shard's first sample, then the number of all samples
};

}  // namespace millrace::loader
