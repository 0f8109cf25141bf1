// SPDX-License-Identifier: Apache-2.0
#include "millrace/chat/chat.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include "millrace/formats/npy.h"
#include "millrace/formats/shard_index.h"
#include "millrace/formats/tar.h"
#include "millrace/python/arrays.h"
#include "millrace/python/tokenizer.h"
#include "millrace/storage/url.h"

namespace millrace::python {

namespace {

using chat::ChatEncoder;
using chat::ChatTemplate;
using chat::LearnedSpan;
using chat::MaskTrouble;
using tokenizer::Offset;

// ids, mask, turns lost, turns overrun.
nb::tuple encoded(std::vector<uint32_t> ids, std::vector<uint8_t> mask, const MaskTrouble& trouble) {
  return nb::make_tuple(to_array(std::move(ids)), to_array(std::move(mask)), trouble.lost, trouble.overrun);
}

// A template with its encoder, used by one thread at a time.
class NativeChat {
 public:
  NativeChat(std::string_view name, PyTokenizer& tokenizer, bool refuse_control_text, bool last_turn_only)
      : encoder_(unwrap(ChatTemplate::named(name, tokenizer.shared(), {refuse_control_text, last_turn_only}))) {}

  nb::tuple encode_line(nb::str line) {
    const std::string_view view = utf8_of(line);
    std::vector<uint32_t> ids;
    std::vector<uint8_t> mask;
    std::string text;
    MaskTrouble trouble;
    without_gil([&]() -> Status {
      MutexLock lock(mutex_);
      RETURN_IF_ERROR(encoder_.encode_line(view, {}, ids, mask));
      text = encoder_.text();
      trouble = encoder_.trouble();
      return {};
    });
    return nb::make_tuple(text, encoded(std::move(ids), std::move(mask), trouble));
  }

 private:
  Mutex mutex_;
  ChatEncoder encoder_ GUARDED_BY(mutex_);
};

nb::tuple encode_rendered(PyTokenizer& tokenizer, nb::str text, const std::vector<std::pair<int64_t, int64_t>>& spans) {
  const std::string_view view = utf8_of(text);
  std::vector<LearnedSpan> learned;
  for (const auto& [begin, last] : spans) learned.push_back({begin, last});
  std::vector<uint32_t> ids;
  std::vector<uint8_t> mask;
  std::vector<Offset> offsets;
  MaskTrouble trouble;
  without_gil([&]() -> Status {
    RETURN_IF_ERROR(tokenizer.with_encoder([&](tokenizer::Encoder& encoder) {
      return encoder.encode(view, {.add_special_tokens = false}, ids, &offsets);
    }));
    mask.resize(ids.size());
    trouble = chat::mark_learned(offsets, learned, mask);
    return {};
  });
  return encoded(std::move(ids), std::move(mask), trouble);
}

struct ShardSample {
  std::string key;
  std::vector<uint32_t> ids;
  std::vector<uint8_t> mask;
  std::optional<std::string> text;
};

// Members in byte order of their names, as prepare has them.
Status append_sample(const ShardSample& sample, std::string& tar) {
  std::string file;
  formats::append_npy_u8(file, sample.mask);
  RETURN_IF_ERROR(formats::append_tar_member(tar, sample.key + ".loss_mask.npy", as_bytes(file)));
  if (sample.text) RETURN_IF_ERROR(formats::append_tar_member(tar, sample.key + ".text.txt", as_bytes(*sample.text)));
  file.clear();
  formats::append_npy_u32(file, sample.ids);
  return formats::append_tar_member(tar, sample.key + ".token_ids.npy", as_bytes(file));
}

// A shard of chat samples that is built in memory and written at once, with its index.
class ChatShard {
 public:
  using Ids = nb::ndarray<const uint32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
  using Mask = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

  int64_t add(std::string key, const Ids& ids, const Mask& mask, std::optional<std::string> text) {
    const ShardSample sample{std::move(key),
                             {ids.data(), ids.data() + ids.size()},
                             {mask.data(), mask.data() + mask.size()},
                             std::move(text)};
    unwrap(append_sample(sample, tar_));
    return static_cast<int64_t>(tar_.size());
  }

  void write(const std::string& url, PyTokenizer& tokenizer) {
    without_gil([&]() -> Status {
      ASSIGN_OR_RETURN(const Location at, open_url(url));
      formats::append_tar_end(tar_);
      ASSIGN_OR_RETURN(auto index, formats::index_shard(MemoryReader(as_bytes(tar_), url)));
      index.tokenizer_hash = tokenizer.get().hash();
      WriteOptions options;
      options.condition = WriteOptions::Condition::kIfAbsent;
      RETURN_IF_ERROR(write_object(*at.storage, at.key, tar_, options));
      RETURN_IF_ERROR(write_object(*at.storage, at.key + ".index", formats::serialize_shard_index(index)));
      tar_.clear();
      return {};
    });
  }

 private:
  std::string tar_;
};

}  // namespace

void register_chat(nb::module_& m) {
  m.def("chat_template_names", &ChatTemplate::names, "Lists the names of the native chat templates.");
  nb::class_<NativeChat>(m, "NativeChat", "A native chat template with a tokenizer. Thread-safe.")
      .def(nb::init<std::string_view, PyTokenizer&, bool, bool>(), nb::arg("name"), nb::arg("tokenizer"),
           nb::arg("refuse_control_text") = false, nb::arg("last_turn_only") = false,
           "Raises ValueError: an unknown name, or a token that the tokenizer does not have.")
      .def("encode_line", &NativeChat::encode_line, nb::arg("line"),
           nb::sig("def encode_line(self, line: str) -> tuple[str, tuple[numpy.typing.NDArray[numpy.uint32], "
                   "numpy.typing.NDArray[numpy.uint8], int, int]]"),
           "A line of jsonl: the text, then what encode_rendered gives. Raises ValueError naming the message.");
  m.def("encode_rendered", &encode_rendered, nb::arg("tokenizer"), nb::arg("text"), nb::arg("spans"),
        nb::sig("def encode_rendered(tokenizer: Tokenizer, text: str, spans: "
                "collections.abc.Sequence[tuple[int, int]]) -> tuple[numpy.typing.NDArray[numpy.uint32], "
                "numpy.typing.NDArray[numpy.uint8], int, int]"),
        "Ids of a rendered conversation and the mask of its learned spans, (first byte, first byte of the last "
        "character); then how many turns were lost and how many ran to the end.");
  nb::class_<ChatShard>(m, "ChatShard", "A shard of chat samples, built in memory.")
      .def(nb::init<>())
      .def("add", &ChatShard::add, nb::arg("key"), nb::arg("ids"), nb::arg("mask"), nb::arg("text") = nb::none(),
           nb::sig("def add(self, key: str, ids: numpy.typing.NDArray[numpy.uint32], mask: "
                   "numpy.typing.NDArray[numpy.uint8], text: str | None = None) -> int"),
           "Adds a sample; returns the shard's bytes so far.")
      .def("write", &ChatShard::write, nb::arg("url"), nb::arg("tokenizer"),
           "Writes the shard and its index, and empties this object. Raises FileExistsError (the shard is there).");
}

}  // namespace millrace::python
