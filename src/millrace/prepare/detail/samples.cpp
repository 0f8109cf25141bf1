// SPDX-License-Identifier: Apache-2.0
#include "millrace/prepare/detail/samples.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "millrace/base/hash/hash.h"
#include "millrace/base/text/utf8.h"
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

formats::DocumentOptions document_options(const formats::ShardOptions& options) {
  return {.mode = options.documents,
          .text_field = options.text_field,
          .max_document_bytes = options.rules.max_document_bytes,
          .leave_out_long = options.rules.skip_errors,
          .keep_empty = options.rules.keep_empty};
}

int64_t Slice::bytes() const {
  return static_cast<int64_t>(slice_begin(*chunk, last) - slice_begin(*chunk, first));
}

Position Slice::end() const {
  const int64_t document = first_document + static_cast<int64_t>(last - first);
  // Behind an empty file, which is a document where they are kept, begins the next one.
  if (ends_chunk() && chunk->end == 0) return {input + 1, 0, 0, document};
  if (ends_chunk()) return {input, chunk->end, 0, document};
  return {input, formats::document_offset(*chunk, last), 0, document};
}

Position Slice::position_of(size_t i) const {
  return {input, formats::document_offset(*chunk, first + i), formats::document_line(*chunk, first + i),
          first_document + static_cast<int64_t>(i)};
}

MemberWriter::MemberWriter(const SampleFormat& format)
    : mask_(format.chat != nullptr),
      text_(format.has_text()),
      ids_field_(format.ids_field),
      id_width_(format.id_width),
      name_(fmt::format("{:05}-", format.task)),
      task_bytes_(name_.size()) {}

// Fields in byte order of their names, as webdataset's own writer has them.
Status MemberWriter::append(int64_t document, std::string_view text, std::span<const uint32_t> ids,
                            std::span<const uint8_t> mask, std::string& out) {
  name_.resize(task_bytes_);
  append_padded(name_, document, 9);
  name_ += '.';
  key_bytes_ = name_.size();
  if (mask_) {
    RETURN_IF_ERROR(member("loss_mask.npy", out, [&] { formats::append_npy_u8(out, mask); }));
  }
  if (text_) {
    RETURN_IF_ERROR(member("text.txt", out, [&] { out += text; }));
  }
  return member(ids_field_, out, [&] {
    if (ids_field_.ends_with(".json")) {
      formats::append_json_ids(out, ids);
    } else if (ids_field_.ends_with(".npy")) {
      formats::append_npy_u32(out, ids);
    } else {
      formats::append_raw_ids(out, ids, id_width_);
    }
  });
}

namespace {

// The bytes of the white-space character that `text` begins with, 0 when it does not: str.isspace() of Python.
size_t white_space_size(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  if (text.empty()) return 0;
  if (byte(0) < 0x80) return byte(0) == ' ' || (byte(0) >= 9 && byte(0) <= 13) || (byte(0) >= 28 && byte(0) <= 31);
  if (text.starts_with("\xC2\x85") || text.starts_with("\xC2\xA0")) return 2;
  if (text.size() < 3) return 0;
  if (text.starts_with("\xE2\x80")) {
    return byte(2) <= 0x8A || byte(2) == 0xA8 || byte(2) == 0xA9 || byte(2) == 0xAF ? 3 : 0;
  }
  for (const std::string_view wide : {"\xE1\x9A\x80", "\xE2\x81\x9F", "\xE3\x80\x80"}) {
    if (text.starts_with(wide)) return 3;
  }
  return 0;
}

// The bytes of the character that `text` ends with. REQUIRES: valid UTF-8, not empty.
size_t last_character_size(std::string_view text) {
  size_t size = 1;
  while ((static_cast<unsigned char>(text[text.size() - size]) & 0xC0) == 0x80) ++size;
  return size;
}

}  // namespace

bool is_blank(std::string_view text) {
  while (const size_t size = white_space_size(text)) text.remove_prefix(size);
  return text.empty();
}

