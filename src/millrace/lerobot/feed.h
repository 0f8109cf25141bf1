// SPDX-License-Identifier: Apache-2.0
#pragma once

// Rows of a robot dataset for training: numbers, decoded frames and task texts of windows around a row. A row is a
// frame of an episode. Row numbers count the chosen episodes, one behind the other.
//
// Which frame belongs to a row is integer arithmetic: frame k of an episode is frame k of its video, or of a joined
// video of v3.0 frame round(from_timestamp * fps) + k. Stored timestamps decide nothing. A window that passes an end
// of its episode repeats the edge row and says so in `<feature>_is_pad`, as LeRobot's.
//
// Thread-safe. After a fork the child opens its own files and decoders.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "millrace/base/thread/per_process.h"
#include "millrace/images/images.h"
#include "millrace/lerobot/decoders.h"
#include "millrace/lerobot/kept_files.h"
#include "millrace/lerobot/picture_store.h"
#include "millrace/lerobot/row_store.h"
#include "millrace/lerobot/source.h"

namespace millrace::lerobot {

struct FeedOptions {
  std::optional<std::vector<int64_t>> episodes;        // whose rows are there, in ascending order whatever this one is
  std::optional<std::vector<std::string>> cameras;     // that are decoded, and features of pictures; nothing: all
  std::map<std::string, std::vector<int64_t>> deltas;  // of a feature: the rows of its window, relative
  // The same in seconds, as LeRobot's delta_timestamps; each within tolerance_s of a multiple of 1/fps.
  std::map<std::string, std::vector<double>> delta_seconds;
  double tolerance_s = 1e-4;
  int64_t skip_first = 0, skip_last = 0;     // rows of each episode that have no number; windows see them
  bool float_pictures = false;               // float32 in [0, 1] as LeRobot's, else uint8
  bool float_table_pictures = false;         // the same of pictures inside of data files, which LeRobot always gives so
  bool channels_last = false;                // [height, width, 3], else [3, height, width]
  int64_t height = 0, width = 0;             // of all pictures, as images::resize makes them; 0, 0: as they are stored
  images::Fit fit = images::Fit::kCrop;      // of those that are resized
  std::string cache;                         // a folder for the cache of the node (NodeCache); empty: none
  int64_t cache_bytes = 0;                   // as CacheOptions::cap_bytes
  int threads = 0;                           // 0: available_cpus(), at most 8
  int64_t most_decoders = 32;                // open videos
  int64_t decoder_bytes = int64_t{1} << 30;  // that their decoders hold, see Decoders; one may hold more
  int64_t row_bytes = int64_t{1} << 30;      // of numbers of data files that are kept, and of pictures inside of them
  int64_t index_bytes = int64_t{256} << 20;  // of indexes of videos that are kept
};

// One array of a batch: [batch, shape...].
struct FeedArray {
  enum class Type { kFloat32, kInt64, kBool, kUint8 };
  std::string name;
  Type type = Type::kFloat32;
  std::vector<int64_t> shape;  // of one row
  int64_t row_bytes = 0;
};

class Feed {
 public:
  // Reads the lists of meta/ and the index of one video of each camera, no rows. Errors: as of Source::open;
  // invalid_argument (an episode or feature that is not there, a time between frames), unsupported (depth, and pictures
  // inside of data files that are neither gray, RGB nor RGBA of 8 bits); those of NodeCache::open. `stop` also ends
  // waiting for other processes in read(), if there is a cache. With a cache the list of files is kept in it, and a
  // later open takes it while meta/ stays as it was; should another file have been replaced, read() finds it out.
  [[nodiscard]] static Result<std::unique_ptr<Feed>> open(const Location& root, FeedOptions options,
                                                          const std::stop_token& stop = {});

  const Source& source() const { return *source_; }
  const FeedOptions& options() const { return options_; }
  int64_t rows() const { return begins_.back(); }
  std::span<const size_t> episodes() const { return episodes_; }
  // The rows of these episodes that are skipped.
  int64_t skipped_rows() const { return skipped_; }
  // The first row of chosen episode i, or the number of all rows for i = number of chosen episodes. An episode that is
  // shorter than its skipped part has no rows.
  int64_t first_row(size_t i) const { return begins_[i]; }
  int64_t rows_of(size_t i) const { return begins_[i + 1] - begins_[i]; }

  // In LeRobot's order: cameras, columns as info.json has them, then padding marks.
  std::span<const FeedArray> arrays() const { return arrays_; }
  // Columns of text, and behind them "task".
  std::span<const std::string> texts() const { return texts_; }

  // Fills `arrays[i]`, of numbers.size() * arrays()[i].row_bytes bytes each, and `texts[i]`. Reads each data file once,
  // sorts the frames by file and group of pictures, decodes each group once, on several threads.
  // Errors: invalid_argument (no such row), corruption (naming file, episode and frame), cancelled, unavailable (a file
  // was replaced since the files were listed for an earlier open), those of reading.
  [[nodiscard]] Status read(std::span<const int64_t> numbers, std::span<std::byte* const> arrays,
                            std::span<std::vector<std::string>> texts, const std::stop_token& stop = {}) const;

