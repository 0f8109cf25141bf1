// SPDX-License-Identifier: Apache-2.0
#pragma once

// Writes and reads packed episodes (docs/format/episode_pack.md). One file holds the concatenated numbers of all
// episodes of a dataset; readers map it and use the numbers in place. Text columns are stored as codes into a list of
// their distinct texts. Blocks of the file have hashes; a reader checks each block when it first uses it.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "millrace/base/hash/hash.h"
#include "millrace/base/io/io.h"
#include "millrace/base/status.h"
#include "millrace/formats/csv.h"

namespace millrace::formats {

// The columns that all episodes of a dataset have.
struct EpisodeColumns {
  std::vector<std::string> numbers, texts;  // names, in the order of the arrays
  bool is_float64 = false;                  // numbers are float64; false: float32

  size_t number_bytes() const { return is_float64 ? 8 : 4; }
  size_t row_bytes() const { return numbers.size() * number_bytes(); }
  bool operator==(const EpisodeColumns&) const = default;
};

// Writes one file from front to back. For one thread. Memory: for each text column 4 bytes per row and its distinct
// texts, and the names of the episodes.
class EpisodePackWriter {
 public:
  // `identity` identifies the sources of the file; readers return it. `out` must outlive the writer.
  EpisodePackWriter(ByteSink& out, EpisodeColumns columns, Hash128 identity);

  // Adds an episode. `numbers`: [rows, number columns] in C order. `texts`: `rows` cells for each text column. Errors:
  // those of the sink; invalid_argument (2^32 distinct texts in a column). REQUIRES: the sizes fit the columns.
  [[nodiscard]] Status add(std::string_view name, int64_t rows, std::span<const std::byte> numbers,
                           std::span<const CsvTexts> texts);
  // Writes the index. Nothing may be added afterwards.
  [[nodiscard]] Status finish();

  int64_t bytes() const { return static_cast<int64_t>(written_); }
  int64_t rows() const { return static_cast<int64_t>(first_rows_.back()); }

 private:
  [[nodiscard]] Status write(std::string_view bytes);

  ByteSink& out_;
  const EpisodeColumns columns_;
  const Hash128 identity_;
  std::string head_;  // written with the first episode
  uint64_t written_ = 0;
  std::string block_;  // bytes since the last whole block, for its hash
  std::vector<uint64_t> hashes_, first_rows_{0};
  std::vector<std::string> names_;
  std::vector<std::unordered_map<std::string, uint32_t>> codes_of_;
  std::vector<std::vector<uint32_t>> codes_;
};

// Reads the identity of a packed file from its first bytes. Errors: corruption (not packed episodes), those of
// reading.
[[nodiscard]] Result<Hash128> episode_pack_identity(const RandomReader& file);

// A packed file in memory, or mapped. The bytes must outlive this object. Thread-safe.
class EpisodePack {
 public:
  // Checks the head, the foot and the index; `source` is for messages. Errors: corruption (cut, damaged, not such a
  // file), unsupported (a version that this build does not know).
  [[nodiscard]] static Result<std::unique_ptr<EpisodePack>> parse(std::span<const std::byte> file, std::string source);

  const EpisodeColumns& columns() const { return columns_; }
  Hash128 identity() const { return identity_; }
  int64_t episodes() const { return static_cast<int64_t>(names_.size()); }
  int64_t rows() const { return static_cast<int64_t>(first_rows_.back()); }
  const std::vector<std::string>& names() const { return names_; }
  // Has episodes() + 1 values: episode i has the rows [first_rows()[i], first_rows()[i + 1]).
  const std::vector<uint64_t>& first_rows() const { return first_rows_; }

  // Returns the numbers: [rows(), number columns], row-major, at a multiple of 64 bytes of the file. They are not
  // checked; see check_rows().
  std::span<const std::byte> numbers() const { return numbers_; }
  // Checks the blocks that hold rows [begin, end) of `numbers` and have not been checked yet. Errors: corruption,
  // naming the block. REQUIRES: 0 <= begin <= end <= rows().
  [[nodiscard]] Status check_rows(int64_t begin, int64_t end) const;
  // Returns the cells of rows [begin, end) of text column `column`. Errors: corruption.
  [[nodiscard]] Result<CsvTexts> texts(size_t column, int64_t begin, int64_t end) const;

 private:
  EpisodePack() = default;
  [[nodiscard]] Status read_index(std::span<const std::byte> index);
  [[nodiscard]] Status check_bytes(size_t begin, size_t end) const;

  std::span<const std::byte> file_, numbers_;
  std::string source_;
  EpisodeColumns columns_;
  Hash128 identity_;
  size_t index_at_ = 0, codes_at_ = 0;
  std::vector<uint64_t> hashes_, first_rows_;
  std::vector<std::string> names_;
  std::vector<std::vector<std::string>> distinct_;    // of each text column
  std::unique_ptr<std::atomic<uint64_t>[]> checked_;  // a bit for each block
};

}  // namespace millrace::formats
