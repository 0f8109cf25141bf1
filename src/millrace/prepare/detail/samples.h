// SPDX-License-Identifier: Apache-2.0
#pragma once

// Documents in, samples as they will lie in the shard out: the part of `prepare` that costs time and runs on every
// thread. Slices and batches are values; a SampleEncoder belongs to one thread.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/hash/hash.h"
#include "millrace/base/status.h"
#include "millrace/chat/chat.h"
#include "millrace/formats/documents.h"
#include "millrace/formats/manifest.h"
#include "millrace/prepare/prepare.h"
#include "millrace/tokenizer/tokenizer.h"

namespace millrace::prepare {

// A task's position: in front of a document, or behind the last input.
struct Position {
  int64_t input = 0;   // number among the task's inputs
  int64_t offset = 0;  // in that input: of its unpacked text, or a table's row
  int64_t line = 1;
  int64_t document = 0;  // documents before it in the task
  bool operator==(const Position&) const = default;
};

// Some adjacent documents of a chunk: the unit of work, small enough that what becomes of it stays small too.
struct Slice {
  std::shared_ptr<const formats::DocumentChunk> chunk;
  std::string source;  // for messages
  int64_t input = 0;
  size_t first = 0, last = 0;  // of chunk->documents
  int64_t first_document = 0;  // number within the task of documents[first]

  bool ends_chunk() const { return last == chunk->documents.size(); }
  int64_t bytes() const;                 // of text, that this slice accounts for
  Position position_of(size_t i) const;  // of documents[first + i]
  Position end() const;                  // behind the slice; its line is counted at a chunk's end of a table only
};

struct Sample {
  int64_t document = 0;  // its number within the task
  uint64_t size = 0;     // bytes of it in Batch::bytes
  uint64_t hash = 0;     // XXH3-64 of them
  uint32_t tokens = 0;
  uint32_t invalid_utf8 = 0;
  Hash128 text_hash;  // XXH3-128, when duplicates are looked for
};

// A document that gave no sample.
struct Dropped {
  int64_t document = 0;  // its number within the task; for one that the reader left out, that of its neighbour before
  std::optional<formats::LeftOut> rejected;  // nullopt: its length is outside the rules, or it is empty
  int64_t empties = 0;                       // instead: a number of documents without text
};

struct Batch {
  Slice slice;
  std::string bytes;             // of the samples, back to back
  std::vector<Sample> samples;   // in the order of their documents
  std::vector<Dropped> dropped;  // in the same order
  chat::MaskTrouble trouble;
};

// Everything that decides the bytes of a document's sample: the options, and what the tokenizer makes of them.
struct SampleFormat {
  int64_t task = 0;  // keys are "{task:05}-{document:09}"
  formats::ShardOptions options;
  std::shared_ptr<const chat::ChatTemplate> chat;  // options.chat, of the tokenizer
  std::string ids_field;                           // as in ShardConfig
  size_t id_width = 4;                             // bytes of a raw id
  std::optional<uint32_t> bos, eos;                // ids of the options' tokens

  // Samples are ids alone: raw, and for BlockLayout when block_documents is not 0.
  bool raw_ids() const { return options.format != OutputFormat::kWebDataset || options.block_documents > 0; }
  bool has_text() const { return options.text && !raw_ids(); }
  // The key of a conversation's list; empty: the usual one.
  std::string_view chat_field() const {
    return options.text_field == "text" ? std::string_view() : std::string_view(options.text_field);
  }
};

// How the inputs of such samples are read.
formats::DocumentOptions document_options(const formats::ShardOptions& options);

// Whether `text`, valid UTF-8, has no character but white space: str.isspace() of Python, or empty.
bool is_blank(std::string_view text);
// `text`, valid UTF-8, without the white space at its ends that Python's str.strip() takes away.
std::string_view stripped(std::string_view text);

// Makes the members of samples. Belongs to one thread.
class MemberWriter {
 public:
  explicit MemberWriter(const SampleFormat& format);
  // Appends the members of a document; `mask` is that of a conversation.
  [[nodiscard]] Status append(int64_t document, std::string_view text, std::span<const uint32_t> ids,
                              std::span<const uint8_t> mask, std::string& out);

 private:
  // `write` appends the member's content.
  template <class Write>
  [[nodiscard]] Status member(std::string_view field, std::string& out, Write write);

  const bool mask_, text_;
  const std::string ids_field_;
  const size_t id_width_;
  std::string name_;         // "{task:05}-", and behind it what the member at hand is called
  const size_t task_bytes_;  // of name_
  size_t key_bytes_ = 0;     // of name_, up to and including the dot behind the key
};

class SampleEncoder {
 public:
  // `hashes_only`: samples are empty except for the hash of their text.
  SampleEncoder(SampleFormat format, std::shared_ptr<const tokenizer::Tokenizer> tokenizer, bool hashes_only);

  // Fills the batch from its slice; what it held is dropped, its memory is used again.
  // Errors: invalid_argument (ill-formed UTF-8 with strict_utf8, a bad JSON line), naming file, line and byte offset.
  [[nodiscard]] Status encode(Batch& batch);

 private:
  [[nodiscard]] Status encode_document(const Slice& slice, size_t i, Batch& batch);
  [[nodiscard]] Status encode_ids(std::string_view text);
  [[nodiscard]] Result<std::string_view> text_of(const Slice& slice, size_t i);
  [[nodiscard]] Result<std::string_view> field_of(std::string_view line);
  std::string_view repaired(std::string_view text);

  const SampleFormat format_;
  const bool hashes_only_;
  MemberWriter members_;
  tokenizer::Encoder encoder_;
  std::optional<chat::ChatEncoder> chat_;
  std::vector<uint32_t> ids_;
  std::vector<uint8_t> mask_;  // of a conversation
  uint32_t invalid_utf8_ = 0;  // of the document at hand
  std::string repaired_, field_;
};

}  // namespace millrace::prepare
