// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "millrace/base/text/units.h"
#include "millrace/base/thread/sync.h"
#include "millrace/formats/mp4.h"
#include "millrace/lerobot/checks.h"

namespace millrace::lerobot {
namespace {

using formats::Mp4File;
using formats::Mp4Track;

// LeRobot's default of tolerance_s, and the longest group of pictures that costs little.
constexpr double kTimeTolerance = 1e-4;
constexpr int64_t kLongGroup = 10;

// The frames of an episode in a file, by the metadata.
struct Clip {
  const Episode* episode = nullptr;
  int64_t position = 0;
  double from_s = 0, to_s = 0;  // v3.0
};

struct VideoFile {
  std::string path;
  size_t camera = 0;
  std::vector<Clip> clips;

  // What was found in it:
  bool read = false;
  bool decoded = false;
  int64_t samples = 0;
  std::string encoding;  // all that has to be equal for joining by copying
  bool is_av1 = false, index_is_last = false;
};

class VideoCheck {
 public:
  VideoCheck(const Checking& checking, const std::vector<const Feature*>& cameras)
      : checking_(checking), info_(checking.dataset.info), cameras_(cameras), rate_(info_.frame_rate()) {}

  Status check(VideoFile& file) const {
    if (checking_.is_pointer(file.path)) return {};
    if (const TreeFile* const listed = checking_.dataset.tree.find(file.path); listed != nullptr && listed->size == 0) {
      checking_.report.add(77, place(file), "the video has zero bytes");
      return {};
    }
    ASSIGN_OR_RETURN(const auto reader, checking_.dataset.tree.open(file.path));
    const Result<Mp4File> boxes = formats::read_mp4(*reader);
    if (!boxes) {
      if (boxes.error().code() != ErrorCode::kCorruption) return tl::unexpected(boxes.error());
      checking_.report.add(8, place(file), boxes.error().message());
      return {};
    }
    const Mp4Track* track = boxes->video();
    if (track == nullptr || track->samples == 0) {
      checking_.report.add(8, place(file),
                           track == nullptr    ? "it has no video track"
                           : boxes->fragmented ? "it is fragmented: its frames are in no index"
                                               : "its video track has no frames");
      return {};
    }
    file.read = true;
    file.samples = track->samples;
    file.is_av1 = formats::codec_name(*track) == "av1";
    file.index_is_last = boxes->mdat_offset >= 0 && boxes->mdat_offset < boxes->moov_offset;
    check_encoding(file, *track);
    check_times(file, *track);
    check_groups(file, *track);
    if (info_.version == Version::kV30) {
      check_clips(file, *track);
    } else {
      check_count(file);
    }
    return decode(file, *reader);
  }

 private:
  Place place(const VideoFile& file, const Clip* clip = nullptr) const {
    const Clip* only = clip == nullptr && is_v2(info_.version) && !file.clips.empty() ? &file.clips[0] : clip;
    return {.file = file.path,
            .data = {.episode = only == nullptr ? -1 : only->episode->index, .column = cameras_[file.camera]->name}};
  }

  void check_encoding(VideoFile& file, const Mp4Track& track) const {
    const Feature& camera = *cameras_[file.camera];
    const std::string codec = formats::codec_name(track), format = formats::pixel_format(track);
    file.encoding = fmt::format("{} {} {}x{} at 1/{}", codec, format, track.width, track.height, track.timescale);
    if (const auto size = camera.picture_size(); size && *size != std::pair(track.height, track.width)) {
      checking_.report.add(31, place(file),
                           fmt::format("its pictures are {} x {} (height x width), the feature says {} x {}",
                                       track.height, track.width, size->first, size->second));
    }
    if (camera.video.codec && !same_codec(*camera.video.codec, codec)) {
      checking_.report.add(48, place(file),
                           fmt::format("its codec is {}, info.json says {}", codec, *camera.video.codec));
    }
    if (camera.video.pixel_format && !format.empty() && !same_format(*camera.video.pixel_format, format)) {
      checking_.report.add(48, place(file),
                           fmt::format("its pictures are {}, info.json says {}", format, *camera.video.pixel_format));
    }
    if (camera.video.is_depth && info_.version == Version::kV30 && track.bits > 0 && track.bits != 12) {
      checking_.report.add(73, place(file), fmt::format("its pictures have {} bits, depth has 12", track.bits));
    }
  }

