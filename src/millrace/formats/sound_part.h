// SPDX-License-Identifier: Apache-2.0
#pragma once

// Indexes the readable part of a damaged shard. Thread-safe.

#include <optional>
#include <string_view>

#include "millrace/base/io/io.h"
#include "millrace/base/status.h"
#include "millrace/formats/shard_index.h"

namespace millrace::formats {

// The samples of a shard before the first damaged one. Damage is any corruption that index_shard() reports, or
// index_any_shard() if `counts_ids` is false. The sample before a bad header is left out too, because more of its
// members may follow. The whole shard is always hashed. Errors: those of the two functions, except corruption.
struct SoundPart {
  ShardIndex index;
  std::optional<Error> damage;  // nullopt: the shard is whole
  TarSkipped skipped;
};
[[nodiscard]] Result<SoundPart> index_sound_part(const RandomReader& shard, bool counts_ids,
                                                 std::string_view asked_field = {});

}  // namespace millrace::formats
