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

#include "millrace/base/hash.h"
#include "millrace/base/status.h"
#include "millrace/formats/documents.h"
#include "millrace/formats/manifest.h"
#include "millrace/prepare/prepare.h"
#include "millrace/tokenizer/chat.h"
#include "millrace/tokenizer/tokenizer.h"

namespace millrace::prepare {

// Where a task stands: in front of a document, or behind the last input.
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
  int64_t document = 0;  // its number within the task; for one that the reader left out, the next one's
  std::optional<formats::LeftOut> rejected;  // nothing: its length was not asked for
};

struct Batch {
  Slice slice;
  std::string bytes;             // of the samples, back to back
  std::vector<Sample> samples;   // in the order of their documents
  std::vector<Dropped> dropped;  // likewise
  tokenizer::MaskTrouble trouble;
};

// All that decides what a document becomes.
struct SampleFormat {
  int64_t task = 0;  // keys are "{task:05}-{document:09}"
  OutputFormat output = OutputFormat::kWebDataset;
  formats::DocumentMode documents = formats::DocumentMode::kLine;
  std::string text_field;
  // Lines are conversations, whose samples have "loss_mask.npy" too; `text_field` is then the list's key, if not the
  // usual one.
  std::shared_ptr<const tokenizer::ChatTemplate> chat;
  std::string ids_field;        // as ShardConfig has it
  size_t id_width = 4;          // where ids are raw
  int64_t block_documents = 0;  // not 0: samples are raw ids, for BlockLayout
  bool text = true;
  bool add_special_tokens = true;
  std::optional<uint32_t> bos, eos;
  formats::DocumentRules rules;

  // Samples are ids and nothing else.
  bool raw_ids() const { return output != OutputFormat::kWebDataset || block_documents > 0; }
};

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
  size_t key_bytes_ = 0;     // likewise, the next dot included
};

class SampleEncoder {
 public:
  // `hashes_only`: samples are empty and have nothing but their text's hash.
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
  std::optional<tokenizer::ChatEncoder> chat_;
  std::vector<uint32_t> ids_;
  std::vector<uint8_t> mask_;  // of a conversation
  uint32_t invalid_utf8_ = 0;  // of the document at hand
  std::string repaired_, field_;
};

}  // namespace millrace::prepare