  static bool same_codec(std::string_view said, std::string_view is) {
    const std::pair<std::string_view, std::string_view> kEncoders[] = {{"libsvtav1", "av1"}, {"libaom-av1", "av1"},
                                                                       {"libx264", "h264"},  {"libx265", "hevc"},
                                                                       {"h265", "hevc"},     {"avc1", "h264"}};
    for (const auto& [encoder, codec] : kEncoders) {
      if (said == encoder) return is == codec;
    }
    return said == is || (said.find('_') != said.npos && said.starts_with(is));  // h264_nvenc
  }

  static bool same_format(std::string_view said, std::string_view is) {
    return said == is || (said == "yuvj420p" && is == "yuv420p");
  }

  void check_times(const VideoFile& file, const Mp4Track& track) const {
    if (rate_ == 0) return;
    const auto scale = static_cast<double>(track.timescale);
    const std::vector<int64_t> ticks = formats::presentation_ticks(track);
    const double first_s = static_cast<double>(ticks.front()) / scale;
    if (std::abs(first_s) > kTimeTolerance) {
      checking_.report.add(46, place(file), fmt::format("its first frame is at {:.6g} s", first_s), {},
                           Severity::kWarning);
    }
    if (hides_frames(track)) {
      checking_.report.add(46, place(file), "its edit list does more than undo the delay of B-frames", {},
                           Severity::kWarning);
    }
    check_steps(file, ticks, scale);
    // The duration of the last frame says nothing about the time of a frame.
    if (ticks.size() < 2) return;
    const double average =
        static_cast<double>(ticks.size() - 1) * scale / static_cast<double>(ticks.back() - ticks.front());
    const double drift = static_cast<double>(ticks.size()) * std::abs(rate_ / average - 1);
    const double rounding = 1.5 * rate_ / scale;  // of a tick at each end, in frames
    if (drift > 0.5 || (std::abs(average - rate_) > 5e-4 * rate_ && drift > rounding)) {
      checking_.report.add(47, place(file),
                           fmt::format("it has {:.6g} frames a second, the dataset {}: {:.2f} frames apart at its end",
                                       average, rate_, drift));
    }
  }

  // Whether the edit list cuts frames off, shows nothing for a while, or puts parts together.
  static bool hides_frames(const Mp4Track& track) {
    if (track.edits.empty()) return false;
    if (track.edits.size() > 1 || track.edits[0].media_ticks < 0) return true;
    if (track.offsets.empty()) return track.edits[0].media_ticks > 0;
    int64_t least = std::numeric_limits<int64_t>::max(), decode = 0;
    size_t run = 0;
    int64_t in_run = 0;
    // The first frame that is shown is one of the first in decode order.
    for (const auto& offset : track.offsets) {
      for (int64_t i = 0; i < std::min<int64_t>(offset.count, 64) && run < track.durations.size(); ++i) {
        least = std::min(least, decode + offset.value);
        decode += track.durations[run].value;
        if (++in_run == track.durations[run].count) ++run, in_run = 0;
      }
      if (decode > 64 * std::max<int64_t>(track.durations[0].value, 1)) break;
    }
    return track.edits[0].media_ticks > least;
  }

  void check_steps(const VideoFile& file, const std::vector<int64_t>& ticks, double scale) const {
    const double unit = scale / rate_;
    int64_t uneven = 0, first_uneven = 0;
    double furthest = 0;
    for (size_t i = 1; i < ticks.size(); ++i) {
      const auto step = static_cast<double>(ticks[i] - ticks[i - 1]);
      if (std::abs(step - unit) > 0.5 * unit && uneven++ == 0) first_uneven = static_cast<int64_t>(i);
      const double grid = static_cast<double>(i) * unit + static_cast<double>(ticks[0]);
      furthest = std::max(furthest, std::abs(static_cast<double>(ticks[i]) - grid));
    }
    if (uneven > 0) {
      checking_.report.add(46, place(file),
                           fmt::format("{} of its {} frames are not 1/{} s behind the one before, the first is {}",
                                       uneven, ticks.size(), rate_, first_uneven));
      return;
    }
    // A clock of whole ticks rounds each frame by half a tick.
    if (furthest / scale > kTimeTolerance + 0.51 / scale) {
      checking_.report.add(46, place(file),
                           fmt::format("its frames are up to {:.3g} s beside frame / {}", furthest / scale, rate_), {},
                           Severity::kWarning);
    }
  }

