// SPDX-License-Identifier: Apache-2.0
#pragma once

// Reads rows of a robot dataset for training: numbers, decoded frames and task texts of windows around a row. A row is
// a frame of an episode. Row numbers run through the chosen episodes, one after another.
//
// Frames are found by integer arithmetic: row k of an episode is frame k of its video, or frame round(from_timestamp *
// fps) + k of a joined v3.0 video. Stored timestamps are not used. A window that passes an end of its episode repeats
// the edge row and marks it in `<feature>_is_pad`, as LeRobot does.
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
  std::optional<std::vector<int64_t>> episodes;        // the chosen ones; always used in ascending order
  std::optional<std::vector<std::string>> cameras;     // cameras and picture features to decode; nothing: all
  std::map<std::string, std::vector<int64_t>> deltas;  // relative rows of a feature's window
  // Windows in seconds, as LeRobot's delta_timestamps. Each time lies within tolerance_s of a multiple of 1/fps.
  std::map<std::string, std::vector<double>> delta_seconds;
  double tolerance_s = 1e-4;
  int64_t skip_first = 0, skip_last = 0;     // rows of each episode without a number; windows may reach them
  bool float_pictures = false;               // float32 in [0, 1] as LeRobot's; false: uint8
  bool float_table_pictures = false;         // the same for pictures in data files; LeRobot always gives floats
  bool channels_last = false;                // [height, width, 3]; false: [3, height, width]
  int64_t height = 0, width = 0;             // size of all pictures, made by images::resize; 0, 0: as stored
  images::Fit fit = images::Fit::kCrop;      // for resized pictures
  std::string cache;                         // folder of the node's cache (NodeCache); empty: no cache
  int64_t cache_bytes = 0;                   // as CacheOptions::cap_bytes
  int threads = 0;                           // 0: available_cpus(), at most 8
  int64_t most_decoders = 32;                // most open videos
  int64_t decoder_bytes = int64_t{1} << 30;  // most bytes of decoders, see Decoders; one may hold more
  int64_t row_bytes = int64_t{1} << 30;      // most bytes of kept numbers, and of kept pictures in data files
  int64_t index_bytes = int64_t{256} << 20;  // most bytes of kept video indexes
};

// One array of a batch: [batch, shape...].
struct FeedArray {
  enum class Type { kFloat32, kInt64, kBool, kUint8 };
  std::string name;
  Type type = Type::kFloat32;
  std::vector<int64_t> shape;  // shape of one row
  int64_t row_bytes = 0;
};

class Feed {
 public:
  // Reads the lists of meta/ and the index of one video of each camera, but no rows. Errors: those of Source::open;
  // invalid_argument (an episode or feature is missing, or a time lies between frames), unsupported (depth; pictures
  // in data files that are neither gray, RGB nor RGBA of 8 bits), those of NodeCache::open. With a cache, `stop` also
  // ends waiting for other processes in read(). The cache also keeps the list of files, and a later open() uses that
  // list while meta/ is unchanged. If another file was replaced, read() detects it.
  [[nodiscard]] static Result<std::unique_ptr<Feed>> open(const Location& root, FeedOptions options,
                                                          const std::stop_token& stop = {});

  const Source& source() const { return *source_; }
  const FeedOptions& options() const { return options_; }
  int64_t rows() const { return begins_.back(); }
  std::span<const size_t> episodes() const { return episodes_; }
  // The number of rows skipped in the chosen episodes.
  int64_t skipped_rows() const { return skipped_; }
  // Returns the number of the first row of chosen episode i. If i is the number of chosen episodes, returns the number
  // of all rows. An episode that is shorter than its skipped part has no rows.
  int64_t first_row(size_t i) const { return begins_[i]; }
  int64_t rows_of(size_t i) const { return begins_[i + 1] - begins_[i]; }

  // The arrays of a batch in LeRobot's order: cameras, columns as info.json has them, then padding marks.
  std::span<const FeedArray> arrays() const { return arrays_; }
  // The columns of text, then "task".
  std::span<const std::string> texts() const { return texts_; }

  // Fills `arrays[i]`, which have numbers.size() * arrays()[i].row_bytes bytes each, and `texts[i]`. Reads each data
  // file once. Sorts the frames by file and group of pictures, and decodes each group once, on several threads.
  // Errors: invalid_argument (no such row), corruption (naming file, episode and frame), cancelled, unavailable (a
  // file was replaced since an earlier open() listed the files), those of reading.
  [[nodiscard]] Status read(std::span<const int64_t> numbers, std::span<std::byte* const> arrays,
                            std::span<std::vector<std::string>> texts, const std::stop_token& stop = {}) const;

 private:
  struct Camera {
    std::string name;
    size_t place = 0;                           // position in info.cameras()
    std::vector<int64_t> deltas;                // {0} without a window
    int64_t height = 0, width = 0;              // size of its videos
    int64_t given_height = 0, given_width = 0;  // size of its pictures in a batch
    size_t array = 0;

    bool is_resized() const { return given_height != height || given_width != width; }
  };
  // Pictures inside data files.
  struct TableCamera {
    std::string name;
    std::vector<int64_t> deltas;  // {0} without a window
    images::Picture first;        // the first row's, without pixels: all have its size and channels
    int64_t given_height = 0, given_width = 0;
    size_t array = 0;
  };
  struct BatchColumn {
    std::vector<int64_t> deltas;  // {0} without a window
    size_t row_bytes = 0;         // bytes of one table row
    size_t array = 0;             // position in arrays(), or in texts() for text
  };
  // State of one process, not shared with a forked child.
  struct Opened {
    RowStore rows;
    Decoders decoders;
    PictureStore pictures;
    std::unique_ptr<FilesCheck> check;  // checks a kept list of files; else null
  };
  // A frame of the feed.
  struct FrameLocation {
    size_t episode = 0;  // position in source().dataset.episodes
    int64_t row = 0;     // row of the episode
  };
  struct RowJob;
  struct FrameJob;
  // Pictures of one data file, sorted by row, for one thread.
  struct PictureJob {
    struct Wanted {
      int64_t row = 0;     // row of the file
      size_t camera = 0;   // position in table_cameras_
      size_t slot = 0;     // position of the picture in the camera's array
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
  std::unique_ptr<KeptFiles> kept_;  // set if a cache is used
  std::unique_ptr<Source> source_;
  std::vector<size_t> episodes_;
  std::vector<int64_t> begins_;
  int64_t skipped_ = 0;
  std::vector<Camera> cameras_;
  std::vector<TableCamera> table_cameras_;
  std::vector<StoredColumn> stored_;
  std::vector<BatchColumn> columns_;  // one per entry of stored_
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
