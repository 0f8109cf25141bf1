// SPDX-License-Identifier: Apache-2.0
#include "millrace/video/video.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <string>
#include <vector>

#include "millrace/python/arrays.h"
#include "millrace/python/path_arg.h"
#include "millrace/python/stoppable_object.h"

namespace millrace::python {

namespace {

using Frames = nb::ndarray<nb::numpy, uint8_t>;

video::PixelLayout layout_of(const std::string& name) {
  if (name == "hwc") return video::PixelLayout::kHwc;
  if (name == "chw") return video::PixelLayout::kChw;
  throw nb::value_error("layout: expected 'hwc' or 'chw'");
}

// Calls from several threads wait for one another.
class PyVideo {
 public:
  PyVideo(const PathArg& path, int threads) : object_(path.text) {
    const Location& at = object_.location();
    if (threads < 1) throw nb::value_error("threads: at least 1");
    video_ = object_.run<std::unique_ptr<video::Video>>([&]() -> Result<std::unique_ptr<video::Video>> {
      ASSIGN_OR_RETURN(file_, at.storage->open_read(at.object_key()));
      return video::open_video(*file_, {.threads = threads});
    });
  }

  Frames frames(const std::vector<int64_t>& numbers, const std::string& layout_name) {
    const video::PixelLayout layout = layout_of(layout_name);
    const video::VideoInfo& info = video_->info();
    const auto width = static_cast<size_t>(info.width), height = static_cast<size_t>(info.height);
    Memory memory = read(numbers, layout);
    const bool hwc = layout == video::PixelLayout::kHwc;
    const size_t shape[4] = {numbers.size(), hwc ? height : 3, hwc ? width : height, hwc ? 3 : width};
    uint8_t* const data = memory.bytes.get();
    return Frames(data, 4, shape, keep_alive(std::move(memory.bytes)));
  }
  Frames frame(int64_t number) {
    const int64_t count = video_->index()->frames();
    if (number < -count || number >= count) {
      throw nb::index_error(fmt::format("frame {} of {}: it has {}", number, video_->name(), count).c_str());
    }
    Memory memory = read({number < 0 ? number + count : number}, video::PixelLayout::kHwc);
    const auto& info = video_->info();
    const size_t shape[3] = {static_cast<size_t>(info.height), static_cast<size_t>(info.width), 3};
    uint8_t* const data = memory.bytes.get();
    return Frames(data, 3, shape, keep_alive(std::move(memory.bytes)));
  }
  Frames planes(int64_t number) {
    Memory memory = read({number}, video::PixelLayout::kPlanes);
    const size_t shape[1] = {memory.size};
    uint8_t* const data = memory.bytes.get();
    return Frames(data, 1, shape, keep_alive(std::move(memory.bytes)));
  }
  int64_t frame_near(double seconds, double tolerance_s) const {
    return unwrap(video_->index()->frame_near(seconds, tolerance_s));
  }

  const video::VideoInfo& info() const { return video_->info(); }
  const video::FrameIndex& index() const { return *video_->index(); }

 private:
  struct Memory {
    std::shared_ptr<uint8_t[]> bytes;  // not cleared first: frames are large
    size_t size = 0;
  };
  Memory read(const std::vector<int64_t>& numbers, video::PixelLayout layout) {
    const auto bytes = static_cast<size_t>(video_->frame_bytes(layout));
    const size_t size = numbers.size() * bytes;
    Memory memory{std::make_shared_for_overwrite<uint8_t[]>(size), size};
    object_.run<void>([&] {
      MutexLock lock(mutex_);
      return video_->read(numbers, std::as_writable_bytes(std::span(memory.bytes.get(), size)), {.layout = layout});
    });
    return memory;
  }

