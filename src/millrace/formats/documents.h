// SPDX-License-Identifier: Apache-2.0
#pragma once

// Raw text cut into documents, chunk by chunk, in bounded memory. A DocumentReader belongs to one thread; chunks are
// values.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/io.h"
#include "millrace/base/status.h"

namespace millrace::formats {

enum class DocumentMode {
  kLine,       // a line; "\n" and "\r\n" end it and are not part of it
  kParagraph,  // lines up to a blank one (only spaces, tabs, CR); inner line ends are kept
  kFile,       // the whole file
  kJsonl,      // a line holding a JSON object; the text is one of its fields (jsonl_text below)
};
[[nodiscard]] Result<DocumentMode> parse_document_mode(std::string_view name);  // "line", "paragraph", "file", "jsonl"
std::string_view document_mode_name(DocumentMode mode);

struct DocumentSpan {
  size_t begin = 0, end = 0;  // in DocumentChunk::text
};

// Whole documents back to back with what lies between them.
struct DocumentChunk {
  std::string text;                     // bytes as they are in the file; may be invalid UTF-8
  int64_t file_offset = 0;              // of text[0]
  int64_t first_line = 1;               // 1-based number of the line text[0] is in
  std::vector<DocumentSpan> documents;  // without those that are empty or only whitespace (ASCII); in order
};

struct DocumentOptions {
  DocumentMode mode = DocumentMode::kLine;
  int64_t chunk_bytes = 1 << 20;          // about this much text in a chunk, or one document that is longer; at least 1
  int64_t max_document_bytes = 64 << 20;  // a longer document, or line of spaces, is refused with its place; at least 1
};

class DocumentReader {
 public:
  // `input` must outlive the reader. Reading starts at byte `begin`, which must be a document's start (0, or a chunk's
  // end), in line `first_line`.
  DocumentReader(const RandomReader& input, const DocumentOptions& options, int64_t begin = 0, int64_t first_line = 1);

  // The next chunk, nothing at the end. A UTF-8 byte order mark at the file's start is passed over. Documents do not
  // depend on the size of chunks; a chunk of blank text holds none. Memory: a chunk, or 1.25 times a longer document.
  // Errors: resource_exhausted (a document over the limit, which is not read to its end: file, line, offset), those of
  // read_at.
  [[nodiscard]] Result<std::optional<DocumentChunk>> next();

 private:
  [[nodiscard]] Status pass_byte_order_mark();
  [[nodiscard]] Status read_more(int64_t bytes);
  DocumentChunk take(DocumentChunk chunk, size_t bytes, int64_t lines);
  Error too_long(size_t begin) const;

  const RandomReader& input_;
  DocumentOptions options_;
  int64_t at_;         // offset of carry_[0] in the file
  int64_t line_;       // the line carry_[0] is in
  std::string carry_;  // read, and not yet in a chunk
};

// Line number (1-based) of a byte of a chunk, for messages.
int64_t line_of(const DocumentChunk& chunk, size_t at);

// The string at `field` ("text", or "meta.body" for nested objects) of one JSON object in valid UTF-8.
// Errors: invalid_argument (not JSON, no such field, not a string; a number beyond 64 bits, half a surrogate pair).
[[nodiscard]] Result<std::string> jsonl_text(std::string_view line, std::string_view field);

}  // namespace millrace::formats
