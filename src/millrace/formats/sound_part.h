// SPDX-License-Identifier: Apache-2.0
#pragma once

// What can be read of a damaged shard. Thread-safe.

#include <optional>
#include <string_view>

#include "millrace/base/io/io.h"
#include "millrace/base/status.h"
#include "millrace/formats/shard_index.h"

namespace millrace::formats {

// Of a shard that may be damaged: the samples before the one in which the first damage lies, which is corruption as
// index_shard or index_any_shard (`counts_ids` is false) would answer it. The sample before a bad header is left out
// too, since members of it may follow; the whole shard is hashed in any case. Errors: those of these but corruption.
struct SoundPart {
  ShardIndex index;
  std::optional<Error> damage;  // nullopt: the shard is whole
};
[[nodiscard]] Result<SoundPart> index_sound_part(const RandomReader& shard, bool counts_ids,
                                                 std::string_view asked_field = {});

}  // namespace millrace::formats