  void check_groups(const VideoFile& file, const Mp4Track& track) const {
    const bool reorders = std::any_of(track.offsets.begin(), track.offsets.end(),
                                      [&](const auto& run) { return run.value != track.offsets[0].value; });
    if (reorders) checking_.report.add(49, place(file), "it has B-frames");
    const auto stands = [](const auto& run) { return run.value == 0 && run.count > 0; };
    if (track.samples > 1 && std::any_of(track.durations.begin(), track.durations.end() - 1, stands)) {
      checking_.report.add(49, place(file), "frames of it have the same decode time");
    }
    if (!track.key_samples) return;
    if (track.key_samples->empty() || track.key_samples->front() != 0) {
      checking_.report.add(50, place(file), "it does not begin with a key frame");
      return;
    }
    int64_t longest = track.samples - track.key_samples->back();
    for (size_t i = 1; i < track.key_samples->size(); ++i) {
      longest = std::max(longest, (*track.key_samples)[i] - (*track.key_samples)[i - 1]);
    }
    if (longest > kLongGroup) {
      checking_.report.add(50, place(file),
                           fmt::format("up to {} frames follow a key frame: to show one, all are decoded", longest));
    }
  }

  void check_count(const VideoFile& file) const {
    const Episode& episode = *file.clips[0].episode;
    if (file.samples == episode.length) return;
    const bool fewer = file.samples < episode.length;
    checking_.report.add(42, place(file),
                         fmt::format("it has {} frames, and the episode {}", file.samples, episode.length), {},
                         fewer ? Severity::kError : Severity::kWarning);
  }

  int64_t frame(double seconds) const { return rate_ > 0 ? std::llround(seconds * rate_) : 0; }

  void check_clips(const VideoFile& file, const Mp4Track& track) const {
    if (rate_ == 0) return;
    int64_t before = 0;  // frames of the episodes that come earlier in the file
    const double duration_s = static_cast<double>(file.samples) / rate_;
    for (const Clip& clip : file.clips) {
      const int64_t length = clip.episode->length, frames = frame(clip.to_s) - frame(clip.from_s);
      if (frames != length) {
        checking_.report.add(43, place(file, &clip),
                             fmt::format("its range is {:.6g} to {:.6g} s, {} frames, and its length {}", clip.from_s,
                                         clip.to_s, frames, length));
      }
      const double expected = static_cast<double>(before) / rate_, off = std::abs(clip.from_s - expected);
      if (clip.from_s >= duration_s) {
        checking_.report.add(45, place(file, &clip),
                             fmt::format("it begins at {:.6g} s, and the file has {:.6g} s", clip.from_s, duration_s));
      } else if (off > 0.5 / rate_) {
        checking_.report.add(before == 0 ? 45 : 44, place(file, &clip),
                             fmt::format("it begins at {:.6g} s, and {} frames before it end at {:.6g} s", clip.from_s,
                                         before, expected));
      } else if (off > kTimeTolerance) {
        checking_.report.add(44, place(file, &clip),
                             fmt::format("it begins at {:.7g} s, {:.2g} s beside frame {}", clip.from_s, off, before),
                             {}, Severity::kWarning);
      }
      if (frame(clip.from_s) < before) {
        checking_.report.add(43, place(file, &clip),
                             fmt::format("it begins at frame {}, inside of the episode before it, which ends at {}",
                                         frame(clip.from_s), before));
      } else if (frame(clip.from_s) > before) {
        checking_.report.add(
            43, place(file, &clip),
            fmt::format("it begins at frame {}, and the one before it ends at {}: a gap", frame(clip.from_s), before));
      }
      check_key(file, clip, track);
      check_rounding(file, clip);
      before = frame(clip.from_s) + length;
    }
    if (file.samples < before) {
      checking_.report.add(42, place(file), fmt::format("it has {} frames, and its episodes {}", file.samples, before));
    } else if (file.samples > before) {
      checking_.report.add(42, place(file), fmt::format("it has {} frames, and its episodes {}", file.samples, before),
                           {}, Severity::kWarning);
    }
  }

  void check_key(const VideoFile& file, const Clip& clip, const Mp4Track& track) const {
    const int64_t first = frame(clip.from_s);
    if (!track.key_samples || first >= track.samples || !track.offsets.empty()) return;
    if (!std::binary_search(track.key_samples->begin(), track.key_samples->end(), first)) {
      checking_.report.add(50, place(file, &clip),
                           fmt::format("its first frame, {} of the file, is no key frame", first), {}, Severity::kNote);
    }
  }

