// SPDX-License-Identifier: Apache-2.0
#pragma once

// Encodes documents as samples of a shard. This is the part of `prepare` that costs time and runs on every thread.
// Slices and batches are values; a SampleEncoder belongs to one thread.

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

// A position in a task's inputs: before a document, or after the last input.
struct Position {
  int64_t input = 0;   // number among the task's inputs
  int64_t offset = 0;  // in that input: byte of its unpacked text, or row of a table
  int64_t line = 1;
  int64_t document = 0;  // documents before it in the task
  bool operator==(const Position&) const = default;
};

// Some adjacent documents of a chunk: the unit of work, small enough that its encoded form stays small too.
struct Slice {
  std::shared_ptr<const formats::DocumentChunk> chunk;
  std::string source;  // for messages
  int64_t input = 0;
  size_t first = 0, last = 0;  // range in chunk->documents
  int64_t first_document = 0;  // number of documents[first] within the task

  bool ends_chunk() const { return last == chunk->documents.size(); }
  int64_t bytes() const;                 // text bytes that this slice accounts for
  Position position_of(size_t i) const;  // position of documents[first + i]
  Position end() const;                  // after the slice; a table's line is counted only at the end of a chunk
};

struct Sample {
  int64_t document = 0;  // its number within the task
  uint64_t size = 0;     // its bytes in Batch::bytes
  uint64_t hash = 0;     // XXH3-64 of these bytes
  uint32_t tokens = 0;
  uint32_t invalid_utf8 = 0;
  Hash128 text_hash;  // XXH3-128 of the text, when duplicates are removed
};

// A document that became no sample.
struct Dropped {
  int64_t document = 0;  // its number within the task; left out by the reader: the number of the document before it
  std::optional<formats::LeftOut> rejected;  // nullopt: too short, too long, or empty
  int64_t empties = 0;                       // not 0: this many documents without text instead of one document
};

struct Batch {
  Slice slice;
  std::string bytes;             // the bytes of the samples, back to back
  std::vector<Sample> samples;   // in the order of their documents
  std::vector<Dropped> dropped;  // in the same order
  chat::MaskTrouble trouble;
};

// Everything that decides the bytes of a document's sample: the options, and the facts from the tokenizer that they
// need.
struct SampleFormat {
  int64_t task = 0;  // keys are "{task:05}-{document:09}"
  formats::ShardOptions options;
  std::shared_ptr<const chat::ChatTemplate> chat;  // options.chat for this tokenizer
  std::string ids_field;                           // as in ShardConfig
  size_t id_width = 4;                             // bytes of a raw id
  std::optional<uint32_t> bos, eos;                // ids of the tokens in the options

  // Whether samples are raw ids only. With block_documents not 0 they are for BlockLayout.
  bool raw_ids() const { return options.format != OutputFormat::kWebDataset || options.block_documents > 0; }
  bool has_text() const { return options.text && !raw_ids(); }
  // Returns the key of a conversation's list; empty: the default key.
  std::string_view chat_field() const {
    return options.text_field == "text" ? std::string_view() : std::string_view(options.text_field);
  }
};

// Returns the options to read the inputs of such samples.
formats::DocumentOptions document_options(const formats::ShardOptions& options);

// Returns whether `text`, valid UTF-8, is empty or only white space, as str.isspace() of Python defines it.
bool is_blank(std::string_view text);
// Returns `text`, valid UTF-8, without the white space at its ends that Python's str.strip() removes.
std::string_view stripped(std::string_view text);

// Writes the members of samples. Belongs to one thread.
class MemberWriter {
 public:
  explicit MemberWriter(const SampleFormat& format);
  // Appends the members of a document to `out`. `mask`: the mask of a conversation.
  [[nodiscard]] Status append(int64_t document, std::string_view text, std::span<const uint32_t> ids,
                              std::span<const uint8_t> mask, std::string& out);

 private:
  // Appends one member to `out`. `write` appends its content.
  template <class Write>
  [[nodiscard]] Status member(std::string_view field, std::string& out, Write write);

  const bool mask_, text_;
  const std::string ids_field_;
  const size_t id_width_;
  std::string name_;         // "{task:05}-", followed by the rest of the current member's name
  const size_t task_bytes_;  // length of "{task:05}-" in name_
  size_t key_bytes_ = 0;     // length of the part of name_ up to and including the dot after the key
};

class SampleEncoder {
 public:
  // `hashes_only`: samples contain only the hash of their text.
  SampleEncoder(SampleFormat format, std::shared_ptr<const tokenizer::Tokenizer> tokenizer, bool hashes_only);

  // Fills the batch from its slice. Replaces its old content and reuses its memory. Errors: invalid_argument
  // (ill-formed UTF-8 with strict_utf8, a bad JSON line), naming file, line and byte offset.
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
  std::vector<uint8_t> mask_;  // mask of a conversation
  uint32_t invalid_utf8_ = 0;  // of the current document
  std::string repaired_, field_;
};

}  // namespace millrace::prepare
