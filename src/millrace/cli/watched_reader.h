// SPDX-License-Identifier: Apache-2.0
#pragma once

// Opens a shard whose reads show as progress and can be stopped. A reader is thread-safe.

#include <memory>
#include <stop_token>

#include "millrace/base/progress.h"
#include "millrace/base/status.h"
#include "millrace/loader/shard_set.h"

namespace millrace::cli {

using loader::find_shards;
using loader::index_location;
using loader::read_index;
using loader::Shard;
using loader::StoredIndex;

// Opens a shard. Every read adds to `progress`, which must outlive the reader. A read after `stop` fails with
// cancelled.
[[nodiscard]] Result<std::unique_ptr<RandomReader>> open_watched(const Shard& shard, std::stop_token stop,
                                                                 Progress& progress);

}  // namespace millrace::cli
