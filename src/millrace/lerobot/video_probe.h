// SPDX-License-Identifier: Apache-2.0
#pragma once

// Decodes frames for FrameProbe with FFmpeg (video/video.h). Thread-safe.

#include <map>
#include <memory>
#include <string>

#include "millrace/base/thread/sync.h"
#include "millrace/lerobot/frame_probe.h"
#include "millrace/video/video.h"

namespace millrace::lerobot {

class VideoProbe final : public FrameProbe {
 public:
  explicit VideoProbe(std::stop_token stop = {}) : stop_(std::move(stop)) {}
  [[nodiscard]] Result<std::vector<FrameFacts>> probe(const RandomReader& file,
                                                      std::span<const int64_t> frames) override;

 private:
  using Index = std::shared_ptr<const video::FrameIndex>;
  [[nodiscard]] Result<std::unique_ptr<video::Video>> open(const RandomReader& file);

  const std::stop_token stop_;
  Mutex mutex_;
  // Indexes of recently opened files, by name and version: each episode of a v3.0 file needs the file's index.
  std::map<std::string, Index> indices_ GUARDED_BY(mutex_);
};

}  // namespace millrace::lerobot
