// SPDX-License-Identifier: Apache-2.0
#pragma once

// Writes and reads an episode as an NPZ file (docs/episodes.md): "data" [rows, number columns], "columns" with their
// names, and "text/NAME" for each text column. The archive's comment holds the identity of the source. Thread-safe.

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/hash/hash.h"
#include "millrace/episodes/csv_file.h"

namespace millrace::episodes {

// Makes the NPZ file of an episode. Errors: unsupported (4 GiB or more; a text column with '/' in its name).
[[nodiscard]] Result<std::string> npz_of_episode(const CsvEpisode& episode, const formats::EpisodeColumns& columns,
                                                 Hash128 identity, bool compress);

// npz_identity() returns the identity in the last kNpzTailBytes of an NPZ file that npz_of_episode() made.
inline constexpr size_t kNpzTailBytes = 128;
std::optional<Hash128> npz_identity(std::string_view tail);

struct NpzEpisode {
  formats::EpisodeColumns columns;
  int64_t rows = 0;
  std::span<const std::byte> numbers;           // point into the file or into `unpacked`
  std::shared_ptr<const std::string> unpacked;  // null: `numbers` points into the file
  std::vector<formats::CsvTexts> texts;
};
// Parses an episode. Checks all members against their CRC-32. `source` is for messages. Errors: corruption,
// unsupported (an NPZ file of another program).
[[nodiscard]] Result<NpzEpisode> parse_npz_episode(std::span<const std::byte> file, std::string_view source);

}  // namespace millrace::episodes