 private:
  struct Camera {
    std::string name;
    size_t place = 0;                           // in info.cameras()
    std::vector<int64_t> deltas;                // {0} without a window
    int64_t height = 0, width = 0;              // of its videos
    int64_t given_height = 0, given_width = 0;  // of its pictures in a batch
    size_t array = 0;

    bool is_resized() const { return given_height != height || given_width != width; }
  };
  // Pictures inside of data files.
  struct TableCamera {
    std::string name;
    std::vector<int64_t> deltas;  // {0} without a window
    images::Picture first;        // of the first row, without its pixels: all have its size and channels
    int64_t given_height = 0, given_width = 0;
    size_t array = 0;
  };
  struct BatchColumn {
    std::vector<int64_t> deltas;  // {0} without a window
    size_t row_bytes = 0;         // of one row of the table
    size_t array = 0;             // in arrays(); of text in texts()
  };
  // State of one process, not shared with a forked child.
  struct Opened {
    RowStore rows;
    Decoders decoders;
    PictureStore pictures;
    std::unique_ptr<FilesCheck> check;  // of a kept list of files; else null
  };
  // A frame of the feed.
  struct FrameLocation {
    size_t episode = 0;  // in source().dataset.episodes
    int64_t row = 0;     // of the episode
  };
  struct RowJob;
  struct FrameJob;
  // Pictures of one data file for one thread, by row.
  struct PictureJob {
    struct Wanted {
      int64_t row = 0;     // of the file
      size_t camera = 0;   // in table_cameras_
      size_t slot = 0;     // picture of the camera's array, of all rows
      size_t episode = 0;  // for messages
    };
    std::string path;
    std::vector<Wanted> wanted;
  };

  Feed() = default;
  [[nodiscard]] Result<Tree> list_files(const Location& root, const std::stop_token& stop);
  [[nodiscard]] Status choose_windows();
  [[nodiscard]] Status choose_episodes();
  [[nodiscard]] Status choose_columns();
  [[nodiscard]] Status choose_cameras(const std::stop_token& stop);
  [[nodiscard]] Status choose_table_cameras();
  std::vector<std::string> table_camera_names() const;
  void add_table_camera(TableCamera& camera, bool has_window);
  [[nodiscard]] Status refuse_unknown_cameras() const;
  bool is_chosen(const Feature& feature) const;
  std::vector<int64_t> window_of(const std::string& feature) const;
  void add_array(std::string name, FeedArray::Type type, std::vector<int64_t> shape);
  FrameLocation locate(int64_t number) const;
  int64_t clamp(const FrameLocation& at, int64_t delta) const;
  std::vector<RowJob> row_jobs(std::span<const FrameLocation> locations) const;
  [[nodiscard]] Status read_rows(const RowJob& job, std::span<const FrameLocation> locations,
                                 std::span<std::byte* const> arrays, std::span<std::vector<std::string>> texts) const;
  [[nodiscard]] Status copy_rows(const StoredRows& rows, const std::string& path,
                                 std::span<const FrameLocation> locations, std::span<const size_t> which,
                                 std::span<std::byte* const> arrays, std::span<std::vector<std::string>> texts) const;
  std::vector<FrameJob> frame_jobs(std::span<const FrameLocation> locations, Decoders& decoders) const;
  [[nodiscard]] Status decode(const FrameJob& job, std::byte* out, Decoders& decoders,
                              const std::stop_token& stop) const;
  std::vector<PictureJob> picture_jobs(std::span<const FrameLocation> locations, PictureStore& store) const;
  [[nodiscard]] Status put_pictures(const PictureJob& job, std::span<std::byte* const> arrays, PictureStore& store,
                                    const std::stop_token& stop) const;
  [[nodiscard]] Result<images::Picture> table_picture(const TableCamera& camera, const std::string& file,
                                                      const std::string& shown) const;
  void mark_padding(std::span<const FrameLocation> locations, std::span<std::byte* const> arrays) const;

  FeedOptions options_;
  std::unique_ptr<KeptFiles> kept_;  // where a cache is used
  std::unique_ptr<Source> source_;
  std::vector<size_t> episodes_;
  std::vector<int64_t> begins_;
  int64_t skipped_ = 0;
  std::vector<Camera> cameras_;
  std::vector<TableCamera> table_cameras_;
  std::vector<StoredColumn> stored_;
  std::vector<BatchColumn> columns_;  // of stored_
  size_t episode_column_ = 0, task_column_ = 0;
  struct Padding {
    std::vector<int64_t> deltas;
    size_t array = 0;
  };
  std::vector<Padding> paddings_;
  std::vector<FeedArray> arrays_;
  std::vector<std::string> texts_;
  std::unique_ptr<PerProcess<Opened>> opened_;
};

}  // namespace millrace::lerobot