  const StoppableObject object_;  // a reader may need its storage
  Mutex mutex_;
  std::unique_ptr<RandomReader> file_;
  std::unique_ptr<video::Video> video_;
};

std::vector<bool> keys_of(const video::FrameIndex& index) {
  std::vector<bool> keys;
  for (const int64_t packet : index.packet) keys.push_back(index.packets[static_cast<size_t>(packet)].key);
  return keys;
}

}  // namespace

void register_video(nb::module_& m) {
  using Fraction = std::pair<int64_t, int64_t>;
  nb::class_<PyVideo>(m, "VideoReader",
                      "Frames of an MP4 or MOV file by their numbers, in the order they are shown, from 0.\n\n"
                      "Args:\n"
                      "    path: path or URL; of s3:// only the packets of the frames that are asked for are read.\n"
                      "    threads: of the decoder.\n"
                      "Raises: millrace.CorruptionError (naming the file and frame), FileNotFoundError,\n"
                      "    NotImplementedError (FFmpeg is missing: what to install; another container or codec).")
      .def(nb::init<const PathArg&, int>(), nb::arg("path"), nb::kw_only(), nb::arg("threads") = 1)
      .def("__len__", [](const PyVideo& v) { return v.index().frames(); })
      .def("__getitem__", &PyVideo::frame, nb::arg("number"),
           nb::sig("def __getitem__(self, number: int) -> numpy.typing.NDArray[numpy.uint8]"),
           "uint8 [height, width, 3], RGB. Raises: IndexError.")
      .def("frames", &PyVideo::frames, nb::arg("numbers"), nb::kw_only(), nb::arg("layout") = "hwc",
           nb::sig("def frames(self, numbers: collections.abc.Sequence[int], *, layout: str = 'hwc') -> "
                   "numpy.typing.NDArray[numpy.uint8]"),
           "Frames in any order, also repeated; those near each other are decoded together.\n\n"
           "Returns: uint8 [len(numbers), height, width, 3], RGB; with layout='chw' [len(numbers), 3, height, width].\n"
           "Raises: ValueError (no such frame), millrace.CorruptionError.")
      .def("planes", &PyVideo::planes, nb::arg("number"),
           nb::sig("def planes(self, number: int) -> numpy.typing.NDArray[numpy.uint8]"),
           "The decoded planes one behind the other, uint8 [bytes]: of yuv420p Y, then U and V of half the size.")
      .def("frame_near", &PyVideo::frame_near, nb::arg("seconds"), nb::arg("tolerance_s") = 1e-4,
           "The number of the frame nearest to a time, the earlier of two equally near.\n\n"
           "Raises: ValueError, unless it is less than tolerance_s away.")
      .def_prop_ro("width", [](const PyVideo& v) { return v.info().width; })
      .def_prop_ro("height", [](const PyVideo& v) { return v.info().height; })
      .def_prop_ro("codec", [](const PyVideo& v) { return v.info().codec; })
      .def_prop_ro("pixel_format", [](const PyVideo& v) { return v.info().pixel_format; })
      .def_prop_ro(
          "fps", [](const PyVideo& v) { return Fraction(v.index().fps.num, v.index().fps.den); },
          "Frames a second as numerator and denominator: exact where all frames last as long, else the mean.")
      .def_prop_ro(
          "time_base", [](const PyVideo& v) { return Fraction(v.index().time_base.num, v.index().time_base.den); },
          "Seconds of a tick, as numerator and denominator.")
      .def_prop_ro(
          "pts", [](const PyVideo& v) { return to_array(v.index().pts); }, nb::rv_policy::move,
          nb::sig("def pts(self) -> numpy.typing.NDArray[numpy.int64]"), "int64 [frames]: ticks.")
      .def_prop_ro(
          "key_frames", [](const PyVideo& v) { return keys_of(v.index()); }, "Whether each frame is a key frame.")
      .def_prop_ro(
          "has_b_frames", [](const PyVideo& v) { return v.index().reorder_depth > 0; },
          "Whether frames are decoded in another order than they are shown in.");
}

}  // namespace millrace::python
