// SPDX-License-Identifier: Apache-2.0
#pragma once

// Finds the shards that a user's paths and URLs name, and the indexes beside them. Values; thread-safe to read.

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "millrace/base/hash/hash.h"
#include "millrace/base/status.h"
#include "millrace/formats/manifest.h"
#include "millrace/formats/shard_index.h"
#include "millrace/storage/url.h"

namespace millrace::loader {

struct Shard {
  Location location;
  std::optional<formats::ShardEntry> entry;  // the entry in a manifest or part record
  Hash128 tokenizer_hash;                    // from the manifest or part record; zeros: neither exists, or unknown
  int64_t id_limit = 0;                      // 1 + the tokenizer's largest id; 0: unknown
  std::string ids_field;                     // from the manifest; empty: no manifest, or unknown
};

// Puts a layer, such as a cache, in front of an opened folder or file. Empty: no layer.
using ReadThrough = std::function<Result<Location>(Location)>;

// Finds the shards of `urls`. Expands braces and globs (storage/glob.h; in byte order). A name ending in ".tar" or
// ".bin" is a shard; any other name is a folder. The shards of a folder are those that its manifest lists, else those
// of its complete set of part records, else its *.tar files. Opens no shard. Errors: not_found (no match, a folder
// without shards, a missing part), unsupported (a packed archive), invalid_argument (another file), corruption (a
// manifest or part record), those of storage.
[[nodiscard]] Result<std::vector<Shard>> find_shards(const std::vector<std::string>& urls,
                                                     const ReadThrough& read_through = {});

// Finds the shards of one folder, in the same way as find_shards.
[[nodiscard]] Result<std::vector<Shard>> find_shards_in(const Location& folder);

struct StoredIndex {
  formats::ShardIndex index;
  Hash128 hash;            // hash of the index file
  int64_t size_bytes = 0;  // size of the index file
};
Location index_location(const Shard& shard);
// Reads the index of a shard; nullopt: the shard has none. Errors: corruption, unsupported, those of storage.
[[nodiscard]] Result<std::optional<StoredIndex>> read_index(const Shard& shard);

}  // namespace millrace::loader
