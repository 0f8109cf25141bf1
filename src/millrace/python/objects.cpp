// SPDX-License-Identifier: Apache-2.0
// Objects that are open for reading or writing: what millrace.open and millrace.fsspec stand on.
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "millrace/base/text/units.h"
#include "millrace/cache/cached_storage.h"
#include "millrace/loader/user_folder.h"
#include "millrace/python/interruptible.h"
#include "millrace/python/path_arg.h"
#include "millrace/python/stoppable_object.h"
#include "millrace/storage/url.h"

namespace millrace::python {

namespace {

using Buffer = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using ConstBuffer = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// An open object; `millrace.open` puts a file object around it.
class PyReader {
 public:
  // `cache`: the directory of the node's cache; empty: none.
  PyReader(const PathArg& url, const std::string& cache, const std::string& cache_bytes) : object_(url.text) {
    const Location& at = object_.location();
    storage_ = at.storage;
    if (!cache.empty() && !cache::lies_on_this_node(at)) {
      const int64_t cap = unwrap(with_context(parse_bytes(cache_bytes), "cache_bytes"));
      auto opened = object_.run<std::shared_ptr<cache::NodeCache>>(
          [&] { return cache::NodeCache::of_process({.directory = cache, .cap_bytes = cap}, object_.stop()); });
      storage_ = cache::make_cached_storage(storage_, std::move(opened), {.stop = object_.stop()});
    }
    reader_ = object_.run<std::unique_ptr<RandomReader>>([&] { return storage_->open_read(at.object_key()); });
  }
  ~PyReader() {
    const GilRelease release;
    reader_.reset();
    storage_.reset();
  }
  int64_t read_into(int64_t offset, const Buffer& out) {
    if (offset < 0) throw nb::value_error("offset: it is negative");
    const int64_t size = std::clamp<int64_t>(reader_->size() - offset, 0, static_cast<int64_t>(out.size()));
    object_.run<void>([&] {
      return reader_->read_at(std::min(offset, reader_->size()),
                              std::as_writable_bytes(std::span<uint8_t>(out.data(), static_cast<size_t>(size))));
    });
    return size;
  }
  // `size` bytes, fewer at the end; straight into the object that is answered.
  nb::bytes read(int64_t offset, int64_t size) const {
    if (offset < 0 || size < 0) throw nb::value_error("read: offset and size are not negative");
    const int64_t begin = std::min(offset, reader_->size());
    Piece piece = make_piece(std::min(size, reader_->size() - begin));
    if (!piece.memory.empty()) object_.run<void>([&] { return reader_->read_at(begin, piece.memory); });
    return std::move(piece.bytes);
  }
  // All at once, as the storage serves them best, which no one waits for one by one.
  nb::list read_ranges(const std::vector<int64_t>& offsets, const std::vector<int64_t>& sizes) const {
    if (offsets.size() != sizes.size()) throw nb::value_error("read_ranges: as many sizes as offsets are needed");
    nb::list all;
    std::stop_source stop;
    std::vector<Operation> operations;
    for (size_t i = 0; i < offsets.size(); ++i) {
      const bool inside = offsets[i] >= 0 && sizes[i] >= 0 && offsets[i] <= reader_->size() - sizes[i];
      if (!inside) {
        throw nb::value_error(fmt::format("read_ranges: {} bytes at offset {}: {} has {} bytes", sizes[i], offsets[i],
                                          reader_->name(), reader_->size())
                                  .c_str());
      }
      const Piece piece = make_piece(sizes[i]);
      all.append(piece.bytes);
      if (piece.memory.empty()) continue;
      operations.push_back(
          {.what = Operation::Read{reader_.get(), offsets[i], piece.memory}, .stop = stop.get_token()});
    }
    std::exception_ptr interrupted;
    const Status status = run_operations(operations, stop, interrupted);
    if (interrupted) std::rethrow_exception(interrupted);
    unwrap(status);
    return all;
  }
  int64_t size() const { return reader_->size(); }
  std::string version() const { return std::string(reader_->version()); }

 private:
  // A bytes object that is still being filled, which nobody else may see.
  struct Piece {
    nb::bytes bytes;
    std::span<std::byte> memory;
  };
  static Piece make_piece(int64_t size) {
    nb::object bytes = nb::steal(PyBytes_FromStringAndSize(nullptr, size));
    if (!bytes.is_valid()) throw nb::python_error();
    // SAFETY: characters as bytes.
    auto* const data = reinterpret_cast<std::byte*>(PyBytes_AsString(bytes.ptr()));
    return {nb::bytes(std::move(bytes)), {data, static_cast<size_t>(size)}};
  }

