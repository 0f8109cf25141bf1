// SPDX-License-Identifier: Apache-2.0
#pragma once

// Reads a shard whole and compares it with its index, its manifest's entry and, where it has one, its Megatron index.
// Values; functions are thread-safe.

#include <cstdint>
#include <optional>
#include <vector>

#include "millrace/base/io/io.h"
#include "millrace/base/status.h"
#include "millrace/loader/shard_set.h"

namespace millrace::loader {

struct ShardCheck {
  std::vector<Error> damage;
  std::optional<Error> failure;  // the shard could not be read
  bool indexed = false;          // without an index only the structure was checked
  int64_t samples = 0;
  int64_t bytes = 0;
  int64_t links = 0;  // hard and symbolic links of the archive: no data, so no part of a sample
};

// `reader` reads the shard's file.
ShardCheck check_shard_file(const Shard& shard, const RandomReader& reader);
// Judges a shard whose file could not be opened: it is damage that a shard of a manifest is missing.
ShardCheck unopened_shard(const Shard& shard, Error error);

}  // namespace millrace::loader
