// SPDX-License-Identifier: Apache-2.0
#pragma once

// Open videos of a dataset, kept for the next frames under a cap, and their indexes. Thread-safe. Private to this room.

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "millrace/base/sync.h"
#include "millrace/lerobot/tree.h"
#include "millrace/video/video.h"

namespace millrace::lerobot {

class Decoders {
 public:
  // At most `most_open` videos are open at once, and indexes of about `index_bytes` are kept besides those of open
  // ones. REQUIRES: `tree` outlives it, most_open >= 1.
  Decoders(const Tree& tree, int64_t most_open, int64_t index_bytes)
      : tree_(tree), most_open_(most_open), most_index_bytes_(index_bytes) {}

  struct Open {
    std::string path;
    std::unique_ptr<RandomReader> file;
    std::unique_ptr<video::Video> video;
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

  // Waits while `most_open` are in use. For callers that hold no other lease. Errors: those of open_video and of
  // opening the file.
  [[nodiscard]] Result<Lease> take(const std::string& path, const std::stop_token& stop);
  // Null before the file was opened, or when that was long ago.
  std::shared_ptr<const video::FrameIndex> index(const std::string& path);

 private:
  using Index = std::shared_ptr<const video::FrameIndex>;
  void give_back(Open open);
  [[nodiscard]] Result<Open> open(const std::string& path, const std::stop_token& stop);
  void keep_index(const std::string& path, const Index& index);

  const Tree& tree_;
  const int64_t most_open_, most_index_bytes_;
  Mutex mutex_;
  CondVar changed_;
  int64_t open_ GUARDED_BY(mutex_) = 0;      // free and in use
  std::list<Open> free_ GUARDED_BY(mutex_);  // the one used last first
  std::list<std::pair<std::string, Index>> indices_ GUARDED_BY(mutex_);
  std::map<std::string, std::list<std::pair<std::string, Index>>::iterator, std::less<>> by_path_ GUARDED_BY(mutex_);
  int64_t index_bytes_ GUARDED_BY(mutex_) = 0;
};

}  // namespace millrace::lerobot