  // Ends when every operation has, also after Ctrl-C: they write into memory of Python's. The first error of them.
  Status run_operations(std::span<const Operation> operations, std::stop_source& stop,
                        std::exception_ptr& interrupted) const {
    CompletionQueue queue;
    Status first;
    {
      const GilRelease release;
      storage_->submit(operations, queue);
    }
    for (size_t left = operations.size(); left > 0;) {
      {
        const GilRelease release;
        queue.wait_for(left, Clock::now() + kSignalPoll);
      }
      while (const auto ended = queue.try_pop()) {
        --left;
        if (first && !ended->status) first = ended->status;
      }
      if (left == 0 || interrupted) continue;
      try {
        check_signals();
      } catch (...) {
        interrupted = std::current_exception();
        stop.request_stop();
      }
    }
    return first;
  }

  const StoppableObject object_;
  std::shared_ptr<Storage> storage_;  // a reader may need it
  std::unique_ptr<RandomReader> reader_;
};

// An object being written from its beginning to its end; it shows once it is committed, and never when it is not.
class PyWriter {
 public:
  PyWriter(const PathArg& url, bool exclusive) : object_(url.text) {
    const Location& at = object_.location();
    const auto condition = exclusive ? WriteOptions::Condition::kIfAbsent : WriteOptions::Condition::kReplace;
    writer_ = object_.run<std::unique_ptr<Writer>>(
        [&] { return at.storage->open_write(at.object_key(), {.condition = condition}); });
  }
  ~PyWriter() { discard(); }
  void append(const ConstBuffer& data) {
    object_.run<void>([&] {
      MutexLock lock(mutex_);
      if (!writer_) return Status(fail(ErrorCode::kInvalidArgument, "write: it is closed"));
      return writer_->append(std::as_bytes(std::span<const uint8_t>(data.data(), data.size())));
    });
  }
  void commit() {
    object_.run<void>([&]() -> Status {
      MutexLock lock(mutex_);
      if (!writer_) return fail(ErrorCode::kInvalidArgument, "commit: it is closed");
      const auto writer = std::move(writer_);
      return writer->commit().map([](const ObjectInfo&) {});
    });
  }
  void discard() {
    const GilRelease release;
    MutexLock lock(mutex_);
    writer_.reset();
  }

 private:
  const StoppableObject object_;
  Mutex mutex_;
  std::unique_ptr<Writer> writer_;
};

}  // namespace

void register_objects(nb::module_& m) {
  nb::class_<PyReader>(m, "ObjectReader", "An object that is open for reading; use millrace.open.")
      .def(nb::init<const PathArg&, const std::string&, const std::string&>(), nb::arg("url"), nb::arg("cache") = "",
           nb::arg("cache_bytes") = "0")
      .def("read_into", &PyReader::read_into,
           nb::sig("def read_into(self, offset: int, out: bytearray | memoryview) -> int"), nb::arg("offset"),
           nb::arg("out"), "Fills `out` from `offset` on; answers how many bytes there were.")
      .def("read", &PyReader::read, nb::arg("offset"), nb::arg("size"),
           "`size` bytes from `offset` on, or what is left.")
      .def("read_ranges", &PyReader::read_ranges,
           nb::sig("def read_ranges(self, offsets: Sequence[int], sizes: Sequence[int]) -> list[bytes]"),
           nb::arg("offsets"), nb::arg("sizes"), "Many ranges at once, each of them inside the object.")
      .def_prop_ro("size", &PyReader::size, "Bytes of the object.")
      .def_prop_ro("version", &PyReader::version, "What the storage calls this content.");
  nb::class_<PyWriter>(m, "ObjectWriter", "An object that is being written; use millrace.fsspec.")
      .def(nb::init<const PathArg&, bool>(), nb::arg("url"), nb::arg("exclusive") = false)
      .def("append", &PyWriter::append, nb::sig("def append(self, data: bytes | bytearray | memoryview) -> None"),
           nb::arg("data"))
      .def("commit", &PyWriter::commit, "Makes the object visible, all at once.")
      .def("discard", &PyWriter::discard, "Leaves nothing behind.");
  m.def(
      "user_folder",
      []() -> std::optional<std::string> {
        const auto folder = loader::user_folder();
        return folder ? std::optional(folder->string()) : std::nullopt;
      },
      "Where indexes of this user are kept on this node; None: nowhere.");
}

}  // namespace millrace::python
