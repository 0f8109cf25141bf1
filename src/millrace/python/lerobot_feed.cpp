// SPDX-License-Identifier: Apache-2.0
#include "millrace/python/lerobot_feed.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "millrace/base/text/units.h"
#include "millrace/python/arrays.h"
#include "millrace/python/pyarrow.h"

namespace millrace::python {

namespace {

using lerobot::Feed;
using lerobot::FeedArray;
using lerobot::FeedOptions;

nb::object array_of(const FeedArray& array, std::shared_ptr<std::byte[]> memory, size_t count) {
  std::vector<size_t> shape{count};
  for (const int64_t size : array.shape) shape.push_back(static_cast<size_t>(size));
  std::byte* const data = memory.get();
  const nb::capsule owner = keep_alive(std::move(memory));
  switch (array.type) {
    case FeedArray::Type::kFloat32:
      return nb::ndarray<nb::numpy, float>(reinterpret_cast<float*>(data), shape.size(), shape.data(), owner).cast();
    case FeedArray::Type::kInt64:
      return nb::ndarray<nb::numpy, int64_t>(reinterpret_cast<int64_t*>(data), shape.size(), shape.data(), owner)
          .cast();
    case FeedArray::Type::kBool:
      return nb::ndarray<nb::numpy, bool>(reinterpret_cast<bool*>(data), shape.size(), shape.data(), owner).cast();
    case FeedArray::Type::kUint8:
      return nb::ndarray<nb::numpy, uint8_t>(reinterpret_cast<uint8_t*>(data), shape.size(), shape.data(), owner)
          .cast();
  }
  return nb::none();
}

std::vector<int64_t> first_rows_of(const PyFeed& self) {
  std::vector<int64_t> begins;
  for (size_t i = 0; i <= self.feed().episodes().size(); ++i) begins.push_back(self.feed().first_row(i));
  return begins;
}

std::vector<std::string> feed_cameras(const PyFeed& self) {
  std::vector<std::string> names;
  for (const auto& feature : self.dataset().info.features) {
    const auto has_its_name = [&](const FeedArray& array) { return array.name == feature.name; };
    if (feature.is_picture() && std::ranges::any_of(self.feed().arrays(), has_its_name)) names.push_back(feature.name);
  }
  return names;
}

nb::dict feed_features(const PyFeed& self) {
  nb::dict all;
  for (const auto& feature : self.dataset().info.features) {
    nb::dict each;
    each["dtype"] = feature.dtype;
    each["shape"] = nb::tuple(nb::cast(feature.shape));
    each["names"] = feature.has_names ? nb::cast(feature.names) : nb::none();
    all[nb::str(feature.name.c_str())] = each;
  }
  return all;
}

}  // namespace

PyFeed::PyFeed(const PathArg& url, FeedOptions options) : object_(url.text) {
  find_pyarrow();
  feed_ = object_.run<std::unique_ptr<Feed>>(
      [&] { return Feed::open(object_.location(), std::move(options), object_.stop()); });
}

PyFeed::~PyFeed() {
  const GilRelease release;
  feed_.reset();
}

nb::dict PyFeed::read(const std::vector<int64_t>& rows) const {
  const auto arrays = feed_->arrays();
  std::vector<std::shared_ptr<std::byte[]>> memory;  // not cleared first: pictures are large
  std::vector<std::byte*> data;
  for (const FeedArray& array : arrays) {
    const size_t bytes = rows.size() * static_cast<size_t>(array.row_bytes);
    memory.push_back(std::make_shared_for_overwrite<std::byte[]>(std::max<size_t>(bytes, 1)));
    data.push_back(memory.back().get());
  }
  std::vector<std::vector<std::string>> texts(feed_->texts().size());
  object_.run<void>([&] { return feed_->read(rows, data, texts); });
  nb::dict batch;
  for (size_t i = 0; i < arrays.size(); ++i) {
    batch[nb::str(arrays[i].name.c_str())] = array_of(arrays[i], std::move(memory[i]), rows.size());
  }
  for (size_t i = 0; i < texts.size(); ++i) batch[nb::str(feed_->texts()[i].c_str())] = nb::cast(texts[i]);
  return batch;
}

void register_lerobot_feed(nb::module_& m) {
  using Seconds = std::map<std::string, std::vector<double>>;
  using Rows = std::map<std::string, std::vector<int64_t>>;
  nb::class_<PyFeed>(m, "LeRobotFeed",
                     "Rows of a robot dataset; millrace.lerobot.Dataset is the way to use it. Thread-safe.")
      .def(
          "__init__",
          [](PyFeed* self, const PathArg& url, std::optional<std::vector<int64_t>> episodes,
             std::optional<std::vector<std::string>> cameras, Seconds delta_timestamps, Rows delta_rows,
             double tolerance_s, int64_t skip_first, int64_t skip_last, bool float_pictures, bool float_table_pictures,
             bool channels_last, std::pair<int64_t, int64_t> size, std::string_view fit, std::string cache,
             std::string_view cache_bytes, int threads, int64_t most_decoders, int64_t decoder_bytes,
             int64_t row_bytes) {
            new (self) PyFeed(url, {.episodes = std::move(episodes),
                                    .cameras = std::move(cameras),
                                    .deltas = std::move(delta_rows),
                                    .delta_seconds = std::move(delta_timestamps),
                                    .tolerance_s = tolerance_s,
                                    .skip_first = skip_first,
                                    .skip_last = skip_last,
                                    .float_pictures = float_pictures,
                                    .float_table_pictures = float_table_pictures,
                                    .channels_last = channels_last,
                                    .height = size.first,
                                    .width = size.second,
                                    .fit = unwrap(images::parse_fit(fit)),
                                    .cache = std::move(cache),
                                    .cache_bytes = unwrap(with_context(parse_bytes(cache_bytes), "cache_bytes")),
                                    .threads = threads,
                                    .most_decoders = most_decoders,
                                    .decoder_bytes = decoder_bytes,
                                    .row_bytes = row_bytes});
          },
          nb::arg("url"), nb::kw_only(), nb::arg("episodes") = nb::none(), nb::arg("cameras") = nb::none(),
          nb::arg("delta_timestamps") = Seconds(), nb::arg("delta_rows") = Rows(), nb::arg("tolerance_s") = 1e-4,
          nb::arg("skip_first") = 0, nb::arg("skip_last") = 0, nb::arg("float_pictures") = false,
          nb::arg("float_table_pictures") = false, nb::arg("channels_last") = false,
          nb::arg("size") = std::pair<int64_t, int64_t>(0, 0), nb::arg("fit") = "crop", nb::arg("cache") = "",
          nb::arg("cache_bytes") = "0", nb::arg("threads") = 0, nb::arg("most_decoders") = 32,
          nb::arg("decoder_bytes") = int64_t{1} << 30, nb::arg("row_bytes") = int64_t{1} << 30)
      .def("__len__", [](const PyFeed& self) { return self.feed().rows(); })
      .def("read", &PyFeed::read, nb::arg("rows"),
           nb::sig("def read(self, rows: collections.abc.Sequence[int]) -> dict[str, typing.Any]"),
           "The rows with these numbers as arrays [len(rows), ...] and lists of texts, by name.")
      .def_prop_ro("fps", [](const PyFeed& self) { return self.dataset().info.frame_rate(); })
      .def_prop_ro("version", [](const PyFeed& self) { return self.dataset().info.version_text; })
      .def_prop_ro("episodes",
                   [](const PyFeed& self) {
                     const auto episodes = self.feed().episodes();
                     return std::vector<int64_t>(episodes.begin(), episodes.end());
                   })
      .def_prop_ro("first_rows", &first_rows_of, "Of each episode, and behind them the number of rows.")
      .def_prop_ro("skipped_rows", [](const PyFeed& self) { return self.feed().skipped_rows(); })
      .def(
          "read_text",
          [](const PyFeed& self, const std::string& path) -> std::optional<std::string> {
            if (self.dataset().tree.find(path) == nullptr) return std::nullopt;
            constexpr int64_t kMostBytes = 256 << 20;
            return without_gil([&] { return self.dataset().tree.read(path, kMostBytes); });
          },
          nb::arg("path"), "A file of the dataset by its path there; None: there is none.")
      .def_prop_ro("cameras", &feed_cameras)
      .def_prop_ro("tasks", [](const PyFeed& self) { return self.feed().source().tasks; })
      .def_prop_ro("features", &feed_features, nb::sig("def features(self) -> dict[str, dict[str, typing.Any]]"));
}

}  // namespace millrace::python
