// SPDX-License-Identifier: Apache-2.0
#pragma once

// Episodes as arrays: a packed file, or a tree of NPZ files, through one interface. Files are mapped, so that arrays
// are the files' own memory. Thread-safe; usable after fork. Episodes may outlive the dataset.

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

// The name of a packed file in a folder.
inline constexpr const char* kPackName = "episodes.mrpack";
inline constexpr const char* kPackEnding = ".mrpack";

struct Episode {
  std::string name;
  std::shared_ptr<const formats::EpisodeColumns> columns;
  int64_t rows = 0;
  std::span<const std::byte> numbers;                           // [rows, number columns] float32 or float64, row-major
  std::shared_ptr<const void> owner;                            // of `numbers`
  std::shared_ptr<const std::vector<formats::CsvTexts>> texts;  // of each text column
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
  // The path of each episode below the dataset's folder, without the extension.
  virtual const std::vector<std::string>& names() const = 0;
  int64_t size() const { return static_cast<int64_t>(names().size()); }

  // The whole episode. Errors: corruption, naming file and place; those of opening a file; invalid_argument (an NPZ
  // file with other columns than the first). REQUIRES: 0 <= i < size().
  [[nodiscard]] virtual Result<Episode> episode(int64_t i) const = 0;
  // The first row of each episode among all, and their number behind it: [size() + 1]. Opens every NPZ file, several
  // at once; `progress` counts them as items. Errors: as of episode(); cancelled.
  [[nodiscard]] virtual Result<std::vector<uint64_t>> first_rows(Progress* progress = nullptr,
                                                                 const std::stop_token& stop = {}) const = 0;

  // The one file that holds all rows; null for a tree of NPZ files.
  virtual const formats::EpisodePack* pack() const { return nullptr; }
  virtual AllRows all_rows() const { return {}; }
};

// `path`: a packed file, a folder with one (kPackName), an NPZ file, or a folder or pattern of NPZ files. Errors:
// not_found, unsupported (a URL of another machine), corruption.
[[nodiscard]] Result<std::shared_ptr<const Episodes>> open_episodes(const std::string& path);

// One CSV file; a URL too. Its column types are its own. Errors: those of formats::read_csv and of reading.
[[nodiscard]] Result<Episode> read_csv_episode(const std::string& url, bool is_float64,
                                               const formats::CsvOptions& options);

}  // namespace millrace::episodes
