// SPDX-License-Identifier: Apache-2.0
#pragma once

// Makes a SampleSource of shards of token ids: folders that `prepare` wrote, brace patterns, single tars. Thread-safe.

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
  std::string name;       // name in messages: the text that the user typed
  std::string ids_field;  // empty: the field that the manifest or the index names
  bool needs_ids = true;  // false: samples may lack token ids, and plans have no token counts
  // true: reads the samples before the damage of a damaged tar without an index, and damaged_shards() lists it. false:
  // such a tar is an error.
  bool keeps_sound_parts = false;
  int64_t index_cache_bytes = 64 << 20;
  int64_t run_bytes = 8 << 20;  // most bytes of neighbouring samples in one read; a larger sample is read alone
  int threads = 1;              // threads that check indexes on a local file system
  // The expected tokenizer, and 1 + the largest allowed id; nullopt and 0: not checked. Shards that do not state theirs
  // pass.
  std::optional<Hash128> tokenizer_hash;
  int64_t vocab_size = 0;
  Activities* activities = nullptr;  // lists the openings and index reads under way; outlives the source
};

// Opens the shards that find_shards() returned. When a manifest describes a shard, neither the shard nor its index is
// opened until a plan needs it. The indexes of other shards are read now, many in parallel. A shard without an index
// is read whole to build one in memory; a log line says so. `metrics` (read_bytes, read_seconds) must outlive the
// source. `stop` ends the opening and later reads of the source. Errors: not_found (a shard), corruption (index),
// cancelled, invalid_argument (shards of two tokenizers, or of another than expected). With keeps_sound_parts,
// corruption is an error only when it affects all shards.
[[nodiscard]] Result<std::unique_ptr<order::SampleSource>> open_shard_source(std::vector<Shard> shards,
                                                                             const ShardSourceOptions& options,
                                                                             Metrics& metrics,
                                                                             const std::stop_token& stop = {});

}  // namespace millrace::loader
