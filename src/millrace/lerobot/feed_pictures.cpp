// SPDX-License-Identifier: Apache-2.0
// Feed's part for pictures inside data files, and for the list of cameras.

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "millrace/lerobot/feed.h"
#include "millrace/lerobot/put_picture.h"

namespace millrace::lerobot {
namespace {

Result<images::Picture> decoded(const std::string& file, const std::string& shown) {
  if (file.empty()) {
    return fail(ErrorCode::kCorruption, "{}: it holds no picture; pictures in files of their own are not read", shown);
  }
  const auto bytes = std::as_bytes(std::span(file));
  ASSIGN_OR_RETURN(const auto colour, images::stored_colour(bytes, shown));
  return images::decode(bytes, {.colour = colour}, shown);
}

}  // namespace

Status Feed::refuse_unknown_cameras() const {
  if (!options_.cameras) return {};
  for (const std::string& name : *options_.cameras) {
    const Feature* const feature = source_->dataset.info.find(name);
    if (feature == nullptr || !feature->is_picture()) {
      return fail(ErrorCode::kInvalidArgument, "{}: it has no camera {}", source_->url(), name);
    }
  }
  return {};
}

bool Feed::is_chosen(const Feature& feature) const {
  return !options_.cameras || std::ranges::find(*options_.cameras, feature.name) != options_.cameras->end();
}

std::vector<int64_t> Feed::window_of(const std::string& feature) const {
  const auto window = options_.deltas.find(feature);
  return window != options_.deltas.end() ? window->second : std::vector<int64_t>{0};
}

std::vector<std::string> Feed::table_camera_names() const {
  std::vector<std::string> names;
  for (const TableCamera& camera : table_cameras_) names.push_back(camera.name);
  return names;
}

Status Feed::choose_table_cameras() {
  for (const Feature& feature : source_->dataset.info.features) {
    if (!feature.is_picture() || feature.is_video() || !is_chosen(feature)) continue;
    if (feature.video.is_depth) {
      return fail(ErrorCode::kUnsupported,
                  "{}: camera {} is of depth, which is not decoded; choose others by cameras=", source_->url(),
                  feature.name);
    }
    table_cameras_.push_back({.name = feature.name, .deltas = window_of(feature.name)});
  }
  if (table_cameras_.empty()) return {};
  const size_t episode = episodes_.front();
  const std::string path = source_->data_path(episode);
  const int64_t row = source_->first_row(episode);
  PictureStore store(source_->dataset.tree, table_camera_names(), 1);
  ASSIGN_OR_RETURN(const auto group, store.get(path, row));
  for (size_t i = 0; i < table_cameras_.size(); ++i) {
    TableCamera& camera = table_cameras_[i];
    const std::string shown = fmt::format("{}/{}: {}, row {}", source_->url(), path, camera.name, row);
    ASSIGN_OR_RETURN(camera.first, decoded(group->files[i][static_cast<size_t>(row - group->first_row)], shown));
    camera.first.pixels.clear();
    camera.given_height = options_.height > 0 ? options_.height : camera.first.height;
    camera.given_width = options_.width > 0 ? options_.width : camera.first.width;
  }
  return {};
}

// LeRobot gives pictures of tables with the dimension of a window even of one time, those of videos without it.
void Feed::add_table_camera(TableCamera& camera, bool has_window) {
  std::vector<int64_t> shape;
  if (has_window) shape.push_back(std::ssize(camera.deltas));
  const int64_t channels = camera.first.channels;
  if (options_.channels_last) {
    shape.insert(shape.end(), {camera.given_height, camera.given_width, channels});
  } else {
    shape.insert(shape.end(), {channels, camera.given_height, camera.given_width});
  }
  camera.array = arrays_.size();
  const bool is_float = options_.float_pictures || options_.float_table_pictures;
  add_array(camera.name, is_float ? FeedArray::Type::kFloat32 : FeedArray::Type::kUint8, std::move(shape));
}

// Cut where row groups end, so that each is read by one thread; those in memory are cut further.
std::vector<Feed::PictureJob> Feed::picture_jobs(std::span<const FrameLocation> locations, PictureStore& store) const {
  std::map<std::string, std::vector<PictureJob::Wanted>> by_file;
  for (size_t c = 0; c < table_cameras_.size(); ++c) {
    const auto& deltas = table_cameras_[c].deltas;
    for (size_t i = 0; i < locations.size(); ++i) {
      const FrameLocation& at = locations[i];
      auto& wanted = by_file[source_->data_path(at.episode)];
      for (size_t d = 0; d < deltas.size(); ++d) {
        const int64_t row = source_->first_row(at.episode) + clamp(at, deltas[d]);
        wanted.push_back({row, c, i * deltas.size() + d, at.episode});
      }
    }
  }
  std::vector<PictureJob> jobs;
  for (auto& [path, wanted] : by_file) {
    std::ranges::stable_sort(wanted, {}, [](const auto& each) { return std::tuple(each.row, each.camera); });
    const size_t most = std::max<size_t>(1, wanted.size() / static_cast<size_t>(options_.threads));
    for (size_t begin = 0, end = 0; begin < wanted.size(); begin = end) {
      const auto known = store.known(path, wanted[begin].row);
      end = known && known->in_memory ? std::min(begin + most, wanted.size()) : wanted.size();
      if (known) {
        const auto behind = std::ranges::lower_bound(wanted, known->end, {}, &PictureJob::Wanted::row);
        end = std::min(end, static_cast<size_t>(behind - wanted.begin()));
      }
      jobs.push_back(
          {path, {wanted.begin() + static_cast<ptrdiff_t>(begin), wanted.begin() + static_cast<ptrdiff_t>(end)}});
    }
  }
  return jobs;
}

Result<images::Picture> Feed::table_picture(const TableCamera& camera, const std::string& file,
                                            const std::string& shown) const {
  ASSIGN_OR_RETURN(images::Picture picture, decoded(file, shown));
  const images::Picture& first = camera.first;
  if (picture.height != first.height || picture.width != first.width || picture.channels != first.channels) {
    return fail(ErrorCode::kCorruption, "{}: it is {} x {} of {} channels, and the first is {} x {} of {} [LR031]",
                shown, picture.width, picture.height, picture.channels, first.width, first.height, first.channels);
  }
  if (camera.given_height == first.height && camera.given_width == first.width) return picture;
  return images::resize(picture, options_.height, options_.width, options_.fit);
}

Status Feed::put_pictures(const PictureJob& job, std::span<std::byte* const> arrays, PictureStore& store,
                          const std::stop_token& stop) const {
  std::shared_ptr<const PictureGroup> group;
  images::Picture picture;
  const PictureJob::Wanted* before = nullptr;  // of whom `picture` is
  for (const auto& wanted : job.wanted) {
    if (stop.stop_requested()) return fail(ErrorCode::kCancelled, "stopped");
    const TableCamera& camera = table_cameras_[wanted.camera];
    if (group == nullptr || wanted.row >= group->first_row + group->rows) {
      group.reset();  // so that a thread holds one of them
      ASSIGN_OR_RETURN(group, with_context(store.get(job.path, wanted.row), fmt::format("episode {}", wanted.episode)));
    }
    if (before == nullptr || before->row != wanted.row || before->camera != wanted.camera) {
      const std::string& file = group->files[wanted.camera][static_cast<size_t>(wanted.row - group->first_row)];
      const std::string shown = fmt::format("{}/{}: episode {}, {}, row {}", source_->url(), job.path, wanted.episode,
                                            camera.name, wanted.row);
      ASSIGN_OR_RETURN(picture, table_picture(camera, file, shown));
      before = &wanted;
    }
    const PictureLayout layout{.channels = static_cast<size_t>(picture.channels),
                               .is_float = options_.float_pictures || options_.float_table_pictures,
                               .channels_last = options_.channels_last};
    const size_t slot_bytes = picture.pixels.size() * (layout.is_float ? sizeof(float) : 1);
    put_picture(std::as_bytes(std::span(picture.pixels)), layout, arrays[camera.array] + wanted.slot * slot_bytes);
  }
  return {};
}

}  // namespace millrace::lerobot
