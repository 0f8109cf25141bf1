// SPDX-License-Identifier: Apache-2.0
#include "millrace/lerobot/decoders.h"

#include <algorithm>

namespace millrace::lerobot {
namespace {

// H.264 and HEVC keep up to 16 pictures for others to refer to, AV1 8; a few more are being decoded or given out.
constexpr int64_t kPicturesHeld = 20;

int64_t bytes_of(const video::FrameIndex& index) {
  return static_cast<int64_t>(index.packets.capacity() * sizeof(video::Packet) +
                              (index.pts.capacity() + index.packet.capacity()) * sizeof(int64_t));
}

}  // namespace

Result<Decoders::Lease> Decoders::take(const std::string& path, const std::stop_token& stop) {
  const std::stop_callback at_stop(stop, [this] { wake_all(); });
  std::list<Open> closed;  // closes behind the lock
  {
    MutexLock lock(mutex_);
    for (;;) {
      const auto found = std::ranges::find(free_, path, &Open::path);
      if (found != free_.end()) {
        Open open = std::move(*found);
        free_.erase(found);
        return Lease(*this, std::move(open));
      }
      if (open_ < most_open_) {
        ++open_;
        break;
      }
      if (!free_.empty()) {
        bytes_ -= free_.back().bytes;
        closed.splice(closed.begin(), free_, std::prev(free_.end()));
        break;  // its place is ours
      }
      if (stop.stop_requested()) return fail(ErrorCode::kCancelled, "stopped");
      changed_.wait(mutex_);
    }
  }
  closed.clear();
  auto opened = open(path, stop);
  if (!opened) {
    close_one();
    return tl::unexpected(opened.error());
  }
  // Its decoder begins to hold pictures with the first frame that is read.
  if (Status reserved = reserve(opened->bytes, stop); !reserved) {
    close_one();
    return tl::unexpected(reserved.error());
  }
  return Lease(*this, std::move(*opened));
}

void Decoders::wake_all() {
  const MutexLock lock(mutex_);
  changed_.notify_all();
}

void Decoders::close_one() {
  MutexLock lock(mutex_);
  --open_;
  changed_.notify_all();
}

Status Decoders::reserve(int64_t bytes, const std::stop_token& stop) {
  const std::stop_callback at_stop(stop, [this] { wake_all(); });
  std::list<Open> closed;  // closes behind the lock
  MutexLock lock(mutex_);
  while (bytes_ > 0 && bytes_ + bytes > most_bytes_) {
    if (!free_.empty()) {
      bytes_ -= free_.back().bytes;
      --open_;
      closed.splice(closed.begin(), free_, std::prev(free_.end()));
      continue;
    }
    if (stop.stop_requested()) return fail(ErrorCode::kCancelled, "stopped");
    changed_.wait(mutex_);
  }
  bytes_ += bytes;
  return {};
}

int64_t Decoders::bytes_held() const {
  MutexLock lock(mutex_);
  return bytes_;
}

int64_t Decoders::open_count() const {
  MutexLock lock(mutex_);
  return open_;
}

Result<Decoders::Open> Decoders::open(const std::string& path, const std::stop_token& stop) {
  Open open{.path = path, .file = nullptr, .video = nullptr, .bytes = 0};
  ASSIGN_OR_RETURN(open.file, tree_.open(path));
  ASSIGN_OR_RETURN(open.video, video::open_video(*open.file, {.threads = 1, .index = index(path), .stop = stop}));
  open.bytes = kPicturesHeld * open.video->frame_bytes(video::PixelLayout::kPlanes);
  keep_index(path, open.video->index());
  return open;
}

void Decoders::give_back(Open open) {
  MutexLock lock(mutex_);
  free_.push_front(std::move(open));
  changed_.notify_all();
}

std::shared_ptr<const video::FrameIndex> Decoders::index(const std::string& path) {
  MutexLock lock(mutex_);
  const auto known = by_path_.find(path);
  if (known == by_path_.end()) return nullptr;
  indices_.splice(indices_.begin(), indices_, known->second);
  return known->second->second;
}

void Decoders::keep_index(const std::string& path, const Index& index) {
  MutexLock lock(mutex_);
  if (by_path_.contains(path)) return;
  indices_.emplace_front(path, index);
  by_path_[path] = indices_.begin();
  index_bytes_ += bytes_of(*index);
  while (index_bytes_ > most_index_bytes_ && indices_.size() > 1) {
    index_bytes_ -= bytes_of(*indices_.back().second);
    by_path_.erase(indices_.back().first);
    indices_.pop_back();
  }
}

}  // namespace millrace::lerobot