std::string_view stripped(std::string_view text) {
  while (const size_t size = white_space_size(text)) text.remove_prefix(size);
  while (!text.empty()) {
    const size_t size = last_character_size(text);
    if (white_space_size(text.substr(text.size() - size)) == 0) break;
    text.remove_suffix(size);
  }
  return text;
}

namespace {

// Frees scratch memory that a large document made large.
template <class Scratch>
void release(Scratch& scratch) {
  constexpr size_t kKeptBytes = 4 << 20;  // A choice, as kMaxSpareBytes of pipeline.cpp
  if (scratch.capacity() * sizeof scratch[0] > kKeptBytes) scratch = Scratch();
}

}  // namespace

template <class Write>
Status MemberWriter::member(std::string_view field, std::string& out, Write write) {
  name_.resize(key_bytes_);
  name_ += field;
  ASSIGN_OR_RETURN(const size_t begin, formats::begin_tar_member(out, name_));
  write();
  formats::end_tar_member(out, begin);
  return {};
}

SampleEncoder::SampleEncoder(SampleFormat format, std::shared_ptr<const tokenizer::Tokenizer> tokenizer,
                             bool hashes_only)
    : format_(std::move(format)), hashes_only_(hashes_only), members_(format_), encoder_(std::move(tokenizer)) {
  if (format_.chat) chat_.emplace(format_.chat);
}

Status SampleEncoder::encode(Batch& batch) {
  batch.bytes.clear();
  batch.samples.clear();
  batch.dropped.clear();
  batch.trouble = {};
  const Slice& slice = batch.slice;
  batch.samples.reserve(slice.last - slice.first);
  auto empties = std::ranges::lower_bound(slice.chunk->empties, slice.first, {}, &formats::Empties::before);
  // Those at a slice's end belong to the next slice of the chunk, if there is one.
  const auto drop_empties_before = [&](size_t document) {
    for (; empties != slice.chunk->empties.end() && empties->before <= document; ++empties) {
      const auto at = slice.first_document + static_cast<int64_t>(empties->before - slice.first);
      batch.dropped.push_back({.document = at - 1, .rejected = std::nullopt, .empties = empties->count});
    }
  };
  for (size_t i = 0; i < slice.last - slice.first; ++i) {
    drop_empties_before(slice.first + i);
    const size_t bytes_before = batch.bytes.size();
    auto done = encode_document(slice, i, batch);
    if (done) continue;
    const Position at = slice.position_of(i);
    if (!format_.options.rules.skip_errors) {
      done.error().add_context(fmt::format("{}: line {}, offset {}", slice.source, at.line, at.offset));
      return done;
    }
    batch.bytes.resize(bytes_before);
    batch.dropped.push_back(
        {.document = at.document, .rejected = formats::LeftOut{at.offset, at.line, done.error().message()}});
  }
  if (slice.ends_chunk()) drop_empties_before(slice.last);
  if (slice.ends_chunk() && slice.chunk->left_out) {
    batch.dropped.push_back({.document = slice.end().document, .rejected = slice.chunk->left_out});
  }
  release(ids_);
  release(repaired_);
  release(field_);
  return {};
}

