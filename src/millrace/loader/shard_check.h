// SPDX-License-Identifier: Apache-2.0
#pragma once

// Reads a whole shard and compares it with its index, its entry in the manifest and, if there is one, its Megatron
// index. Values; functions are thread-safe.

#include <cstdint>
#include <optional>
#include <vector>

#include "millrace/base/io/io.h"
#include "millrace/base/status.h"
#include "millrace/formats/tar.h"
#include "millrace/loader/shard_set.h"

namespace millrace::loader {

struct ShardCheck {
  std::vector<Error> damage;
  std::optional<Error> failure;  // the shard could not be read
  bool indexed = false;          // false: no index, so only the structure was checked
  int64_t samples = 0;
  int64_t bytes = 0;
  formats::TarSkipped skipped;
};

// Checks the shard's file through `reader`.
ShardCheck check_shard_file(const Shard& shard, const RandomReader& reader);
// Judges a shard whose file could not be opened. A missing shard that a manifest lists is damage.
ShardCheck unopened_shard(const Shard& shard, Error error);

}  // namespace millrace::loader
