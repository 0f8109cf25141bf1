// SPDX-License-Identifier: Apache-2.0
#include "millrace/lerobot/feed.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "millrace/base/thread/executor.h"
#include "millrace/cache/cached_storage.h"
#include "millrace/lerobot/put_picture.h"

namespace millrace::lerobot {
namespace {

constexpr size_t kScratchBytes = 8 << 20;  // of frames that a thread decodes before it puts them into the batch
constexpr int kMostThreads = 8;
constexpr const char* kTask = "task";

int64_t item_bytes(FeedArray::Type type) {
  switch (type) {
    case FeedArray::Type::kFloat32:
      return 4;
    case FeedArray::Type::kInt64:
      return 8;
    case FeedArray::Type::kBool:
    case FeedArray::Type::kUint8:
      return 1;
  }
  return 1;
}

ValueType value_type(const Feature& feature) {
  if (feature.dtype == "string") return ValueType::kText;
  if (feature.dtype == "bool") return ValueType::kBool;
  return feature.is_float() ? ValueType::kFloat32 : ValueType::kInt64;
}

FeedArray::Type array_type(ValueType type) {
  return type == ValueType::kFloat32 ? FeedArray::Type::kFloat32
         : type == ValueType::kBool  ? FeedArray::Type::kBool
                                     : FeedArray::Type::kInt64;
}

std::vector<int64_t> key_frames(const video::FrameIndex& index) {
  std::vector<int64_t> keys;
  for (size_t frame = 0; frame < index.packet.size(); ++frame) {
    if (index.packets[static_cast<size_t>(index.packet[frame])].key) keys.push_back(static_cast<int64_t>(frame));
  }
  return keys;
}

images::Picture resize_frame(std::span<const std::byte> frame, int64_t height, int64_t width, const FeedOptions& how) {
  // SAFETY: uint8_t may look at any byte.
  const std::span pixels(reinterpret_cast<const uint8_t*>(frame.data()), frame.size());
  return images::resize(images::PictureView{height, width, 3, pixels}, how.height, how.width, how.fit);
}

// What lies elsewhere than on this node is read through its cache.
Result<Location> through_cache(Location root, const FeedOptions& options, const std::stop_token& stop) {
  if (options.cache.empty()) return root;
  ASSIGN_OR_RETURN(auto cache,
                   cache::NodeCache::of_process({.directory = options.cache, .cap_bytes = options.cache_bytes}, stop));
  if (!cache::lies_on_this_node(root)) {
    root.storage = cache::make_cached_storage(std::move(root.storage), std::move(cache), {.stop = stop});
  }
  return root;
}

}  // namespace

// Rows of one file for one thread.
struct Feed::RowJob {
  std::string path;
  std::vector<size_t> which;  // of the rows that are read
};

// Frames of one file for one thread, by number.
struct Feed::FrameJob {
  struct Wanted {
    int64_t frame = 0;
    size_t slot = 0;     // picture of the camera's array, of all rows
    size_t episode = 0;  // for messages
  };
  size_t camera = 0;  // in cameras_
  std::string path;
  std::vector<Wanted> frames;
};

Result<std::unique_ptr<Feed>> Feed::open(const Location& root, FeedOptions options, const std::stop_token& stop) {
  auto feed = std::unique_ptr<Feed>(new Feed());
  if (options.threads < 0 || options.skip_first < 0 || options.skip_last < 0 || options.most_decoders < 1 ||
      options.decoder_bytes < 1 || options.row_bytes < 1 || options.index_bytes < 1) {
    return fail(ErrorCode::kInvalidArgument, "threads and skipped frames from 0, decoders and bytes from 1");
  }
  if (options.cache.empty() && options.cache_bytes != 0) {
    return fail(ErrorCode::kInvalidArgument, "cache_bytes is of a cache; name its folder");
  }
  if (options.height < 0 || options.width < 0 || (options.height == 0) != (options.width == 0)) {
    return fail(ErrorCode::kInvalidArgument, "a size of pictures is two sides above 0");
  }
  if (options.threads == 0) options.threads = std::min(available_cpus(), kMostThreads);
  feed->options_ = std::move(options);
  ASSIGN_OR_RETURN(Tree files, feed->list_files(root, stop));
  ASSIGN_OR_RETURN(feed->source_, Source::open(std::move(files), StatsOfEpisodes::kLeave));
  RETURN_IF_ERROR(feed->choose_windows());
  RETURN_IF_ERROR(feed->choose_episodes());
  RETURN_IF_ERROR(feed->refuse_unknown_cameras());
  RETURN_IF_ERROR(feed->choose_cameras(stop));
  RETURN_IF_ERROR(feed->choose_table_cameras());
  RETURN_IF_ERROR(feed->choose_columns());
  const Feed* const made = feed.get();
  feed->opened_ = std::make_unique<PerProcess<Opened>>([made] {
    const Tree& tree = made->source_->dataset.tree;
    return std::unique_ptr<Opened>(new Opened{
        {tree, made->stored_, made->options_.row_bytes},
        {tree, made->options_.most_decoders, made->options_.decoder_bytes, made->options_.index_bytes},
        {tree, made->table_camera_names(), made->options_.row_bytes},
        made->kept_ && made->kept_->was_kept() ? std::make_unique<FilesCheck>(*made->kept_, tree) : nullptr});
  });
  return feed;
}

Result<Tree> Feed::list_files(const Location& root, const std::stop_token& stop) {
  ASSIGN_OR_RETURN(const Location cached, through_cache(root, options_, stop));
  if (cached.storage == root.storage) return Tree::list(root);
  kept_ = std::make_unique<KeptFiles>(options_.cache, cached);
  return kept_->list();
}

// Times become rows here, and nowhere else.
Status Feed::choose_windows() {
  const double fps = source_->dataset.info.frame_rate();
  for (const auto& [feature, seconds] : options_.delta_seconds) {
    std::vector<int64_t>& rows = options_.deltas[feature];
    if (!rows.empty()) return fail(ErrorCode::kInvalidArgument, "{}: two windows, by times and by rows", feature);
    for (const double time : seconds) {
      const double row = std::round(time * fps);
      if (!std::isfinite(row) || std::abs(row) > 1e9 || std::abs(time * fps - row) / fps > options_.tolerance_s) {
        return fail(ErrorCode::kInvalidArgument,
                    "delta_timestamps: {} of {} is not within {} s of a multiple of 1/{} s, the time of a frame", time,
                    feature, options_.tolerance_s, fps);
      }
      rows.push_back(static_cast<int64_t>(row));
    }
  }
  return {};
}

Status Feed::choose_episodes() {
  const auto count = static_cast<int64_t>(source_->dataset.episodes.size());
  if (options_.episodes) {
    for (const int64_t episode : *options_.episodes) {
      if (episode < 0 || episode >= count) {
        return fail(ErrorCode::kInvalidArgument, "{}: there is no episode {}; it has {}", source_->url(), episode,
                    count);
      }
    }
    const std::set<int64_t> chosen(options_.episodes->begin(), options_.episodes->end());
    if (chosen.empty()) return fail(ErrorCode::kInvalidArgument, "episodes: none is chosen");
    for (const int64_t episode : chosen) episodes_.push_back(static_cast<size_t>(episode));
  } else {
    episodes_.resize(static_cast<size_t>(count));
    std::iota(episodes_.begin(), episodes_.end(), size_t{0});
  }
  begins_ = {0};
  for (const size_t episode : episodes_) {
    const int64_t length = source_->episode(episode).length;
    const int64_t rows = std::max<int64_t>(0, length - options_.skip_first - options_.skip_last);
    begins_.push_back(begins_.back() + rows);
    skipped_ += length - rows;
  }
  if (rows() == 0) {
    return fail(ErrorCode::kInvalidArgument, "{}: no episode has more than the {} frames that are skipped",
                source_->url(), options_.skip_first + options_.skip_last);
  }
  for (const size_t episode : episodes_) {
    const std::string path = source_->data_path(episode);
    if (source_->dataset.tree.find(path) == nullptr) {
      return fail(ErrorCode::kNotFound,
                  "{}/{}: missing; episode {} is in it by the data_path of meta/info.json [LR004]", source_->url(),
                  path, episode);
    }
  }
  return {};
}

void Feed::add_array(std::string name, FeedArray::Type type, std::vector<int64_t> shape) {
  int64_t bytes = item_bytes(type);
  for (const int64_t size : shape) bytes *= size;
  arrays_.push_back({.name = std::move(name), .type = type, .shape = std::move(shape), .row_bytes = bytes});
}

Status Feed::choose_cameras(const std::stop_token& stop) {
  const auto all = source_->dataset.info.cameras();
  Decoders decoders(source_->dataset.tree, 1, 1, 1);
  for (size_t place = 0; place < all.size(); ++place) {
    const Feature& feature = *all[place];
    if (!is_chosen(feature)) continue;
    if (feature.video.is_depth) {
      return fail(ErrorCode::kUnsupported,
                  "{}: camera {} is of depth, which is not decoded; choose others by cameras=", source_->url(),
                  feature.name);
    }
    for (const size_t episode : episodes_) {
      const std::string path = source_->video_path(episode, place);
      if (source_->dataset.tree.find(path) != nullptr) continue;
      return fail(
          ErrorCode::kNotFound,
          "{}/{}: missing; camera {} of episode {} is in it by the video_path of meta/info.json [LR041]; choose "
          "other cameras by cameras=, or other episodes",
          source_->url(), path, feature.name, episode);
    }
    Camera camera{.name = feature.name, .place = place, .deltas = window_of(feature.name)};
    {
      ASSIGN_OR_RETURN(const auto lease, decoders.take(source_->video_path(episodes_.front(), place), stop));
      camera.height = lease.video().info().height;
      camera.width = lease.video().info().width;
    }
    camera.given_height = options_.height > 0 ? options_.height : camera.height;
    camera.given_width = options_.width > 0 ? options_.width : camera.width;
    std::vector<int64_t> shape;
    if (camera.deltas.size() != 1) shape.push_back(std::ssize(camera.deltas));  // LeRobot squeezes one frame
    if (options_.channels_last) {
      shape.insert(shape.end(), {camera.given_height, camera.given_width, 3});
    } else {
      shape.insert(shape.end(), {3, camera.given_height, camera.given_width});
    }
    camera.array = arrays_.size();
    add_array(feature.name, options_.float_pictures ? FeedArray::Type::kFloat32 : FeedArray::Type::kUint8, shape);
    cameras_.push_back(std::move(camera));
  }
  return {};
}

Status Feed::choose_columns() {
  std::map<std::string, bool> is_known;
  std::vector<std::string> windows;  // in the order of the features
  episode_column_ = task_column_ = SIZE_MAX;
  for (const Feature& feature : source_->dataset.info.features) {
    const auto window = options_.deltas.find(feature.name);
    const bool has_window = window != options_.deltas.end();
    if (has_window && window->second.empty()) {
      return fail(ErrorCode::kInvalidArgument, "delta_timestamps: {} has no times", feature.name);
    }
    is_known[feature.name] = true;
    if (feature.is_video()) {
      if (has_window && std::ranges::find(cameras_, feature.name, &Camera::name) != cameras_.end()) {
        windows.push_back(feature.name);
      }
      continue;
    }
    if (feature.is_picture()) {
      const auto camera = std::ranges::find(table_cameras_, feature.name, &TableCamera::name);
      if (camera == table_cameras_.end()) continue;
      add_table_camera(*camera, has_window);
      if (has_window) windows.push_back(feature.name);
      continue;
    }
    if (feature.dtype == "language") continue;  // docs/robot-feed.md says so
    const ValueType type = value_type(feature);
    if (type == ValueType::kText && has_window) {
      return fail(ErrorCode::kInvalidArgument, "delta_timestamps: {} is text, which has no window", feature.name);
    }
    if (feature.name == "episode_index") episode_column_ = stored_.size();
    if (feature.name == "task_index") task_column_ = stored_.size();
    stored_.push_back({feature.name, type, static_cast<size_t>(feature.size())});
    BatchColumn column{.deltas = has_window ? window->second : std::vector<int64_t>{0}};
    if (type == ValueType::kText) {
      column.array = texts_.size();
      texts_.push_back(feature.name);
    } else {
      std::vector<int64_t> shape;
      if (has_window) shape.push_back(std::ssize(column.deltas));
      if (feature.size() != 1 || feature.shape.size() > 1) {
        shape.insert(shape.end(), feature.shape.begin(), feature.shape.end());
      }
      column.row_bytes = static_cast<size_t>(feature.size() * item_bytes(array_type(type)));
      column.array = arrays_.size();
      add_array(feature.name, array_type(type), std::move(shape));
    }
    if (has_window) windows.push_back(feature.name);
    columns_.push_back(std::move(column));
  }
  for (const auto& [name, rows] : options_.deltas) {
    if (!is_known[name]) {
      return fail(ErrorCode::kInvalidArgument, "delta_timestamps: {} has no feature {}", source_->url(), name);
    }
  }
  for (const std::string& name : windows) {
    const std::vector<int64_t>& deltas = options_.deltas.at(name);
    paddings_.push_back({deltas, arrays_.size()});
    add_array(name + "_is_pad", FeedArray::Type::kBool, {std::ssize(deltas)});
  }
  texts_.emplace_back(kTask);
  return {};
}

Feed::FrameLocation Feed::locate(int64_t number) const {
  const auto behind = std::ranges::upper_bound(begins_, number);
  const auto i = static_cast<size_t>(behind - begins_.begin()) - 1;
  return {episodes_[i], number - begins_[i] + options_.skip_first};
}

int64_t Feed::clamp(const FrameLocation& at, int64_t delta) const {
  return std::clamp<int64_t>(at.row + delta, 0, source_->episode(at.episode).length - 1);
}

Status Feed::read(std::span<const int64_t> numbers, std::span<std::byte* const> arrays,
                  std::span<std::vector<std::string>> texts, const std::stop_token& stop) const {
  std::vector<FrameLocation> locations;
  for (const int64_t number : numbers) {
    if (number < 0 || number >= rows()) {
      return fail(ErrorCode::kInvalidArgument, "row {}: {} has {} rows", number, source_->url(), rows());
    }
    locations.push_back(locate(number));
  }
  for (auto& text : texts) text.assign(numbers.size(), "");
  mark_padding(locations, arrays);
  Opened& opened = opened_->get();
  if (opened.check) RETURN_IF_ERROR(opened.check->state());
  const auto frames = frame_jobs(locations, opened.decoders);
  const auto rows = row_jobs(locations);
  const auto pictures = picture_jobs(locations, opened.pictures);
  const auto row_count = std::ssize(rows), frame_end = row_count + std::ssize(frames);
  const auto count = frame_end + std::ssize(pictures);
  const auto run = [&](int64_t i) -> Status {
    if (stop.stop_requested()) return fail(ErrorCode::kCancelled, "stopped");
    if (i < row_count) return read_rows(rows[static_cast<size_t>(i)], locations, arrays, texts);
    if (i >= frame_end) {
      return put_pictures(pictures[static_cast<size_t>(i - frame_end)], arrays, opened.pictures, stop);
    }
    const FrameJob& job = frames[static_cast<size_t>(i - row_count)];
    return decode(job, arrays[cameras_[job.camera].array], opened.decoders, stop);
  };
  // This thread is one of them.
  if (options_.threads > 1) return parallel_try(count, options_.threads - 1, "mr-feed", run);
  for (int64_t i = 0; i < count; ++i) RETURN_IF_ERROR(run(i));
  return {};
}

void Feed::mark_padding(std::span<const FrameLocation> locations, std::span<std::byte* const> arrays) const {
  for (const Padding& padding : paddings_) {
    std::byte* out = arrays[padding.array];
    for (const FrameLocation& at : locations) {
      for (const int64_t delta : padding.deltas) {
        *out++ = std::byte{clamp(at, delta) == at.row + delta ? uint8_t{0} : uint8_t{1}};
      }
    }
  }
}

// ---- numbers

std::vector<Feed::RowJob> Feed::row_jobs(std::span<const FrameLocation> locations) const {
  std::map<std::string, std::vector<size_t>> by_file;
  for (size_t i = 0; i < locations.size(); ++i) by_file[source_->data_path(locations[i].episode)].push_back(i);
  std::vector<RowJob> jobs;
  for (auto& [path, which] : by_file) jobs.push_back({path, std::move(which)});
  return jobs;
}

Status Feed::read_rows(const RowJob& job, std::span<const FrameLocation> locations, std::span<std::byte* const> arrays,
                       std::span<std::vector<std::string>> texts) const {
  ASSIGN_OR_RETURN(const auto rows, opened_->get().rows.get(job.path));
  return copy_rows(*rows, job.path, locations, job.which, arrays, texts);
}

Status Feed::copy_rows(const StoredRows& rows, const std::string& path, std::span<const FrameLocation> locations,
                       std::span<const size_t> which, std::span<std::byte* const> arrays,
                       std::span<std::vector<std::string>> texts) const {
  for (const size_t i : which) {
    const FrameLocation& at = locations[i];
    const Episode& episode = source_->episode(at.episode);
    const int64_t first = source_->first_row(at.episode);
    const bool fits = first >= 0 && first + episode.length <= rows.rows;
    if (!fits || (episode_column_ != SIZE_MAX &&
                  rows.columns[episode_column_].integers[static_cast<size_t>(first + at.row)] != episode.index)) {
      return fail(
          ErrorCode::kCorruption,
          "{}/{}: row {} of episode {} is not there: the file has {} rows, and meta/ says that the episode's are "
          "{} to {} [LR018]",
          source_->url(), path, at.row, at.episode, rows.rows, first, first + episode.length - 1);
    }
    for (size_t c = 0; c < columns_.size(); ++c) {
      const BatchColumn& column = columns_[c];
      const StoredRows::Column& values = rows.columns[c];
      if (stored_[c].type == ValueType::kText) {
        texts[column.array][i] = values.texts[static_cast<size_t>(first + at.row)];
        continue;
      }
      const auto* const data =
          stored_[c].type == ValueType::kFloat32 ? reinterpret_cast<const std::byte*>(values.reals.data())
          : stored_[c].type == ValueType::kInt64 ? reinterpret_cast<const std::byte*>(values.integers.data())
                                                 : reinterpret_cast<const std::byte*>(values.bools.data());
      std::byte* out = arrays[column.array] + i * static_cast<size_t>(arrays_[column.array].row_bytes);
      for (const int64_t delta : column.deltas) {
        std::memcpy(out, data + static_cast<size_t>(first + clamp(at, delta)) * column.row_bytes, column.row_bytes);
        out += column.row_bytes;
      }
    }
    int64_t task = 0;
    if (task_column_ != SIZE_MAX) task = rows.columns[task_column_].integers[static_cast<size_t>(first + at.row)];
    if (task < 0 || task >= std::ssize(source_->tasks)) {
      return fail(ErrorCode::kCorruption, "{}/{}: row {} of episode {} has the task {}, which is not there [LR033]",
                  source_->url(), path, at.row, at.episode, task);
    }
    texts.back()[i] = source_->tasks[static_cast<size_t>(task)];
  }
  return {};
}

// ---- pictures

// Frames by file, and a file's by number. A file whose index is known becomes several jobs, none of which cuts a group
// of pictures; before the first read of a file its groups are not known.
std::vector<Feed::FrameJob> Feed::frame_jobs(std::span<const FrameLocation> locations, Decoders& decoders) const {
  std::vector<FrameJob> jobs;
  const double rate = source_->dataset.info.frame_rate();
  for (size_t c = 0; c < cameras_.size(); ++c) {
    const Camera& camera = cameras_[c];
    std::map<std::string, std::vector<FrameJob::Wanted>> by_file;
    for (size_t i = 0; i < locations.size(); ++i) {
      const FrameLocation& at = locations[i];
      const Episode& episode = source_->episode(at.episode);
      const int64_t first = source_->is_v3() ? std::llround(episode.videos[camera.place].from_s * rate) : 0;
      auto& frames = by_file[source_->video_path(at.episode, camera.place)];
      for (size_t d = 0; d < camera.deltas.size(); ++d) {
        frames.push_back({first + clamp(at, camera.deltas[d]), i * camera.deltas.size() + d, at.episode});
      }
    }
    for (auto& [path, frames] : by_file) {
      std::ranges::stable_sort(frames, {}, &FrameJob::Wanted::frame);
      const auto index = decoders.index(path);
      const std::vector<int64_t> keys = index ? key_frames(*index) : std::vector<int64_t>();
      const size_t most = std::max<size_t>(1, frames.size() / static_cast<size_t>(options_.threads));
      const auto group = [&](int64_t frame) { return std::ranges::upper_bound(keys, frame) - keys.begin(); };
      for (size_t begin = 0; begin < frames.size();) {
        size_t end = keys.empty() ? frames.size() : std::min(begin + most, frames.size());
        while (end < frames.size() && group(frames[end].frame) == group(frames[end - 1].frame)) ++end;
        jobs.push_back(
            {c, path, {frames.begin() + static_cast<ptrdiff_t>(begin), frames.begin() + static_cast<ptrdiff_t>(end)}});
        begin = end;
      }
    }
  }
  return jobs;
}

Status Feed::decode(const FrameJob& job, std::byte* out, Decoders& decoders, const std::stop_token& stop) const {
  const Camera& camera = cameras_[job.camera];
  const auto shown = [&](size_t episode) {
    return fmt::format("{}/{}: episode {}", source_->url(), job.path, episode);
  };
  ASSIGN_OR_RETURN(const auto lease, with_context(decoders.take(job.path, stop), shown(job.frames.front().episode)));
  video::Video& video = lease.video();
  if (video.info().height != camera.height || video.info().width != camera.width) {
    return fail(ErrorCode::kCorruption, "{}: its video is {} x {}, and the camera's first is {} x {} [LR048]",
                shown(job.frames.front().episode), video.info().width, video.info().height, camera.width,
                camera.height);
  }
  for (const auto& wanted : job.frames) {
    if (wanted.frame >= video.index()->frames()) {
      return fail(ErrorCode::kCorruption, "{}: it needs frame {} of the video, which has {} [LR042]",
                  shown(wanted.episode), wanted.frame, video.index()->frames());
    }
  }
  const video::ReadOptions how{.layout = video::PixelLayout::kHwc, .stop = stop};
  const auto frame_bytes = static_cast<size_t>(video.frame_bytes(how.layout));
  const auto given_bytes = static_cast<size_t>(3 * camera.given_height * camera.given_width);
  const PictureLayout layout{.is_float = options_.float_pictures, .channels_last = options_.channels_last};
  const size_t slot_bytes = given_bytes * (layout.is_float ? sizeof(float) : 1);
  const size_t most = std::max<size_t>(1, kScratchBytes / frame_bytes);
  std::vector<std::byte> scratch;
  std::vector<int64_t> numbers;  // of the frames in `scratch`, each once
  for (size_t begin = 0; begin < job.frames.size();) {
    numbers.clear();
    size_t end = begin;
    for (; end < job.frames.size(); ++end) {
      const int64_t frame = job.frames[end].frame;
      if (!numbers.empty() && numbers.back() == frame) continue;
      if (numbers.size() == most) break;
      numbers.push_back(frame);
    }
    scratch.resize(numbers.size() * frame_bytes);
    RETURN_IF_ERROR(with_context(video.read(numbers, scratch, how), shown(job.frames[begin].episode)));
    size_t at = 0;
    images::Picture resized;
    size_t is_resized = SIZE_MAX;  // the frame in `resized`
    for (size_t i = begin; i < end; ++i) {
      while (numbers[at] != job.frames[i].frame) ++at;
      std::span<const std::byte> picture = std::span(scratch).subspan(at * frame_bytes, frame_bytes);
      if (camera.is_resized()) {
        if (is_resized != at) resized = resize_frame(picture, camera.height, camera.width, options_);
        is_resized = at;
        picture = std::as_bytes(std::span(resized.pixels));
      }
      put_picture(picture, layout, out + job.frames[i].slot * slot_bytes);
    }
    begin = end;
  }
  return {};
}

}  // namespace millrace::lerobot
