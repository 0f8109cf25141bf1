// SPDX-License-Identifier: Apache-2.0
#include "millrace/prepare/detail/samples.h"

#include <fmt/format.h>

#include <charconv>

#include "millrace/base/hash.h"
#include "millrace/base/utf8.h"
#include "millrace/formats/npy.h"
#include "millrace/formats/tar.h"

namespace millrace::prepare {

namespace {

// Where a slice that begins with documents[first] begins in the chunk: the text between two documents belongs to the
// earlier.
size_t slice_begin(const formats::DocumentChunk& chunk, size_t first) {
  if (first == 0) return 0;
  return first == chunk.documents.size() ? chunk.text.size() : chunk.documents[first].begin;
}

void append_padded(std::string& out, int64_t number, size_t width) {
  char digits[20];
  const auto size = static_cast<size_t>(std::to_chars(std::begin(digits), std::end(digits), number).ptr - digits);
  if (size < width) out.append(width - size, '0');
  out.append(digits, size);
}

}  // namespace

int64_t Slice::bytes() const {
  return static_cast<int64_t>(slice_begin(*chunk, last) - slice_begin(*chunk, first));
}

Position Slice::end() const {
  return {input, chunk->file_offset + static_cast<int64_t>(slice_begin(*chunk, last)), 0,
          first_document + static_cast<int64_t>(last - first)};
}

Position Slice::position_of(size_t i) const {
  const size_t begin = chunk->documents[first + i].begin;
  return {input, chunk->file_offset + static_cast<int64_t>(begin), formats::line_of(*chunk, begin),
          first_document + static_cast<int64_t>(i)};
}

SampleEncoder::SampleEncoder(SampleFormat format, std::shared_ptr<const tokenizer::Tokenizer> tokenizer)
    : format_(std::move(format)), encoder_(std::move(tokenizer)) {}

Status SampleEncoder::encode(Batch& batch) {
  batch.tar.clear();
  batch.samples.clear();
  const size_t documents = batch.slice.last - batch.slice.first;
  batch.samples.reserve(documents);
  for (size_t i = 0; i < documents; ++i) RETURN_IF_ERROR(encode_document(batch.slice, i, batch));
  return {};
}

Status SampleEncoder::encode_document(const Slice& slice, size_t i, Batch& batch) {
  Sample sample;
  ASSIGN_OR_RETURN(const std::string_view text, text_of(slice, i, sample));
  ids_.clear();
  RETURN_IF_ERROR(encoder_.encode(text, {.add_special_tokens = format_.add_special_tokens}, ids_));
  sample.tokens = static_cast<uint32_t>(ids_.size());

  const size_t begin = batch.tar.size();
  name_.clear();
  append_padded(name_, format_.task, 5);
  name_ += '-';
  append_padded(name_, slice.first_document + static_cast<int64_t>(i), 9);
  name_ += '.';
  const size_t key_size = name_.size();
  // Fields in byte order of their names, as webdataset's own writer has them.
  if (format_.text) {
    name_ += "text.txt";
    RETURN_IF_ERROR(formats::append_tar_member(batch.tar, name_, as_bytes(text)));
    name_.resize(key_size);
  }
  ids_bytes_.clear();
  if (format_.ids_field.ends_with(".json")) {
    formats::append_json_ids(ids_bytes_, ids_);
  } else {
    formats::append_npy_u32(ids_bytes_, ids_);
  }
  name_ += format_.ids_field;
  RETURN_IF_ERROR(formats::append_tar_member(batch.tar, name_, as_bytes(ids_bytes_)));

  const std::string_view extent = std::string_view(batch.tar).substr(begin);
  sample.size = extent.size();
  sample.hash = xxh3_64(extent);
  batch.samples.push_back(sample);
  return {};
}

// A view into the chunk, or into scratch memory that the next call uses again.
Result<std::string_view> SampleEncoder::text_of(const Slice& slice, size_t i, Sample& sample) {
  const formats::DocumentSpan span = slice.chunk->documents[slice.first + i];
  const std::string_view raw = std::string_view(slice.chunk->text).substr(span.begin, span.end - span.begin);
  if (format_.strict_utf8) RETURN_IF_ERROR(check_utf8(slice, span.begin, raw));
  const std::string_view text = repaired(raw, sample);
  if (format_.documents != formats::DocumentMode::kJsonl) return text;
  auto field = formats::jsonl_text(text, format_.text_field);
  if (!field) {
    const Position at = slice.position_of(i);
    field.error().add_context(fmt::format("{}: line {}, byte offset {}", slice.source, at.line, at.offset));
    return tl::unexpected(std::move(field).error());
  }
  field_ = std::move(*field);
  return repaired(field_, sample);  // an escape may stand for half a surrogate pair
}

Status SampleEncoder::check_utf8(const Slice& slice, size_t begin, std::string_view text) {
  const size_t valid = utf8_valid_prefix(text);
  if (valid == text.size()) return {};
  const size_t at = begin + valid;
  return fail(ErrorCode::kInvalidArgument, "{}: line {}, byte offset {}: not valid UTF-8 (byte 0x{:02x})", slice.source,
              formats::line_of(*slice.chunk, at), slice.chunk->file_offset + static_cast<int64_t>(at),
              static_cast<unsigned char>(text[valid]));
}

std::string_view SampleEncoder::repaired(std::string_view text, Sample& sample) {
  if (is_utf8(text)) return text;
  repaired_.clear();
  sample.invalid_utf8 += static_cast<uint32_t>(append_utf8_replaced(text, repaired_));
  return repaired_;
}

}  // namespace millrace::prepare
