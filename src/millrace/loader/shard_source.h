// SPDX-License-Identifier: Apache-2.0
#pragma once

// Shards of token ids as a SampleSource: folders that `prepare` wrote, brace patterns, single tars. Thread-safe.

#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "millrace/base/hash/hash.h"
#include "millrace/base/metrics.h"
#include "millrace/base/status.h"
#include "millrace/loader/activities.h"
#include "millrace/loader/shard_set.h"
#include "millrace/order/sample_source.h"

namespace millrace::loader {

struct ShardSourceOptions {
  std::string name;       // for messages: what the user typed
  std::string ids_field;  // empty: what the manifest or the index names
  bool needs_ids = true;  // false: samples without token ids are planned too, with any numbers of tokens
  // true: reads the samples before the damage of a damaged tar without an index, and damaged_shards() lists it. false:
  // such a tar is an error.
  bool keeps_sound_parts = false;
  int64_t index_cache_bytes = 64 << 20;
  int64_t run_bytes = 8 << 20;  // of neighbouring samples that are read together, or one sample that is larger
  int threads = 1;              // for checking indexes on a local file system
  // What made the ids, and 1 + the largest of them, as far as shards say; 0: not checked.
  std::optional<Hash128> tokenizer_hash;
  int64_t vocab_size = 0;
  Activities* activities = nullptr;  // where openings and reads of indexes are listed; outlives the source
};

// Opens what find_shards gave. What a manifest says of a shard is not read again: neither its index nor the shard is
// opened before a plan needs it. Of other shards the index is read, many at once; a shard without one is read once,
// here, to build it in memory, and the log says so. `metrics` (read_bytes, read_seconds) must outlive the source.
// `stop` ends what is under way, also later. Errors: not_found (a shard), corruption (index), cancelled,
// invalid_argument (two tokenizers, or another one than was asked for). With keeps_sound_parts, corruption of all
// shards is an error.
[[nodiscard]] Result<std::unique_ptr<order::SampleSource>> open_shard_source(std::vector<Shard> shards,
                                                                             const ShardSourceOptions& options,
                                                                             Metrics& metrics,
                                                                             const std::stop_token& stop = {});

}  // namespace millrace::loader
