// SPDX-License-Identifier: Apache-2.0
#pragma once

// Keeps videos of a dataset and their indexes open for the next frames, under caps on their number and bytes.
// Thread-safe. Private to this room.

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "millrace/base/thread/sync.h"
#include "millrace/lerobot/tree.h"
#include "millrace/video/video.h"

namespace millrace::lerobot {

class Decoders {
 public:
  // Keeps at most `most_open` videos open at once. Their decoders together hold at most `most_bytes`, as bytes_held()
  // counts; a single decoder may hold more. Also keeps about `index_bytes` of indexes. REQUIRES: `tree` outlives it,
  // most_open >= 1.
  Decoders(const Tree& tree, int64_t most_open, int64_t most_bytes, int64_t index_bytes)
      : tree_(tree), most_open_(most_open), most_bytes_(most_bytes), most_index_bytes_(index_bytes) {}

  struct Open {
    std::string path;
    std::unique_ptr<RandomReader> file;
    std::unique_ptr<video::Video> video;
    int64_t bytes = 0;  // held by its decoder
  };
  // An open video. No one else uses it until the lease is dropped.
  class Lease {
   public:
    Lease(Decoders& decoders, Open open) : decoders_(&decoders), open_(std::move(open)) {}
    Lease(Lease&& other) noexcept : decoders_(std::exchange(other.decoders_, nullptr)), open_(std::move(other.open_)) {}
    Lease& operator=(Lease&&) = delete;
    ~Lease() {
      if (decoders_ != nullptr) decoders_->give_back(std::move(open_));
    }
    video::Video& video() const { return *open_.video; }

   private:
    Decoders* decoders_;
    Open open_;
  };

  // Waits while `most_open` videos or `most_bytes` are in use. The caller must hold no other lease. Errors: those of
  // open_video and of opening the file.
  [[nodiscard]] Result<Lease> take(const std::string& path, const std::stop_token& stop);
  // Estimates the bytes of the open decoders from the size of their pictures, because FFmpeg does not tell.
  int64_t bytes_held() const;
  int64_t open_count() const;
  // Returns the index of a file. Null if the file was not opened yet, or so long ago that its index was dropped.
  std::shared_ptr<const video::FrameIndex> index(const std::string& path);

 private:
  using Index = std::shared_ptr<const video::FrameIndex>;
  void give_back(Open open);
  [[nodiscard]] Result<Open> open(const std::string& path, const std::stop_token& stop);
  void keep_index(const std::string& path, const Index& index);
  // Waits until the bytes of one more decoder fit. Errors: cancelled.
  [[nodiscard]] Status reserve(int64_t bytes, const std::stop_token& stop);
  void wake_all();
  void close_one();  // uncounts a video that reserved no bytes

  const Tree& tree_;
  const int64_t most_open_, most_bytes_, most_index_bytes_;
  mutable Mutex mutex_;
  CondVar changed_;
  int64_t open_ GUARDED_BY(mutex_) = 0;      // number of open videos, free and in use
  int64_t bytes_ GUARDED_BY(mutex_) = 0;     // sum of the reserved bytes
  std::list<Open> free_ GUARDED_BY(mutex_);  // most recently used first
  std::list<std::pair<std::string, Index>> indices_ GUARDED_BY(mutex_);
  std::map<std::string, std::list<std::pair<std::string, Index>>::iterator, std::less<>> by_path_ GUARDED_BY(mutex_);
  int64_t index_bytes_ GUARDED_BY(mutex_) = 0;
};

}  // namespace millrace::lerobot
