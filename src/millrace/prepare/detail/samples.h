// SPDX-License-Identifier: Apache-2.0
#pragma once

// Documents in, tar members and their index columns out: the part of `prepare` that costs time and runs on every
// thread. Slices and batches are values; a SampleEncoder belongs to one thread.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/status.h"
#include "millrace/formats/documents.h"
#include "millrace/tokenizer/tokenizer.h"

namespace millrace::prepare {

// Where a task stands: in front of a document, or behind the last input.
struct Position {
  int64_t input = 0;   // number among the task's inputs
  int64_t offset = 0;  // in that input
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

  int64_t bytes() const;                 // of the input, that this slice accounts for
  Position position_of(size_t i) const;  // of documents[first + i]
  Position end() const;                  // behind the slice; its line is not counted
};

struct Sample {
  uint64_t size = 0;  // of its members, headers and padding included
  uint64_t hash = 0;  // XXH3-64 of them
  uint32_t tokens = 0;
  uint32_t invalid_utf8 = 0;
};

struct Batch {
  Slice slice;
  std::string tar;              // the samples' members back to back
  std::vector<Sample> samples;  // one for each document of the slice
};

struct SampleFormat {
  int64_t task = 0;  // keys are "{task:05}-{document:09}"
  formats::DocumentMode documents = formats::DocumentMode::kLine;
  std::string text_field;
  std::string ids_field;  // "token_ids.npy" or "token_ids.json"
  bool text = true;
  bool add_special_tokens = true;
  bool strict_utf8 = false;
};

class SampleEncoder {
 public:
  SampleEncoder(SampleFormat format, std::shared_ptr<const tokenizer::Tokenizer> tokenizer);

  // Fills `batch.tar` and `batch.samples` from `batch.slice`; what they held is dropped, their memory is used again.
  // Errors: invalid_argument (ill-formed UTF-8 with strict_utf8, a bad JSON line), naming file, line and byte offset.
  [[nodiscard]] Status encode(Batch& batch);

 private:
  [[nodiscard]] Status encode_document(const Slice& slice, size_t i, Batch& batch);
  [[nodiscard]] Result<std::string_view> text_of(const Slice& slice, size_t i, Sample& sample);
  [[nodiscard]] static Status check_utf8(const Slice& slice, size_t begin, std::string_view text);
  std::string_view repaired(std::string_view text, Sample& sample);

  const SampleFormat format_;
  tokenizer::Encoder encoder_;
  std::vector<uint32_t> ids_;
  std::string name_, repaired_, field_, ids_bytes_;
};

}  // namespace millrace::prepare