  // LeRobot adds a frame's time, a float32, to from_timestamp, rounds the sum to float32 and compares that with the
  // frame's time in the file, as float32 too. Below a minute that cannot fail.
  void check_rounding(const VideoFile& file, const Clip& clip) const {
    const double end = clip.from_s + static_cast<double>(clip.episode->length) / rate_;
    if (end < 60) return;
    const int64_t first = frame(clip.from_s);
    int64_t failing = 0;
    for (int64_t i = 0; i < std::min(clip.episode->length, file.samples); ++i) {
      const auto own = static_cast<float>(static_cast<double>(i) / rate_);
      const auto asked = static_cast<float>(clip.from_s + static_cast<double>(own));
      const auto shown = static_cast<float>(static_cast<double>(first + i) / rate_);
      if (std::abs(static_cast<double>(asked) - static_cast<double>(shown)) > kTimeTolerance) ++failing;
    }
    if (failing == 0) return;
    checking_.report.add(40, place(file, &clip),
                         fmt::format("{} of its {} frames are more than {} s off when LeRobot looks for them", failing,
                                     clip.episode->length, kTimeTolerance));
  }

  Status decode(VideoFile& file, const RandomReader& reader) const {
    if (checking_.options.frames == nullptr) return {};
    file.decoded = true;
    for (const Clip& clip : file.clips) {
      const int64_t first = is_v2(info_.version) ? 0 : frame(clip.from_s);
      std::vector<int64_t> frames =
          frames_to_probe(std::min(clip.episode->length, file.samples - first), checking_.options.frames_an_episode);
      if (clip.episode->length <= 0 || first >= file.samples) continue;
      for (int64_t& number : frames) number += first;
      const auto facts = checking_.options.frames->probe(reader, frames);
      if (!facts) {
        const ErrorCode code = facts.error().code();
        if (code != ErrorCode::kCorruption && code != ErrorCode::kOutOfRange) return tl::unexpected(facts.error());
        checking_.report.add(53, place(file, &clip), facts.error().message());
        continue;
      }
      const std::string verdict = judge_frames(*facts);
      if (!verdict.empty()) checking_.report.add(53, place(file, &clip), verdict, {}, Severity::kWarning);
    }
    return {};
  }

