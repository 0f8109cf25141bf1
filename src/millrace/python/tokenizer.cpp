// SPDX-License-Identifier: Apache-2.0
#include "millrace/python/tokenizer.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <filesystem>
#include <limits>
#include <new>
#include <optional>
#include <span>
#include <variant>

#include "millrace/base/memory/huge_pages.h"
#include "millrace/base/thread/executor.h"
#include "millrace/prepare/tokenizer_file.h"
#include "millrace/python/arrays.h"
#include "millrace/python/interruptible.h"
#include "millrace/python/path_arg.h"

namespace millrace::python {

namespace {

using tokenizer::Encoder;
using tokenizer::Offset;
using tokenizer::Tokenizer;

// The path at which a process with another current directory finds the file.
std::string place_of(const std::string& url) {
  if (url.find("://") != std::string::npos) return url;
  std::error_code error;
  const auto path = std::filesystem::absolute(url, error);
  return error ? url : path.string();
}

Result<std::shared_ptr<PyTokenizer>> from_file(const std::string& url) {
  ASSIGN_OR_RETURN(auto tokenizer, prepare::load_tokenizer(url));
  return std::make_shared<PyTokenizer>(std::move(tokenizer), url, place_of(url));
}

// A pickle carries the file's place and hash. Another file in that place would give other ids.
Result<std::shared_ptr<const Tokenizer>> load_pickled(const std::string& place, const std::string& hash) {
  ASSIGN_OR_RETURN(auto tokenizer, with_context(prepare::load_tokenizer(place), "unpickle a tokenizer"));
  if (to_hex(tokenizer->hash()) == hash) return tokenizer;
  return fail(ErrorCode::kCorruption, "unpickle a tokenizer: {} has changed since it was pickled (hash {}, then {})",
              place, to_hex(tokenizer->hash()), hash);
}

// Checks its argument here: the Python function that does so for others costs as much as a short text.
nb::ndarray<nb::numpy, uint32_t> encode(PyTokenizer& self, nb::handle text, bool add_special_tokens) {
  if (!PyUnicode_Check(text.ptr())) {
    const std::string given = nb::type_name(text.type()).c_str();
    throw nb::type_error(fmt::format("Tokenizer.encode(): text is str, not {}", given).c_str());
  }
  const std::string_view view = utf8_of(text);
  std::vector<uint32_t> ids;
  without_gil([&] {
    return self.with_encoder([&](Encoder& encoder) { return encoder.encode(view, {add_special_tokens}, ids); });
  });
  return to_array(std::move(ids));
}

// The texts [begin, end) of a batch, which one thread encodes.
struct Segment {
  size_t begin = 0, end = 0;
  size_t bytes = 0;  // at most so many
};

// Several for each thread, so that all end at about the same time; few enough that each has words to repeat.
std::vector<Segment> segments_of(std::span<const StrView> texts, size_t bytes, int threads) {
  constexpr size_t kLeastBytes = 64 << 10;
  const size_t wanted = std::max(kLeastBytes, bytes / (static_cast<size_t>(threads) * 8));
  std::vector<Segment> segments;
  for (size_t i = 0; i < texts.size(); ++i) {
    if (segments.empty() || segments.back().bytes >= wanted) segments.push_back({.begin = i});
    segments.back().end = i + 1;
    segments.back().bytes += texts[i].most_bytes();
  }
  return segments;
}

std::vector<uint32_t> with_room(size_t text_bytes) {
  std::vector<uint32_t> ids;
  ids.reserve(text_bytes / 2);  // few texts have more, and untouched memory is free
  return ids;
}

// The ids of a batch of texts, in memory whose pages are mapped a step ahead of the ids.
class BatchIds {
 public:
  explicit BatchIds(size_t text_bytes)
      : ids(with_room(text_bytes)), reserved_(ids.data()), pages_(ids.data(), ids.capacity() * sizeof(uint32_t)) {}
  // Before up to `count` more are appended.
  void expect(size_t count) {
    if (ids.data() == reserved_) pages_.reach((ids.size() + count) * sizeof(uint32_t));
  }

  std::vector<uint32_t> ids;
  std::vector<int64_t> offsets{0};  // of each text, and the end

