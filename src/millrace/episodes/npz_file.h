// SPDX-License-Identifier: Apache-2.0
#pragma once

// An episode as an NPZ file (docs/episodes.md): "data" [rows, number columns], "columns" with their names, and
// "text/NAME" for each text column. The archive's comment says what the file was made from. Thread-safe.

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/hash/hash.h"
#include "millrace/episodes/csv_file.h"

namespace millrace::episodes {

// Errors: unsupported (4 GiB or more; a name with '/' in a text column).
[[nodiscard]] Result<std::string> npz_of_episode(const CsvEpisode& episode, const formats::EpisodeColumns& columns,
                                                 Hash128 identity, bool compress);

// The identity in the last bytes of an NPZ file of ours.
inline constexpr size_t kNpzTailBytes = 128;
std::optional<Hash128> npz_identity(std::string_view tail);

struct NpzEpisode {
  formats::EpisodeColumns columns;
  int64_t rows = 0;
  std::span<const std::byte> numbers;           // in the file, or in `unpacked`
  std::shared_ptr<const std::string> unpacked;  // null where they lie in the file
  std::vector<formats::CsvTexts> texts;
};
// All members are checked against their CRC-32. `source` is for messages. Errors: corruption, unsupported (an NPZ file
// of another program).
[[nodiscard]] Result<NpzEpisode> parse_npz_episode(std::span<const std::byte> file, std::string_view source);

}  // namespace millrace::episodes
