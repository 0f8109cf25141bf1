// SPDX-License-Identifier: Apache-2.0
#pragma once

// Divides raw text into documents, chunk by chunk, in bounded memory. Sources are plain or packed text
// (byte_stream.h), and the rows of a Parquet column (parquet.h). A DocumentSource belongs to one thread; chunks are
// values.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/io/io.h"
#include "millrace/base/status.h"
#include "millrace/formats/byte_stream.h"

namespace millrace::formats {

enum class DocumentMode {
  kLine,       // a line; excludes the "\n" or "\r\n" that ends it
  kParagraph,  // lines up to a blank line (only spaces, tabs, CR); inner line ends are kept
  kFile,       // the whole file
  kJsonl,      // a line holding a JSON object; the text is one of its fields (jsonl_text below)
};
[[nodiscard]] Result<DocumentMode> parse_document_mode(std::string_view name);  // "line", "paragraph", "file", "jsonl"
std::string_view document_mode_name(DocumentMode mode);

struct DocumentSpan {
  size_t begin = 0, end = 0;  // in DocumentChunk::text
};

// A document that is left out, and the reason.
struct LeftOut {
  int64_t offset = 0;  // of its first byte, or its row; as DocumentChunk::offset
  int64_t line = 1;
  std::string reason;
};

// Consecutive empty documents that were left out: `count` of them before documents[before].
struct Empties {
  size_t before = 0;
  int64_t count = 0;
};

// Consecutive whole documents, and the bytes between them.
struct DocumentChunk {
  std::string text;                     // unpacked bytes of the file; may be invalid UTF-8
  int64_t offset = 0;                   // of text[0] in the unpacked content; in a table, the first row
  int64_t end = 0;                      // offset after the chunk, where the next chunk begins
  int64_t first_line = 1;               // 1-based number of the line of text[0]; in a table, of the first row
  std::vector<DocumentSpan> documents;  // in order; blank ones (ASCII white space) only with keep_empty
  std::vector<Empties> empties;         // empty documents that are not in `documents`, in order
  std::vector<int64_t> rows;            // in a table: the row of each document; else empty
  std::optional<LeftOut> left_out;      // follows `documents`; the chunk then ends after it
  int64_t file_bytes = 0;               // bytes of the file read up to the end of the chunk
};

struct DocumentOptions {
  DocumentMode mode = DocumentMode::kLine;
  std::string text_field = "text";        // with kJsonl: the field; in a table: the column
  int64_t chunk_bytes = 1 << 20;          // approximate text per chunk, or one longer document; at least 1
  int64_t max_document_bytes = 64 << 20;  // limit of a document, or of a line of spaces; at least 1
  bool leave_out_long = false;            // a longer document is left out and reported, and is not an error
  // Empty texts, and texts of white space only, are documents: empty lines, files and rows. With kJsonl an empty line
  // is never a document, because it holds no object. A paragraph is the text between empty lines.
  bool keep_empty = false;
};

class DocumentSource {
 public:
  virtual ~DocumentSource() = default;
  // Returns the next chunk, nullopt at the end. Documents do not depend on the size of chunks; a chunk may hold none.
  // Memory: a chunk, or 1.25 times a longer document.
  // Errors: resource_exhausted (a document over the limit, not read to its end; names file, line and offset),
  // corruption, those of reading.
  [[nodiscard]] virtual Result<std::optional<DocumentChunk>> next() = 0;
};

// Opens the documents of `file` from `begin` on, which must be a chunk's `end`, a document's offset (document_offset)
// or 0. `line` is the number of the line at `begin`. `file` must outlive the source. A file that begins like Parquet
// is read as a table, whose rows are the documents. Errors: those of open_stream, open_table and refuse_other_format
// (text_check.h); invalid_argument (a table cut by paragraph).
[[nodiscard]] Result<std::unique_ptr<DocumentSource>> open_documents(const RandomReader& file,
                                                                     const DocumentOptions& options, int64_t begin = 0,
                                                                     int64_t line = 1);

// Reads documents from a stream of text. Skips a UTF-8 byte order mark at the start of the file.
class DocumentReader final : public DocumentSource {
 public:
  // REQUIRES: `input` is at byte `begin` of its content.
  DocumentReader(std::unique_ptr<ByteStream> input, const DocumentOptions& options, int64_t begin = 0,
                 int64_t line = 1);
  [[nodiscard]] Result<std::optional<DocumentChunk>> next() override;

 private:
  [[nodiscard]] Status pass_byte_order_mark();
  [[nodiscard]] Status read_more(int64_t bytes);
  DocumentChunk take(DocumentChunk chunk, size_t bytes);
  std::string too_long() const;
  [[nodiscard]] Result<std::optional<DocumentChunk>> leave_out();

  const std::unique_ptr<ByteStream> input_;
  DocumentOptions options_;
  const bool from_start_;
  int64_t at_;          // offset of carry_[0] in the content
  int64_t line_;        // number of the line of carry_[0]
  std::string carry_;   // text that was read and is not yet in a chunk
  bool ended_ = false;  // the stream ends with carry_
  bool is_empty_file_given_ = false;
};

// Return the offset of documents[i], counted as DocumentChunk::offset, and the line that it begins in (1-based; in a
// table, its row).
int64_t document_offset(const DocumentChunk& chunk, size_t i);
int64_t document_line(const DocumentChunk& chunk, size_t i);
// Returns the line number (1-based) of a byte of a chunk of text, for messages.
int64_t line_of(const DocumentChunk& chunk, size_t at);

// Appends a line of JSON to `out`. Replaces each escape that is half a surrogate pair (\ud800 to \udfff alone) by
// \ufffd. Returns the number of replacements.
int64_t append_whole_surrogates(std::string_view line, std::string& out);

// Returns the string at `field` ("text", or "meta.body" for nested objects) of one JSON object in valid UTF-8.
// Errors: invalid_argument (not JSON, no such field, not a string; a number beyond 64 bits, half a surrogate pair).
[[nodiscard]] Result<std::string> jsonl_text(std::string_view line, std::string_view field);

}  // namespace millrace::formats