 private:
  const uint32_t* reserved_;
  PagesAhead pages_;
};

// Joins the ids of segments in the order of the texts, as they come. A segment that is early waits; the memory of one
// that was joined holds the next one. Thread-safe.
class SegmentJoin {
 public:
  struct Part {
    std::vector<uint32_t> ids;
    std::vector<int64_t> ends;  // of each text in `ids`
  };

  SegmentJoin(size_t segments, size_t text_bytes) : parts_(segments), batch_(text_bytes) {}

  // An empty part, with room for the ids of such a text.
  Part take(size_t text_bytes) {
    MutexLock lock(mutex_);
    if (spare_.empty()) return {.ids = with_room(text_bytes)};
    Part part = std::move(spare_.back());
    spare_.pop_back();
    return part;
  }
  void put(size_t segment, Part part) {
    MutexLock lock(mutex_);
    parts_[segment] = std::move(part);
    for (; next_ < parts_.size() && parts_[next_]; ++next_) {
      Part& next = *parts_[next_];
      const int64_t before = std::ssize(batch_.ids);
      batch_.expect(next.ids.size());
      batch_.ids.insert(batch_.ids.end(), next.ids.begin(), next.ids.end());
      for (const int64_t end : next.ends) batch_.offsets.push_back(before + end);
      next.ids.clear();
      next.ends.clear();
      spare_.push_back(std::move(next));
      parts_[next_].reset();
    }
  }
  // REQUIRES: all segments were put.
  BatchIds join() {
    MutexLock lock(mutex_);
    return std::move(batch_);
  }