  const Checking& checking_;
  const Info& info_;
  const std::vector<const Feature*>& cameras_;
  const double rate_;
};

std::vector<VideoFile> videos_of(const Checking& checking, const std::vector<const Feature*>& cameras) {
  const Dataset& dataset = checking.dataset;
  std::vector<VideoFile> files;
  std::map<std::string, size_t, std::less<>> by_path;
  int64_t position = 0;
  for (const Episode& episode : dataset.episodes) {
    for (size_t camera = 0; camera < cameras.size(); ++camera) {
      if (dataset.info.version == Version::kV30 && camera >= episode.videos.size()) continue;
      const auto path = dataset.video_file(episode, camera, cameras[camera]->name);
      if (!path || dataset.tree.find(*path) == nullptr) continue;
      const auto [found, is_new] = by_path.emplace(*path, files.size());
      if (is_new) files.push_back({.path = *path, .camera = camera, .clips = {}});
      Clip clip{&episode, position};
      if (camera < episode.videos.size()) {
        clip.from_s = episode.videos[camera].from_s;
        clip.to_s = episode.videos[camera].to_s;
      }
      files[found->second].clips.push_back(clip);
    }
    ++position;
  }
  return files;
}

// All files of a camera against the encoding that most of them have.
void check_equal(const Checking& checking, const std::vector<const Feature*>& cameras,
                 const std::vector<VideoFile>& files) {
  for (size_t camera = 0; camera < cameras.size(); ++camera) {
    std::map<std::string, int64_t> counts;
    for (const VideoFile& file : files) {
      if (file.read && file.camera == camera) ++counts[file.encoding];
    }
    if (counts.size() < 2) continue;
    const auto most = std::max_element(counts.begin(), counts.end(),
                                       [](const auto& a, const auto& b) { return a.second < b.second; });
    for (const VideoFile& file : files) {
      if (!file.read || file.camera != camera || file.encoding == most->first) continue;
      checking.report.add(48, {.file = file.path, .data = {.column = cameras[camera]->name}},
                          fmt::format("it is {}, most files of the camera are {}", file.encoding, most->first));
    }
  }
}

// LR054: each camera has as many frames of an episode. v3.0 by the ranges, v2.x by the files.
void check_cameras_agree(const Checking& checking, const std::vector<const Feature*>& cameras,
                         const std::vector<VideoFile>& files) {
  const bool v3 = checking.dataset.info.version == Version::kV30;
  const double rate = checking.dataset.info.frame_rate();
  std::vector<int64_t> least(checking.dataset.episodes.size(), std::numeric_limits<int64_t>::max()),
      most(least.size(), -1);
  for (const VideoFile& file : files) {
    if (!file.read) continue;
    for (const Clip& clip : file.clips) {
      const int64_t frames = v3 ? std::llround(clip.to_s * rate) - std::llround(clip.from_s * rate) : file.samples;
      const auto at = static_cast<size_t>(clip.position);
      least[at] = std::min(least[at], frames);
      most[at] = std::max(most[at], frames);
    }
  }
  for (size_t i = 0; i < most.size() && cameras.size() > 1; ++i) {
    if (most[i] < 0 || least[i] == most[i]) continue;
    checking.report.add(54, checking.dataset.episodes[i].place,
                        fmt::format("its cameras have {} to {} frames", least[i], most[i]));
  }
}

// LR075, and LR077 of files that no episode names. Folders of undeclared cameras are LR041's.
void check_unnamed(const Checking& checking, const std::vector<const Feature*>& cameras,
                   const std::vector<VideoFile>& files) {
  const Dataset& dataset = checking.dataset;
  const bool v3 = dataset.info.version == Version::kV30;
  const auto lacks_columns = [&](const Episode& episode) { return episode.videos.size() < cameras.size(); };
  if (dataset.episodes.empty() || (v3 && std::ranges::any_of(dataset.episodes, lacks_columns))) return;  // LR019
  std::set<std::string_view> named;
  for (const VideoFile& file : files) named.insert(file.path);
  for (const TreeFile& file : dataset.tree.below("videos/")) {
    if (!file.path.ends_with(".mp4") || named.contains(file.path)) continue;
    const auto camera = std::ranges::find_if(
        cameras, [&](const Feature* each) { return file.path.find("/" + each->name + "/") != std::string::npos; });
    if (camera == cameras.end()) continue;
    const Place place{.file = file.path, .data = {.column = (*camera)->name}};
    if (file.size == 0) {
      checking.report.add(77, place, "the video has zero bytes, and no episode names it", {}, Severity::kWarning);
    } else {
      checking.report.add(75, place, fmt::format("no episode names this video of {}", format_bytes(file.size)));
    }
  }
}

void check_together(const Checking& checking, const std::vector<const Feature*>& cameras,
                    const std::vector<VideoFile>& files) {
  check_equal(checking, cameras, files);
  check_cameras_agree(checking, cameras, files);
  const auto count = [&](auto member) {
    return std::count_if(files.begin(), files.end(), [&](const VideoFile& file) { return file.read && file.*member; });
  };
  if (const auto av1 = count(&VideoFile::is_av1); av1 > 0) {
    checking.report.add(51, {.file = "videos"}, fmt::format("{} of {} videos are AV1", av1, files.size()));
  }
  if (const auto last = count(&VideoFile::index_is_last); last > 0) {
    const bool remote = !checking.dataset.tree.is_local();
    checking.report.add(52, {.file = "videos"},
                        fmt::format("{} of {} videos have their index at the end", last, files.size()), {},
                        remote ? Severity::kWarning : Severity::kNote);
  }
}

}  // namespace

Status check_videos(const Checking& checking, VideoCounts& counts) {
  const std::vector<const Feature*> cameras = checking.dataset.info.cameras();
  std::vector<VideoFile> files = videos_of(checking, cameras);
  const VideoCheck check(checking, cameras);
  RETURN_IF_ERROR(for_all(checking, static_cast<int64_t>(files.size()),
                          [&](int64_t i) { return check.check(files[static_cast<size_t>(i)]); }));
  for (const VideoFile& file : files) {
    counts.read += file.read ? 1 : 0;
    counts.decoded += file.decoded ? 1 : 0;
  }
  check_together(checking, cameras, files);
  check_unnamed(checking, cameras, files);
  return {};
}

}  // namespace millrace::lerobot
