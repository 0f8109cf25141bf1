// SPDX-License-Identifier: Apache-2.0
#pragma once

// Reads episodes as arrays, from a packed file or a tree of NPZ files, through one interface. Files are mapped, and
// arrays point into the mapped files. Thread-safe; usable after fork. Episodes may outlive the dataset.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "millrace/base/progress.h"
#include "millrace/base/status.h"
#include "millrace/formats/csv.h"
#include "millrace/formats/episode_pack.h"

namespace millrace::episodes {

// Name of the packed file in a folder.
inline constexpr const char* kPackName = "episodes.mrpack";
inline constexpr const char* kPackEnding = ".mrpack";

struct Episode {
  std::string name;
  std::shared_ptr<const formats::EpisodeColumns> columns;
  int64_t rows = 0;
  std::span<const std::byte> numbers;                           // [rows, number columns] float32 or float64, row-major
  std::shared_ptr<const void> owner;                            // keeps `numbers` alive
  std::shared_ptr<const std::vector<formats::CsvTexts>> texts;  // one for each text column
};

// The rows of a packed file as one matrix.
struct AllRows {
  std::span<const std::byte> numbers;  // [rows, number columns]; check() first
  std::shared_ptr<const void> owner;
};

class Episodes {
 public:
  virtual ~Episodes() = default;

  virtual const formats::EpisodeColumns& columns() const = 0;
  // Returns the path of each episode below the dataset's folder, without the extension.
  virtual const std::vector<std::string>& names() const = 0;
  int64_t size() const { return static_cast<int64_t>(names().size()); }

  // Reads a whole episode. Errors: corruption, naming file and place; those of opening a file; invalid_argument (the
  // columns of an NPZ file differ from those of the first). REQUIRES: 0 <= i < size().
  [[nodiscard]] virtual Result<Episode> episode(int64_t i) const = 0;
  // Returns the number of each episode's first row among all rows, and then the number of all rows: size() + 1 values.
  // Opens every NPZ file, several in parallel; `progress` counts the files as items. Errors: as episode(); cancelled.
  [[nodiscard]] virtual Result<std::vector<uint64_t>> first_rows(Progress* progress = nullptr,
                                                                 const std::stop_token& stop = {}) const = 0;

  // Returns the packed file with all rows; null for a tree of NPZ files.
  virtual const formats::EpisodePack* pack() const { return nullptr; }
  virtual AllRows all_rows() const { return {}; }
};

// Opens a dataset. `path`: a packed file, a folder with a packed file (kPackName), an NPZ file, or a folder or pattern
// of NPZ files. Errors: not_found, unsupported (a remote URL), corruption.
[[nodiscard]] Result<std::shared_ptr<const Episodes>> open_episodes(const std::string& path);

// Reads one CSV file; `url` may be a path. Column types are decided from this file alone. Errors: those of
// formats::read_csv and of reading.
[[nodiscard]] Result<Episode> read_csv_episode(const std::string& url, bool is_float64,
                                               const formats::CsvOptions& options);

}  // namespace millrace::episodes