 private:
  Mutex mutex_;
  std::vector<std::optional<Part>> parts_ GUARDED_BY(mutex_);  // those that are early
  std::vector<Part> spare_ GUARDED_BY(mutex_);
  size_t next_ GUARDED_BY(mutex_) = 0;  // the first segment that is not in batch_
  BatchIds batch_ GUARDED_BY(mutex_);
};

// The number of the first text with a lone surrogate, if there is one.
Result<std::variant<BatchIds, size_t>> encode_in_threads(PyTokenizer& self, std::span<const StrView> texts,
                                                         size_t bytes, bool add_special_tokens, int threads,
                                                         const std::stop_token& stop) {
  const std::vector<Segment> segments = segments_of(texts, bytes, threads);
  std::atomic<size_t> bad{texts.size()};
  SegmentJoin join(segments.size(), bytes);
  const auto encode_segment = [&](const Segment& segment, Encoder& encoder, SegmentJoin::Part& part) -> Status {
    std::vector<char> scratch;
    for (size_t i = segment.begin; i < segment.end; ++i) {
      if (stop.stop_requested()) return fail(ErrorCode::kCancelled, "encode_batch: stopped");
      std::string_view text;
      if (!texts[i].utf8(scratch, text)) {
        for (size_t first = bad; i < first && !bad.compare_exchange_weak(first, i);) {
        }
        return {};
      }
      RETURN_IF_ERROR(encoder.encode(text, {add_special_tokens}, part.ids));
      part.ends.push_back(std::ssize(part.ids));
    }
    return {};
  };
  const auto encode_and_put = [&](int64_t i) -> Status {
    const auto at = static_cast<size_t>(i);
    SegmentJoin::Part part = join.take(segments[at].bytes);
    RETURN_IF_ERROR(self.with_encoder([&](Encoder& encoder) { return encode_segment(segments[at], encoder, part); }));
    join.put(at, std::move(part));
    return {};
  };
  RETURN_IF_ERROR(parallel_try(std::ssize(segments), threads - 1, "mr-encode", encode_and_put));
  if (bad < texts.size()) return bad.load();
  return join.join();
}

nb::tuple encode_batch(PyTokenizer& self, nb::sequence texts, bool add_special_tokens, int threads) {
  if (threads < 1) throw nb::value_error("Tokenizer.encode_batch(): threads must be 1 or more");
  std::vector<StrView> views;
  std::vector<nb::object> alive;
  size_t bytes = 0;
  for (nb::handle text : texts) {
    alive.push_back(nb::borrow(text));
    views.emplace_back(text);
    bytes += views.back().most_bytes();
  }
  if (threads > 1 && views.size() > 1) {
    auto result = interruptible<std::variant<BatchIds, size_t>>([&](const std::stop_token& stop) {
      return encode_in_threads(self, views, bytes, add_special_tokens, threads, stop);
    });
    if (const size_t* const bad = std::get_if<size_t>(&result)) utf8_of(alive[*bad]);  // its error names the text
    auto& batch = std::get<BatchIds>(result);
    return nb::make_tuple(to_array(std::move(batch.ids)), to_array(std::move(batch.offsets)));
  }
  BatchIds batch(bytes);
  std::vector<char> scratch;
  nb::handle has_surrogates;
  size_t next = 0;
  const auto encode_until = [&](Encoder& encoder, Clock::time_point deadline) -> Status {
    while (next < views.size() && !has_surrogates.is_valid()) {
      std::string_view text;
      if (!views[next].utf8(scratch, text)) {
        has_surrogates = alive[next];
        return {};
      }
      batch.expect(text.size() / 4);
      RETURN_IF_ERROR(encoder.encode(text, {add_special_tokens}, batch.ids));
      batch.offsets.push_back(std::ssize(batch.ids));
      ++next;
      if (Clock::now() >= deadline) return {};
    }
    return {};
  };
  while (next < views.size() && !has_surrogates.is_valid()) {
    without_gil([&] {
      return self.with_encoder([&](Encoder& encoder) { return encode_until(encoder, Clock::now() + kSignalPoll); });
    });
    check_signals();
  }
  if (has_surrogates.is_valid()) utf8_of(has_surrogates);  // its error names the text
  return nb::make_tuple(to_array(std::move(batch.ids)), to_array(std::move(batch.offsets)));
}

nb::tuple encode_with_offsets(PyTokenizer& self, nb::str text, bool add_special_tokens) {
  const std::string_view view = utf8_of(text);
  std::vector<uint32_t> ids;
  auto offsets = std::make_shared<std::vector<Offset>>();
  without_gil([&] {
    return self.with_encoder(
        [&](Encoder& encoder) { return encoder.encode(view, {add_special_tokens}, ids, offsets.get()); });
  });
  static_assert(sizeof(Offset) == 2 * sizeof(int64_t));
  const size_t shape[2] = {offsets->size(), 2};
  // SAFETY: an Offset is two int64_t.
  auto* const data = reinterpret_cast<int64_t*>(offsets->data());
  return nb::make_tuple(to_array(std::move(ids)),
                        nb::ndarray<nb::numpy, int64_t>(data, 2, shape, keep_alive(std::move(offsets))));
}

// Accepts integers of Python, NumPy and torch, not values that convert to one (1.5, "7", True).
uint32_t id_of(nb::handle value, size_t place) {
  const auto refuse = [&](const char* reason) {
    return fmt::format("ids[{}] is {}, which is not a token id: {}", place, nb::cast<std::string>(nb::repr(value)),
                       reason);
  };
  if (PyBool_Check(value.ptr()) || !PyIndex_Check(value.ptr())) {
    throw nb::type_error(refuse("ids are integers").c_str());
  }
  const nb::object number = nb::steal(PyNumber_Index(value.ptr()));
  if (!number.is_valid()) throw nb::python_error();
  int overflow = 0;
  const long long id = PyLong_AsLongLongAndOverflow(number.ptr(), &overflow);
  if (overflow != 0 || id < 0 || id > std::numeric_limits<uint32_t>::max()) {
    throw nb::value_error(refuse("ids are 0 to 2^32 - 1").c_str());
  }
  return static_cast<uint32_t>(id);
}

std::string decode(PyTokenizer& self, nb::object ids, bool skip_special_tokens) {
  std::vector<uint32_t> values;
  nb::ndarray<const uint32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu> array;
  if (nb::try_cast(ids, array, false)) {
    values.assign(array.data(), array.data() + array.size());
  } else {
    for (nb::handle id : ids) values.push_back(id_of(id, values.size()));
  }
  return without_gil([&] { return self.get().decode(values, skip_special_tokens); });
}

}  // namespace

void register_tokenizer(nb::module_& m) {
  nb::class_<PyTokenizer>(m, "Tokenizer",
                          "A Hugging Face tokenizer.json: the ids that the package `tokenizers` gives. Thread-safe.")
      .def_static(
          "from_file", [](const PathArg& url) { return without_gil([&] { return from_file(url.text); }); },
          nb::arg("path"),
          "Reads a tokenizer.json, or a tiktoken.model (a path or URL; docs/tokenizer.md).\n\nRaises "
          "FileNotFoundError, ValueError (not a tokenizer.json) or "
          "NotImplementedError, naming the component that this version does not have.")
      .def(
          "encode", &encode, nb::arg("text"), nb::arg("add_special_tokens") = true,
          nb::sig("def encode(self, text: str, add_special_tokens: bool = True) -> numpy.typing.NDArray[numpy.uint32]"),
          "Returns the ids of one text: uint32 [n]. Raises UnicodeEncodeError for lone surrogates.")
      .def("encode_batch", &encode_batch, nb::arg("texts"), nb::arg("add_special_tokens") = true, nb::kw_only(),
           nb::arg("threads") = 1,
           nb::sig("def encode_batch(self, texts: collections.abc.Sequence[str], add_special_tokens: bool = True, *, "
                   "threads: int = 1) -> tuple[numpy.typing.NDArray[numpy.uint32], numpy.typing.NDArray[numpy.int64]]"),
           "Ids of all texts end to end, uint32 [total], and where each begins, int64 [len(texts) + 1]: "
           "text i has ids[offsets[i]:offsets[i + 1]]. With several threads the ids are the same. Raises ValueError "
           "(threads below 1), UnicodeEncodeError (lone surrogates).")
      .def("encode_with_offsets", &encode_with_offsets, nb::arg("text"), nb::arg("add_special_tokens") = true,
           nb::sig("def encode_with_offsets(self, text: str, add_special_tokens: bool = True) -> "
                   "tuple[numpy.typing.NDArray[numpy.uint32], numpy.typing.NDArray[numpy.int64]]"),
           "Ids, uint32 [n], and the bytes [begin, end) of the text's UTF-8 that each stands for, int64 [n, 2].")
      .def("decode", &decode, nb::arg("ids"), nb::arg("skip_special_tokens") = true,
           nb::sig("def decode(self, ids: numpy.typing.ArrayLike, skip_special_tokens: bool = True) -> str"),
           "The text of ids, as `tokenizers` decodes it: ids from 0 to 2^32 - 1 that have no token give no text.\n\n"
           "Raises TypeError (not an integer) or ValueError (negative, or above 32 bits), naming the place.")
      .def(
          "token_to_id", [](PyTokenizer& self, std::string_view token) { return self.get().token_to_id(token); },
          nb::arg("token"), "Returns the id of a token, which is spelled as in the file, or None.")
      .def(
          "id_to_token", [](PyTokenizer& self, uint32_t id) { return self.get().id_to_token(id); }, nb::arg("id"),
          "Returns the token as the file spells it, or None.")
      .def_prop_ro(
          "vocab_size", [](PyTokenizer& self) { return self.get().vocab_size(); },
          "Number of distinct tokens, added tokens included.")
      .def_prop_ro(
          "id_limit", [](PyTokenizer& self) { return self.get().id_limit(); },
          "The largest id + 1: the rows that an embedding needs.")
      .def_prop_ro(
          "hash", [](PyTokenizer& self) { return to_hex(self.get().hash()); },
          "XXH3-128 of the file's bytes, hexadecimal.")
      .def("__getstate__", [](PyTokenizer& self) { return std::make_pair(self.place(), to_hex(self.get().hash())); })
      .def("__setstate__",
           [](PyTokenizer& self, const std::pair<std::string, std::string>& state) {
             auto loaded = without_gil([&] { return load_pickled(state.first, state.second); });
             new (&self) PyTokenizer(std::move(loaded), state.first, state.first);
           })
      .def("__repr__", [](PyTokenizer& self) {
        return fmt::format("<millrace.Tokenizer {} ({} tokens)>", self.source(), self.get().vocab_size());
      });
}

}  // namespace millrace::python