Status SampleEncoder::encode_document(const Slice& slice, size_t i, Batch& batch) {
  invalid_utf8_ = 0;
  ASSIGN_OR_RETURN(std::string_view text, text_of(slice, i));
  if (chat_) {
    RETURN_IF_ERROR(chat_->encode_line(text, format_.chat_field(), ids_, mask_));
    text = chat_->text();
    batch.trouble.lost += chat_->trouble().lost;
    batch.trouble.overrun += chat_->trouble().overrun;
  }
  const auto outside = [](size_t size, int64_t least, int64_t most) {
    const auto value = static_cast<int64_t>(size);
    return value < least || (most > 0 && value > most);
  };
  const int64_t document = slice.first_document + static_cast<int64_t>(i);
  if (!chat_ && !format_.options.rules.keep_empty && is_blank(text)) {
    batch.dropped.push_back({.document = document, .rejected = std::nullopt, .empties = 1});
    return {};
  }
  if (format_.options.rules.strip) text = stripped(text);
  if (outside(text.size(), format_.options.rules.min_bytes, format_.options.rules.max_bytes)) {
    batch.dropped.push_back({.document = document, .rejected = std::nullopt});
    return {};
  }
  Sample sample{.document = document};
  if (format_.options.rules.dedup) sample.text_hash = xxh3_128(text);
  if (!hashes_only_) {
    if (!chat_) RETURN_IF_ERROR(encode_ids(text));
    if (outside(ids_.size(), format_.options.rules.min_tokens, format_.options.rules.max_tokens)) {
      batch.dropped.push_back({.document = document, .rejected = std::nullopt});
      return {};
    }
    sample.tokens = static_cast<uint32_t>(ids_.size());
    sample.invalid_utf8 = invalid_utf8_;
    const size_t begin = batch.bytes.size();
    if (format_.raw_ids()) {
      formats::append_raw_ids(batch.bytes, ids_, format_.id_width);
    } else {
      RETURN_IF_ERROR(members_.append(document, text, ids_, mask_, batch.bytes));
    }
    const std::string_view extent = std::string_view(batch.bytes).substr(begin);
    sample.size = extent.size();
    sample.hash = xxh3_64(extent);
  }
  batch.samples.push_back(sample);
  return {};
}

Status SampleEncoder::encode_ids(std::string_view text) {
  ids_.clear();
  if (format_.bos) ids_.push_back(*format_.bos);
  RETURN_IF_ERROR(encoder_.encode(text, {.add_special_tokens = format_.options.add_special_tokens}, ids_));
  if (format_.eos) ids_.push_back(*format_.eos);
  return {};
}

// A view into the chunk, or into scratch memory that the next call uses again.
Result<std::string_view> SampleEncoder::text_of(const Slice& slice, size_t i) {
  const formats::DocumentSpan span = slice.chunk->documents[slice.first + i];
  const std::string_view raw = std::string_view(slice.chunk->text).substr(span.begin, span.end - span.begin);
  if (format_.options.rules.strict_utf8) {
    const size_t valid = utf8_valid_prefix(raw);
    if (valid < raw.size()) {
      return fail(ErrorCode::kInvalidArgument, "byte {} of the document (0x{:02x}) is not valid UTF-8", valid,
                  static_cast<unsigned char>(raw[valid]));
    }
  }
  const std::string_view text = repaired(raw);
  if (chat_ || format_.options.documents != formats::DocumentMode::kJsonl || !slice.chunk->rows.empty()) return text;
  return field_of(text);
}

// The text of a line of JSON. Half a surrogate pair, which no UTF-8 can hold, is repaired as ill-formed bytes are.
Result<std::string_view> SampleEncoder::field_of(std::string_view line) {
  auto found = formats::jsonl_text(line, format_.options.text_field);
  if (!found) {
    std::string whole;
    const int64_t halves = formats::append_whole_surrogates(line, whole);
    if (halves > 0 && format_.options.rules.strict_utf8) {
      return fail(ErrorCode::kInvalidArgument, "an escape is half a surrogate pair, which is not valid Unicode");
    }
    if (halves > 0) found = formats::jsonl_text(whole, format_.options.text_field);
    invalid_utf8_ += static_cast<uint32_t>(halves);
  }
  if (!found) return tl::unexpected(std::move(found).error());
  field_ = std::move(*found);
  return std::string_view(field_);
}

std::string_view SampleEncoder::repaired(std::string_view text) {
  if (is_utf8(text)) return text;
  repaired_.clear();
  invalid_utf8_ += static_cast<uint32_t>(append_utf8_replaced(text, repaired_));
  return repaired_;
}

}  // namespace millrace::prepare
