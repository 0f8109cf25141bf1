// SPDX-License-Identifier: Apache-2.0
#pragma once

// Raw text cut into documents, chunk by chunk, in bounded memory: plain or packed text (byte_stream.h), and the rows of
// a Parquet column (parquet.h). A DocumentSource belongs to one thread; chunks are values.

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

// A document that is left out, and why.
struct LeftOut {
  int64_t offset = 0;  // of its first byte, or its row; as in DocumentChunk
  int64_t line = 1;
  std::string reason;
};

// Empty documents that were left out, side by side: `count` of them before documents[before].
struct Empties {
  size_t before = 0;
  int64_t count = 0;
};

// Whole documents back to back with what lies between them.
struct DocumentChunk {
  std::string text;                     // bytes as they are in the file, unpacked; may be invalid UTF-8
  int64_t offset = 0;                   // of text[0] in the unpacked content; of a table, its first row
  int64_t end = 0;                      // offset behind the chunk: the next one's
  int64_t first_line = 1;               // 1-based number of the line text[0] is in; of a table, the first row's
  std::vector<DocumentSpan> documents;  // in order; unless asked for, without those that are empty or ASCII white space
  std::vector<Empties> empties;         // those that are not in `documents`, in order
  std::vector<int64_t> rows;            // of a table: the row of each document; else empty
  std::optional<LeftOut> left_out;      // behind `documents`; the chunk then ends behind it
  int64_t file_bytes = 0;               // how much of the file everything up to the chunk's end took
};

struct DocumentOptions {
  DocumentMode mode = DocumentMode::kLine;
  std::string text_field = "text";        // of a table: the column
  int64_t chunk_bytes = 1 << 20;          // about this much text in a chunk, or one document that is longer; at least 1
  int64_t max_document_bytes = 64 << 20;  // no document, or line of spaces, may be longer; at least 1
  bool leave_out_long = false;            // a longer one is left out, and said to be, instead of being an error
  // Texts without a character, or only of white space, are documents: empty lines (of jsonl they never are: such a line
  // holds no object), empty files and rows. Paragraphs are what lies between empty lines.
  bool keep_empty = false;
};

class DocumentSource {
 public:
  virtual ~DocumentSource() = default;
  // The next chunk, nullopt at the end. Documents do not depend on the size of chunks; a chunk may hold none.
  // Memory: a chunk, or 1.25 times a longer document.
  // Errors: resource_exhausted (a document over the limit, which is not read to its end: file, line, offset),
  // corruption, those of reading.
  [[nodiscard]] virtual Result<std::optional<DocumentChunk>> next() = 0;
};

// The documents of `file` from `begin`, which must be a chunk's `end`, a document's place (document_offset) or 0;
// `line` is the one it is in. `file` must outlive the source. A file that begins as Parquet does is read as a table,
// whose rows are the documents. Errors: those of open_stream, open_table and refuse_other_format (text_check.h);
// invalid_argument (a table cut by paragraph).
[[nodiscard]] Result<std::unique_ptr<DocumentSource>> open_documents(const RandomReader& file,
                                                                     const DocumentOptions& options, int64_t begin = 0,
                                                                     int64_t line = 1);

// Text from a stream. Skips a UTF-8 byte order mark at the file's start.
class DocumentReader final : public DocumentSource {
 public:
  // The stream stands at byte `begin` of its content.
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
  int64_t line_;        // the line carry_[0] is in
  std::string carry_;   // read, and not yet in a chunk
  bool ended_ = false;  // the stream ends with carry_
  bool is_empty_file_given_ = false;
};

// The offset of documents[i], counted as DocumentChunk::offset, and the line that it begins in (1-based; a table's
// row).
int64_t document_offset(const DocumentChunk& chunk, size_t i);
int64_t document_line(const DocumentChunk& chunk, size_t i);
// Line number (1-based) of a byte of a chunk of text, for messages.
int64_t line_of(const DocumentChunk& chunk, size_t at);

// Appends a line of JSON to `out` with each escape that is half a surrogate pair (\ud800 to \udfff alone) replaced by
// \ufffd. Returns the number of replacements.
int64_t append_whole_surrogates(std::string_view line, std::string& out);

// The string at `field` ("text", or "meta.body" for nested objects) of one JSON object in valid UTF-8.
// Errors: invalid_argument (not JSON, no such field, not a string; a number beyond 64 bits, half a surrogate pair).
[[nodiscard]] Result<std::string> jsonl_text(std::string_view line, std::string_view field);

}  // namespace millrace::formats
