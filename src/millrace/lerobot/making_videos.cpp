// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "millrace/lerobot/making.h"

namespace millrace::lerobot {

using Bytes = std::vector<std::byte>;

// A file of a source. The clips of v2.x are read whole, those of v3.0 by ranges.
struct VideoFiles::Opened {
  const Source* source = nullptr;
  std::string path;
  Bytes content;  // empty: read by ranges
  std::unique_ptr<RandomReader> file;
  std::unique_ptr<video::Video> video;

  int64_t frames() const { return video->index()->frames(); }
  std::string place() const { return fmt::format("{}/{}", source->url(), path); }
};

// What is joined to others: a file of a source as it is, or what was cut from one.
struct VideoFiles::Part {
  std::shared_ptr<Opened> whole;  // null: it was cut
  Bytes cut;
  std::unique_ptr<RandomReader> file;
  std::unique_ptr<video::Video> own;
  size_t episodes = 0;
  bool encoded = false;
  double min_psnr_db = 0;

  video::Video& get() { return whole != nullptr ? *whole->video : *own; }
};

Status VideoFiles::open(const Pick& pick) {
  const Source& source = *pick.source;
  std::string path = source.video_path(pick.episode, source.camera(camera_));
  if (open_ != nullptr && open_->source == &source && open_->path == path) return {};
  if (open_ != nullptr) open_->video->rest();
  auto opened = std::make_shared<Opened>();
  opened->source = &source;
  opened->path = path;
  ASSIGN_OR_RETURN(opened->file, source.dataset.tree.open(path));
  if (!source.is_v3()) {
    opened->content.resize(static_cast<size_t>(opened->file->size()));
    RETURN_IF_ERROR(opened->file->read_at(0, opened->content));
    opened->file = std::make_unique<MemoryReader>(opened->content, opened->place());
  }
  ASSIGN_OR_RETURN(opened->video, video::open_video(*opened->file, {.stop = making_.options().stop}));
  open_ = std::move(opened);
  return {};
}

// Opens the file that the episode is in.
Result<int64_t> VideoFiles::first_frame(size_t i) {
  const Pick& pick = making_.pick(i);
  RETURN_IF_ERROR(open(pick));
  const video::FrameIndex& index = *open_->video->index();
  int64_t begin = 0;
  if (pick.source->is_v3()) {
    const VideoSpan& span = pick.source->episode(pick.episode).videos[pick.source->camera(camera_)];
    const double half = index.fps.num > 0 ? 0.5 / index.fps.value() : 0.5;
    ASSIGN_OR_RETURN(begin, with_context(index.frame_near(span.from_s, half), open_->place()));
  }
  if (begin + making_.length(i) <= index.frames()) return begin;
  return fail(ErrorCode::kCorruption, "{}: it has {} frames, and its episode {} the rows [{}, {})", open_->place(),
              index.frames(), pick.episode, begin, begin + making_.length(i));
}

Result<Bytes> VideoFiles::clip(size_t i) {
  ASSIGN_OR_RETURN(const int64_t begin, first_frame(i));
  if (begin == 0 && making_.length(i) == open_->frames() && !open_->content.empty()) {
    making_.note_video(false, 0);
    return open_->content;
  }
  MemorySink out;
  const auto cut =
      video::cut_video(*open_->video, begin, begin + making_.length(i), out, {.stop = making_.options().stop});
  if (!cut) return tl::unexpected(cut.error());
  making_.note_video(!cut->copied, cut->min_psnr_db);
  return out.take();
}

// ---- several episodes in a file

// The end of the episodes of [begin, end) that follow one another in the file of the first one.
Result<size_t> VideoFiles::end_of_stretch(size_t begin, size_t end) {
  ASSIGN_OR_RETURN(int64_t frame, first_frame(begin));
  const auto path_of = video_path_of(camera_);
  size_t i = begin + 1;
  for (; i < end; ++i) {
    frame += making_.length(i - 1);
    if (making_.pick(i).source != open_->source || path_of(making_.pick(i)) != open_->path) break;
    if (!open_->source->is_v3()) break;
    ASSIGN_OR_RETURN(const int64_t here, first_frame(i));
    if (here != frame) break;
  }
  return i;
}

// REQUIRES: the episodes are a stretch of the file that is open.
Result<VideoFiles::Part> VideoFiles::cut_part(size_t begin, size_t end, bool may_encode) {
  ASSIGN_OR_RETURN(const int64_t first, first_frame(begin));
  const int64_t count = making_.first_row(end) - making_.first_row(begin);
  Part part{.episodes = end - begin};
  if (first == 0 && count == open_->frames()) {
    ASSIGN_OR_RETURN(const std::string differs, video::join_difference(*open_->video, *open_->video));
    if (differs.empty()) {
      part.whole = open_;
      return part;
    }
  }
  MemorySink out;
  const auto cut = video::cut_video(*open_->video, first, first + count, out,
                                    {.may_encode = may_encode, .stop = making_.options().stop});
  if (!cut) return tl::unexpected(cut.error());
  part.encoded = !cut->copied;
  part.min_psnr_db = cut->min_psnr_db;
  part.cut = out.take();
  part.file = std::make_unique<MemoryReader>(part.cut, open_->place());
  ASSIGN_OR_RETURN(part.own, video::open_video(*part.file, {.stop = making_.options().stop}));
  part.own->rest();
  return part;
}

// A stretch as one part if that needs no encoding, else each episode by itself: most of them can then be copied.
Result<std::vector<VideoFiles::Part>> VideoFiles::parts_of(size_t begin, size_t end) {
  std::vector<Part> parts;
  auto one = cut_part(begin, end, /*may_encode=*/end - begin == 1);
  if (one) {
    parts.push_back(*std::move(one));
    return parts;
  }
  if (end - begin == 1 || one.error().code() != ErrorCode::kUnsupported) return tl::unexpected(one.error());
  for (size_t i = begin; i < end; ++i) {
    ASSIGN_OR_RETURN(Part part, cut_part(i, i + 1, true));
    parts.push_back(std::move(part));
  }
  return parts;
}

// A single part is a file as it is.
Result<Bytes> VideoFiles::joined(std::vector<Part>& parts) {
  if (parts.size() == 1 && parts[0].whole == nullptr) return std::move(parts[0].cut);
  if (parts.size() == 1) {
    const RandomReader& file = *parts[0].whole->file;
    Bytes content(static_cast<size_t>(file.size()));
    RETURN_IF_ERROR(file.read_at(0, content));
    return content;
  }
  std::vector<video::Video*> videos;
  for (Part& part : parts) videos.push_back(&part.get());
  MemorySink out;
  const auto made = video::join_videos(videos, out, {.stop = making_.options().stop});
  if (!made) return tl::unexpected(made.error());
  return out.take();
}

// Writes the first episodes of the run that can be in one file. Returns how many these are.
Result<size_t> VideoFiles::write_file(const EpisodeRun& run, int64_t number) {
  std::vector<Part> parts;
  size_t episodes = 0;
  bool encoded = false, full = false;
  double worst = 0;
  while (run.begin + episodes < run.end && !full) {
    const size_t begin = run.begin + episodes;
    ASSIGN_OR_RETURN(const size_t end, end_of_stretch(begin, run.end));
    ASSIGN_OR_RETURN(std::vector<Part> more, parts_of(begin, end));
    for (Part& part : more) {
      if (!parts.empty()) {
        ASSIGN_OR_RETURN(const std::string differs, video::join_difference(parts.front().get(), part.get()));
        full = !differs.empty();
        if (full) break;
      }
      if (part.encoded) worst = encoded ? std::min(worst, part.min_psnr_db) : part.min_psnr_db;
      encoded = encoded || part.encoded;
      episodes += part.episodes;
      parts.push_back(std::move(part));
    }
  }
  RETURN_IF_ERROR(making_.put(numbered_path("videos/" + camera_, number, "mp4"), [&] { return joined(parts); }));
  making_.note_video(encoded, worst);
  return episodes;
}

// Reads where the episodes are from the file that was written, now or by an earlier run. Returns how many it holds.
Result<size_t> VideoFiles::add_spans(size_t begin, size_t end, int64_t number, std::vector<NewSpan>& spans) {
  const Location at = making_.root().child(numbered_path("videos/" + camera_, number, "mp4"));
  ASSIGN_OR_RETURN(const auto file, at.storage->open_read(at.key));
  ASSIGN_OR_RETURN(const auto video, video::open_video(*file, {.stop = making_.options().stop}));
  const video::FrameIndex& index = *video->index();
  const double unit = index.time_base.value();
  const int64_t last = index.step > 0 ? index.step : index.packets[static_cast<size_t>(index.packet.back())].duration;
  const auto time = [&](int64_t frame) {
    const bool inside = frame < index.frames();
    return static_cast<double>(inside ? index.pts[static_cast<size_t>(frame)] : index.pts.back() + last) * unit;
  };
  size_t i = begin;
  for (int64_t frame = 0; i < end && frame + making_.length(i) <= index.frames(); ++i) {
    spans.push_back({number, time(frame), time(frame + making_.length(i))});
    frame += making_.length(i);
  }
  return i - begin;
}

Status VideoFiles::write_joined(const EpisodeRun& run, int64_t& next, std::vector<NewSpan>& spans) {
  for (size_t i = run.begin; i < run.end;) {
    const int64_t number = next++;
    size_t episodes = 0;
    const std::string path = numbered_path("videos/" + camera_, number, "mp4");
    if (making_.folder().has(making_.path_in_folder(path))) {
      RETURN_IF_ERROR(making_.put(path, [] { return Bytes(); }));  // it is there, and only counted
    } else {
      ASSIGN_OR_RETURN(episodes, write_file({i, run.end}, number));
    }
    ASSIGN_OR_RETURN(const size_t found, add_spans(i, run.end, number, spans));
    if (found == 0 || (episodes > 0 && found != episodes)) {
      return fail(ErrorCode::kInternal, "{} holds {} episodes, not {}", path, found, episodes);
    }
    making_.done(static_cast<int64_t>(found));
    i += found;
  }
  return {};
}

}  // namespace millrace::lerobot
