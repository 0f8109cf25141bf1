// SPDX-License-Identifier: Apache-2.0
// The bytes are an MP4. Whatever they are, opening says what is wrong or gives an index that holds together, and its
// frames are errors or pictures, the same in any order.
#include <algorithm>

#include "invariants.h"
#include "millrace/video/video.h"

namespace {

using namespace millrace;
using tokenizer::require;

constexpr int64_t kMaxPixels = 1 << 20;

std::optional<std::vector<std::byte>> frame_of(video::Video& video, int64_t number) {
  std::vector<std::byte> out(static_cast<size_t>(video.frame_bytes(video::PixelLayout::kHwc)));
  if (!video.read({&number, 1}, out)) return std::nullopt;
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // SAFETY: std::byte may alias any object.
  const MemoryReader file({reinterpret_cast<const std::byte*>(data), size}, "a.mp4");
  const auto video = video::open_video(file);
  if (!video) {
    require(video.error().code() != ErrorCode::kInternal, "what is wrong with a file is no defect of ours");
    return -1;
  }
  const video::FrameIndex& index = *(*video)->index();
  require(index.frames() > 0 && index.pts.size() == index.packet.size(), "every frame has a packet");
  require(std::is_sorted(index.pts.begin(), index.pts.end()), "frames are in the order of presentation");
  const video::VideoInfo& info = (*video)->info();
  if (info.width * info.height > kMaxPixels) return -1;
  const int64_t last = index.frames() - 1;
  const auto once = frame_of(**video, last);
  static_cast<void>(frame_of(**video, 0));
  const auto again = frame_of(**video, last);
  require(!once || !again || *once == *again, "a frame is the same each time");
  return once ? 0 : -1;
}
