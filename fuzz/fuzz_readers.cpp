// SPDX-License-Identifier: Apache-2.0
// The first byte chooses a reader, the others are the file. Whatever the bytes, a reader refuses them or gives the same
// again; what it took is held against what was written of it.
#include <array>

#include "invariants.h"
#include "millrace/chat/chat.h"
#include "millrace/formats/documents.h"
#include "millrace/formats/manifest.h"
#include "millrace/formats/npy.h"
#include "millrace/formats/safetensors.h"
#include "millrace/formats/shard_index.h"
#include "millrace/formats/tar.h"

namespace {

using namespace millrace;
using namespace millrace::formats;
using tokenizer::require;

bool tar(std::string_view file) {
  const MemoryReader reader(as_bytes(file), "a.tar");
  const auto index = index_shard(reader);
  if (!index) return false;
  require(check_shard(reader, *index).has_value(), "a shard is what its new index says");
  const std::string stored = serialize_shard_index(*index);
  const auto again = parse_shard_index(as_bytes(stored), "a.index");
  require(again && serialize_shard_index(*again) == stored, "an index reads as it was written");
  return true;
}

bool shard_index(std::string_view file) {
  const auto index = parse_shard_index(as_bytes(file), "a.index");
  if (!index) return false;
  require(serialize_shard_index(*index) == file, "no two files say the same");
  static_cast<void>(check_shard(MemoryReader(as_bytes(file)), *index));
  return true;
}

// Whatever is written in it; the checksum would keep nearly every change from being looked at.
bool shard_index_behind_its_checksum(std::string_view file) {
  std::string sealed(file);
  const Hash128 hash = xxh3_128(sealed);
  for (const uint64_t half : {hash.high, hash.low}) {
    for (int shift = 56; shift >= 0; shift -= 8) sealed += static_cast<char>(half >> shift & 255);
  }
  return shard_index(sealed);
}

bool ids(std::string_view file) {
  bool taken = false;
  for (const char* field : {"npy", "json", "u16", "u32"}) {
    std::vector<uint32_t> before = {7}, read = before;
    if (!parse_ids(field, as_bytes(file), read, "a")) {
      require(read == before, "ids are unchanged on error");
      continue;
    }
    taken = true;
    std::string written;
    append_npy_u32(written, read);
    std::vector<uint32_t> again;
    require(parse_npy_ids(as_bytes(written), again, "a").has_value() && again == read, "ids read as they were written");
  }
  static_cast<void>(npy_u8_view(as_bytes(file), "a"));
  return taken;
}

bool manifest(std::string_view file) {
  const auto config = parse_shard_config(file, "a");
  const auto part = parse_part(file, "a");
  const auto whole = parse_manifest(file, "a");
  if (part) static_cast<void>(join_parts(std::span(&*part, 1)));
  return config || part || whole;
}

bool safetensors(std::string_view file) {
  return parse_safetensors_header(MemoryReader(as_bytes(file), "a")).has_value();
}

struct Read {
  std::vector<std::string> documents;
  std::vector<int64_t> places;
  bool failed = false;
  bool operator==(const Read&) const = default;
};

Read documents_of(std::string_view file, const DocumentOptions& options) {
  const MemoryReader reader(as_bytes(file), "a.txt");
  Read read;
  const auto source = open_documents(reader, options);
  read.failed = !source;
  while (!read.failed) {
    const auto chunk = (*source)->next();
    read.failed = !chunk;
    if (!chunk || !*chunk) break;
    for (size_t i = 0; i < (*chunk)->documents.size(); ++i) {
      const DocumentSpan span = (*chunk)->documents[i];
      read.documents.push_back((*chunk)->text.substr(span.begin, span.end - span.begin));
      read.places.push_back(document_offset(**chunk, i));
    }
    if ((*chunk)->left_out) read.places.push_back((*chunk)->left_out->offset);
  }
  return read;
}

// Plain, gzip or zstd, as its first bytes say.
bool documents(std::string_view file) {
  for (const auto mode : {DocumentMode::kLine, DocumentMode::kParagraph, DocumentMode::kFile}) {
    for (const bool leave_out : {false, true}) {
      DocumentOptions options{
          .mode = mode, .chunk_bytes = 1 << 20, .max_document_bytes = 100, .leave_out_long = leave_out};
      const Read whole = documents_of(file, options);
      options.chunk_bytes = 3;
      const Read pieces = documents_of(file, options);
      // A damaged packed file may fail before or behind a document that small reads still give.
      if (!whole.failed && !pieces.failed) require(whole == pieces, "documents do not depend on the size of reads");
    }
  }
  return false;  // any text would do, and crowd out the other readers
}

bool json_line(std::string_view file) {
  const bool is_text = jsonl_text(file, "text").has_value();
  const bool is_chat = chat::parse_chat(file).has_value();
  return is_text || is_chat;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return -1;
  constexpr std::array kReaders = {tar,       shard_index, shard_index_behind_its_checksum, ids, manifest, safetensors,
                                   documents, json_line};
  // SAFETY: char may alias any object.
  const std::string_view file(reinterpret_cast<const char*>(data) + 1, size - 1);
  return kReaders[data[0] % kReaders.size()](file) ? 0 : -1;
}
