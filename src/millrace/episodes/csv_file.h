// SPDX-License-Identifier: Apache-2.0
#pragma once

// Reads one CSV file as an episode. Thread-safe.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/formats/csv.h"
#include "millrace/formats/episode_pack.h"

namespace millrace::episodes {

// The columns of a dataset's CSV files, and their types.
struct CsvSchema {
  std::vector<std::string> names;
  std::vector<formats::CsvType> types;  // kUnknown is read as text

  bool is_decided() const;
  formats::EpisodeColumns columns(bool is_float64) const;
};

// The text of a file. A small file is read into memory that the thread reuses for its next file, because new pages
// would cost a third of the time of parsing. The text is therefore valid until the thread reads another file.
class CsvText {
 public:
  // Errors: those of opening and reading; resource_exhausted (more than 16 GiB).
  [[nodiscard]] static Result<CsvText> read(const std::string& url);
  std::string_view text() const { return text_; }

 private:
  std::unique_ptr<char[]> own_;  // memory of a large file
  std::string_view text_;
};

struct CsvEpisode {
  int64_t rows = 0;
  std::span<const std::byte> numbers;  // [rows, number columns] float32 or float64, row-major
  std::vector<formats::CsvTexts> texts;
  std::vector<int64_t> rounded;       // as CsvTable::rounded
  std::shared_ptr<const void> owner;  // keeps `numbers` alive
};

// Parses an episode. Errors: those of formats::read_csv. REQUIRES: the names of `head` are those of `schema`.
[[nodiscard]] Result<CsvEpisode> parse_csv_episode(std::string_view text, std::string_view name,
                                                   const formats::CsvHead& head, const CsvSchema& schema,
                                                   bool is_float64, const formats::CsvOptions& options);

}  // namespace millrace::episodes
