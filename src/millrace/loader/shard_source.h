// SPDX-License-Identifier: Apache-2.0
#pragma once

// Shards of token ids as a SampleSource: folders that `prepare` wrote, brace patterns, single tars. Thread-safe.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "millrace/base/hash.h"
#include "millrace/base/metrics.h"
#include "millrace/base/status.h"
#include "millrace/order/sample_source.h"

namespace millrace::loader {

struct ShardSourceOptions {
  // A folder (its manifest or a complete set of part records say what belongs to it, else every *.tar in it), a tar, or
  // a brace pattern of tars; several are laid end to end.
  std::vector<std::string> urls;
  std::string ids_field;  // empty: what the index names
  int64_t index_cache_bytes = 64 << 20;
  int threads = 1;                        // for building missing indexes at the start
  std::optional<Hash128> tokenizer_hash;  // what made the ids, as far as shards say
  int64_t vocab_size = 0;                 // the tokenizer's ids are below it, as far as shards say; 0: not checked
};

class ShardSource : public order::SampleSource {
 public:
  // The field of the samples that holds the ids, as the indexes name it; empty when they name none.
  virtual std::string_view ids_field() const = 0;
};

// Opens every shard's record, not its bytes. A shard without an index is read once, here, to build one in memory; the
// log says so. `metrics` (read_bytes, read_seconds) must outlive the source. Errors: not_found (a shard, a part of a
// folder: each missing one named), corruption (index, manifest), invalid_argument (two tokenizers, or another one than
// was asked for).
[[nodiscard]] Result<std::unique_ptr<ShardSource>> open_shard_source(const ShardSourceOptions& options,
                                                                     Metrics& metrics);

}  // namespace millrace::loader
