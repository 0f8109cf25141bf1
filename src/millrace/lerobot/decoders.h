// SPDX-License-Identifier: Apache-2.0
#pragma once

// Open videos of a dataset, kept for the next frames under caps of number and bytes, and their indexes. Thread-safe.
// Private to this room.

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
  // At most `most_open` videos are open at once, whose decoders hold `most_bytes` as bytes_held() counts; a single one
  // may hold more. Indexes of about `index_bytes` are kept besides those of open ones.
  // REQUIRES: `tree` outlives it, most_open >= 1.
  Decoders(const Tree& tree, int64_t most_open, int64_t most_bytes, int64_t index_bytes)
      : tree_(tree), most_open_(most_open), most_bytes_(most_bytes), most_index_bytes_(index_bytes) {}

  struct Open {
    std::string path;
    std::unique_ptr<RandomReader> file;
    std::unique_ptr<video::Video> video;
    int64_t bytes = 0;  // that its decoder holds
  };
  // An open video that nobody else uses until it is dropped.
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

  // Waits while `most_open` or `most_bytes` are in use. For callers that hold no other lease. Errors: those of
  // open_video and of opening the file.
  [[nodiscard]] Result<Lease> take(const std::string& path, const std::stop_token& stop);
  // Estimated bytes of the open decoders, from the size of their pictures: FFmpeg does not say.
  int64_t bytes_held() const;
  int64_t open_count() const;
  // Null before the file was opened, or when that was long ago.
  std::shared_ptr<const video::FrameIndex> index(const std::string& path);

 private:
  using Index = std::shared_ptr<const video::FrameIndex>;
  void give_back(Open open);
  [[nodiscard]] Result<Open> open(const std::string& path, const std::stop_token& stop);
  void keep_index(const std::string& path, const Index& index);
  // Waits until the bytes of one more decoder fit. Errors: cancelled.
  [[nodiscard]] Status reserve(int64_t bytes, const std::stop_token& stop);
  void wake_all();
  void close_one();  // that was counted in open_, with no bytes

  const Tree& tree_;
  const int64_t most_open_, most_bytes_, most_index_bytes_;
  mutable Mutex mutex_;
  CondVar changed_;
  int64_t open_ GUARDED_BY(mutex_) = 0;      // free and in use
  int64_t bytes_ GUARDED_BY(mutex_) = 0;     // of those whose bytes are reserved
  std::list<Open> free_ GUARDED_BY(mutex_);  // the one used last first
  std::list<std::pair<std::string, Index>> indices_ GUARDED_BY(mutex_);
  std::map<std::string, std::list<std::pair<std::string, Index>>::iterator, std::less<>> by_path_ GUARDED_BY(mutex_);
  int64_t index_bytes_ GUARDED_BY(mutex_) = 0;
};

}  // namespace millrace::lerobot
