// SPDX-License-Identifier: Apache-2.0
#include "millrace/formats/documents.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <optional>
#include <utility>

#include "millrace/formats/parquet.h"
#include "millrace/formats/text_check.h"

namespace millrace::formats {
namespace {

constexpr std::array<std::pair<DocumentMode, std::string_view>, 4> kModeNames{{{DocumentMode::kLine, "line"},
                                                                               {DocumentMode::kParagraph, "paragraph"},
                                                                               {DocumentMode::kFile, "file"},
                                                                               {DocumentMode::kJsonl, "jsonl"}}};
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
constexpr std::string_view kWhitespace = " \t\n\r\v\f";
constexpr std::string_view kBlank = " \t\r";  // of a line between paragraphs

bool only(std::string_view text, std::string_view characters) {
  return text.find_first_not_of(characters) == std::string_view::npos;
}

std::string_view without_cr(std::string_view line) {
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

void count_empty(const std::vector<DocumentSpan>& documents, std::vector<Empties>& empties) {
  if (empties.empty() || empties.back().before != documents.size()) empties.push_back({documents.size(), 0});
  ++empties.back().count;
}

// Cuts the front of a text into documents. What it says about a part of a text holds for every continuation of it, so
// that the size of the reads never shows in the result.
class Splitter {
 public:
  Splitter(DocumentMode mode, size_t limit, bool keep_empty) : mode_(mode), limit_(limit), keep_empty_(keep_empty) {}

  // `final`: the stream ends with `text`. False when the line or document behind `complete` is over the limit.
  bool split(std::string_view text, bool final) {
    text_ = text;
    for (size_t at = 0; at < text.size();) {
      const void* newline = std::memchr(text.data() + at, '\n', text.size() - at);
      if (newline == nullptr) return last_line(at, final);
      const auto end = static_cast<size_t>(static_cast<const char*>(newline) - text.data());
      if (!line(at, without_cr(text.substr(at, end - at)), end + 1)) return false;
      at = end + 1;
    }
    return !final || close(text.size());
  }

  std::vector<DocumentSpan> documents;
  std::vector<Empties> empties;
  size_t complete = 0;  // text[0, complete) are whole documents and what lies between them

 private:
  // A line with its end at `next`.
  bool line(size_t at, std::string_view content, size_t next) {
    if (!within(at, content)) return false;
    if (mode_ == DocumentMode::kParagraph) return only(content, kBlank) ? close(next) : extend(at, content);
    return extend(at, content) && close(next);
  }

  // A line whose end was not seen: all of a final text, or the first part of something longer.
  bool last_line(size_t at, bool final) {
    const std::string_view content = text_.substr(at);
    if (final) return line(at, content, text_.size()) && close(text_.size());
    const std::string_view sure = without_cr(content);
    return within(at, sure) && (only(sure, kBlank) || extend(at, sure));
  }

  // A line that begins with more spaces than the limit ends a paragraph, whatever follows in it.
  bool within(size_t at, std::string_view content) {
    if (content.size() <= limit_) return true;
    if (mode_ == DocumentMode::kParagraph && only(content.substr(0, limit_ + 1), kBlank)) close(at);
    return false;
  }

  bool extend(size_t at, std::string_view content) {
    if (!open_) open_ = DocumentSpan{at, at};
    open_->end = at + content.size();
    return open_->end - open_->begin <= limit_;
  }

  bool close(size_t next) {
    if (open_) {
      const bool is_empty = only(text_.substr(open_->begin, open_->end - open_->begin), kWhitespace);
      if (!is_empty || (keep_empty_ && mode_ != DocumentMode::kJsonl)) {
        documents.push_back(*open_);
      } else if (mode_ != DocumentMode::kJsonl) {
        count_empty(documents, empties);
      }
    }
    open_.reset();
    complete = next;
    return true;
  }

  const DocumentMode mode_;
  const size_t limit_;
  const bool keep_empty_;
  std::string_view text_;
  std::optional<DocumentSpan> open_;
};

// In pieces of a fixed size, which compilers turn into vector code.
int64_t count_lines(std::string_view text) {
  constexpr size_t kPiece = 128;
  int64_t lines = 0;
  for (; text.size() >= kPiece; text.remove_prefix(kPiece)) {
    uint8_t here = 0;
    for (size_t i = 0; i < kPiece; ++i) here = static_cast<uint8_t>(here + (text[i] == '\n' ? 1 : 0));
    lines += here;
  }
  return lines + std::count(text.begin(), text.end(), '\n');
}

Status refuse_file_of_other_format(const RandomReader& file) {
  std::array<char, kOtherFormatHead> bytes{};
  const auto head = std::span(bytes).first(static_cast<size_t>(std::min<int64_t>(file.size(), std::ssize(bytes))));
  RETURN_IF_ERROR(file.read_at(0, std::as_writable_bytes(head)));
  return refuse_other_format(file.name(), {head.data(), head.size()});
}

tl::unexpected<Error> not_jsonl(std::string_view field, std::string_view reason) {
  return fail(ErrorCode::kInvalidArgument, "field '{}': {}", field, reason);
}

}  // namespace

Result<DocumentMode> parse_document_mode(std::string_view name) {
  for (const auto& [mode, text] : kModeNames) {
    if (text == name) return mode;
  }
  return fail(ErrorCode::kInvalidArgument, "'{}': documents are cut by line, paragraph, file or jsonl", name);
}

std::string_view document_mode_name(DocumentMode mode) {
  return std::find_if(kModeNames.begin(), kModeNames.end(), [mode](const auto& entry) { return entry.first == mode; })
      ->second;
}

Result<std::unique_ptr<DocumentSource>> open_documents(const RandomReader& file, const DocumentOptions& options,
                                                       int64_t begin, int64_t line) {
  ASSIGN_OR_RETURN(const bool table, is_parquet(file));
  if (table) {
    if (options.mode == DocumentMode::kLine || options.mode == DocumentMode::kJsonl) {
      return open_table(file, options, begin);
    }
    return fail(ErrorCode::kInvalidArgument, "{}: each row of a table is a document; it is not cut by {}", file.name(),
                document_mode_name(options.mode));
  }
  RETURN_IF_ERROR(refuse_file_of_other_format(file));
  ASSIGN_OR_RETURN(auto stream, open_stream(file, begin));
  return std::make_unique<DocumentReader>(std::move(stream), options, begin, line);
}

DocumentReader::DocumentReader(std::unique_ptr<ByteStream> input, const DocumentOptions& options, int64_t begin,
                               int64_t line)
    : input_(std::move(input)), options_(options), from_start_(begin == 0), at_(begin), line_(line) {}

Status DocumentReader::read_more(int64_t bytes) {
  if (ended_) return {};
  const size_t have = carry_.size();
  carry_.resize(have + static_cast<size_t>(bytes));
  const auto read = input_->read(std::as_writable_bytes(std::span<char>(carry_)).subspan(have));
  carry_.resize(have + read.value_or(0));
  if (!read) return tl::unexpected(read.error());
  ended_ = static_cast<int64_t>(*read) < bytes;
  return {};
}

Status DocumentReader::pass_byte_order_mark() {
  RETURN_IF_ERROR(read_more(static_cast<int64_t>(kByteOrderMark.size())));
  if (carry_ == kByteOrderMark) {
    at_ = static_cast<int64_t>(carry_.size());
    carry_.clear();
  }
  return {};
}

std::string DocumentReader::too_long() const {
  return fmt::format("longer than {} bytes", options_.max_document_bytes);
}

Result<std::optional<DocumentChunk>> DocumentReader::next() {
  if (at_ == 0 && carry_.empty()) RETURN_IF_ERROR(pass_byte_order_mark());
  const bool whole = options_.mode == DocumentMode::kFile;
  // More until a document ends; a quarter more each time, so that a long one is looked at five times in all, not for
  // each chunk.
  int64_t target = options_.chunk_bytes;
  for (;;) {
    const auto have = static_cast<int64_t>(carry_.size());
    if (have < target) RETURN_IF_ERROR(read_more(target - have));
    DocumentChunk chunk;
    if (ended_ && carry_.empty()) {
      // A file without a character is one empty document where files are documents.
      const bool is_empty_file = whole && from_start_;
      if (!is_empty_file || std::exchange(is_empty_file_given_, true)) return std::nullopt;
      if (options_.keep_empty) {
        chunk.documents = {{0, 0}};
      } else {
        count_empty(chunk.documents, chunk.empties);
      }
      return std::optional(take(std::move(chunk), 0));
    }
    bool within = true;
    if (whole) {
      within = static_cast<int64_t>(carry_.size()) <= options_.max_document_bytes;
      if (within && ended_) {
        is_empty_file_given_ = true;
        if (options_.keep_empty || !only(carry_, kWhitespace)) {
          chunk.documents = {{0, carry_.size()}};
        } else {
          count_empty(chunk.documents, chunk.empties);
        }
        return std::optional(take(std::move(chunk), carry_.size()));
      }
    } else {
      Splitter splitter(options_.mode, static_cast<size_t>(options_.max_document_bytes), options_.keep_empty);
      within = splitter.split(carry_, ended_);
      if (splitter.complete > 0) {
        chunk.documents = std::move(splitter.documents);
        chunk.empties = std::move(splitter.empties);
        return std::optional(take(std::move(chunk), splitter.complete));
      }
    }
    if (!within && options_.leave_out_long) return leave_out();
    if (!within) {
      return fail(ErrorCode::kResourceExhausted, "{}: the document at line {}, offset {} is {}", input_->name(), line_,
                  at_, too_long());
    }
    target = std::max(static_cast<int64_t>(carry_.size() + carry_.size() / 4), target + options_.chunk_bytes);
  }
}

// The document at the front is over the limit: passes over the rest of it.
Result<std::optional<DocumentChunk>> DocumentReader::leave_out() {
  DocumentChunk chunk;
  chunk.left_out = LeftOut{at_, line_, too_long()};
  chunk.offset = at_;
  chunk.first_line = line_;
  bool blank = true;  // so far, the line that is looked at
  for (;;) {
    size_t at = 0;
    bool over = false;
    for (; at < carry_.size() && !over; ++at) {
      const char c = carry_[at];
      if (c != '\n') {
        blank = blank && kBlank.find(c) != std::string_view::npos;
        continue;
      }
      ++line_;
      over = options_.mode == DocumentMode::kParagraph ? blank : options_.mode != DocumentMode::kFile;
      blank = true;
    }
    at_ += static_cast<int64_t>(at);
    carry_.erase(0, at);
    if (over || ended_) break;
    RETURN_IF_ERROR(read_more(options_.chunk_bytes));
  }
  chunk.end = at_;
  chunk.file_bytes = std::min(input_->file_bytes(), at_);
  return std::optional(std::move(chunk));
}

DocumentChunk DocumentReader::take(DocumentChunk chunk, size_t bytes) {
  chunk.offset = at_;
  chunk.first_line = line_;
  std::string rest = carry_.substr(bytes);
  carry_.resize(bytes);
  chunk.text = std::exchange(carry_, std::move(rest));
  at_ += static_cast<int64_t>(bytes);
  line_ += count_lines(chunk.text);
  chunk.end = at_;
  chunk.file_bytes = std::min(input_->file_bytes(), at_);  // of plain text both are known to the byte
  return chunk;
}

int64_t document_offset(const DocumentChunk& chunk, size_t i) {
  return chunk.rows.empty() ? chunk.offset + static_cast<int64_t>(chunk.documents[i].begin) : chunk.rows[i];
}

int64_t document_line(const DocumentChunk& chunk, size_t i) {
  return chunk.rows.empty() ? line_of(chunk, chunk.documents[i].begin) : chunk.rows[i] + 1;
}

int64_t line_of(const DocumentChunk& chunk, size_t at) {
  return chunk.first_line + count_lines(std::string_view(chunk.text).substr(0, at));
}

namespace {

// The code unit of a "\uXXXX" that `text` begins with.
std::optional<uint32_t> escaped_unit(std::string_view text) {
  if (!text.starts_with("\\u") || text.size() < 6) return std::nullopt;
  uint32_t unit = 0;
  const auto [end, error] = std::from_chars(text.data() + 2, text.data() + 6, unit, 16);
  return error == std::errc() && end == text.data() + 6 ? std::optional(unit) : std::nullopt;
}
bool is_in(std::optional<uint32_t> unit, uint32_t begin, uint32_t end) {
  return unit && *unit >= begin && *unit < end;
}

}  // namespace

int64_t append_whole_surrogates(std::string_view line, std::string& out) {
  int64_t replaced = 0;
  while (!line.empty()) {
    const size_t plain = std::min(line.find('\\'), line.size());
    out += line.substr(0, plain);
    line.remove_prefix(plain);
    const auto unit = escaped_unit(line);
    size_t size = unit ? 6 : std::min<size_t>(line.size(), 2);
    if (is_in(unit, 0xD800, 0xDC00) && is_in(escaped_unit(line.substr(6)), 0xDC00, 0xE000)) size = 12;
    if (size == 6 && is_in(unit, 0xD800, 0xE000)) {
      out += "\\ufffd";
      ++replaced;
    } else {
      out += line.substr(0, size);
    }
    line.remove_prefix(size);
  }
  return replaced;
}

Result<std::string> jsonl_text(std::string_view line, std::string_view field) {
  thread_local simdjson::dom::parser parser;
  simdjson::dom::element value;
  if (const auto error = parser.parse(line.data(), line.size()).get(value)) {
    return not_jsonl(field, fmt::format("the line is not JSON ({})", simdjson::error_message(error)));
  }
  for (size_t begin = 0; begin <= field.size();) {
    const size_t end = std::min(field.find('.', begin), field.size());
    simdjson::dom::object object;
    if (value.get(object) != simdjson::SUCCESS) return not_jsonl(field, "it is not inside an object");
    bool found = false;
    for (const auto& [key, member] : object) {
      if (key != field.substr(begin, end - begin)) continue;
      value = member;  // the last of several, as Python reads it
      found = true;
    }
    if (!found) return not_jsonl(field, "there is none");
    begin = end + 1;
  }
  std::string_view text;
  if (value.get(text) != simdjson::SUCCESS) return not_jsonl(field, "it is not a string");
  return std::string(text);
}

}  // namespace millrace::formats
