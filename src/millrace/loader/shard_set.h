// SPDX-License-Identifier: Apache-2.0
#pragma once

// The shards behind what a user typed, and the indexes beside them. Values; thread-safe to read.

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
  Hash128 tokenizer_hash;  // from the manifest or part record; zeros: there is none, or it is not known
  int64_t id_limit = 0;    // 1 + the tokenizer's largest id; 0 when not known
  std::string ids_field;   // from the manifest; empty when there is none, or it is not known
};

// Puts a layer such as a cache in front of an opened folder or file; empty: none.
using ReadThrough = std::function<Result<Location>(Location)>;

// Braces and globs (storage/glob.h; in byte order) are expanded. Names ending in ".tar" or ".bin" are shards; anything
// else is a folder, whose manifest, else complete set of part records, else *.tar files say what belongs to it. Shards
// are not opened. Errors: not_found (no match, a folder without shards, a missing part), unsupported (a packed
// archive), invalid_argument (another file), corruption (a manifest or part record), those of storage.
[[nodiscard]] Result<std::vector<Shard>> find_shards(const std::vector<std::string>& urls,
                                                     const ReadThrough& read_through = {});

// The shards of one folder, as find_shards takes it.
[[nodiscard]] Result<std::vector<Shard>> find_shards_in(const Location& folder);

struct StoredIndex {
  formats::ShardIndex index;
  Hash128 hash;            // hash of the index file
  int64_t size_bytes = 0;  // size of the index file
};
Location index_location(const Shard& shard);
// Nothing when there is none. Errors: corruption, unsupported, those of storage.
[[nodiscard]] Result<std::optional<StoredIndex>> read_index(const Shard& shard);

}  // namespace millrace::loader
