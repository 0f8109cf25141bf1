// SPDX-License-Identifier: Apache-2.0
#include "millrace/formats/documents.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "millrace/base/testing.h"

namespace millrace::formats {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Texts = std::vector<std::string>;

struct Read {
  Texts documents;
  std::vector<int64_t> lines;                     // of each document's first byte
  std::string text;                               // all chunks together
  std::vector<std::pair<int64_t, int64_t>> ends;  // of each chunk: offset and line
  std::vector<LeftOut> left_out;
};

Result<Read> read_documents(const RandomReader& input, const DocumentOptions& options, int64_t begin = 0,
                            int64_t first_line = 1) {
  ASSIGN_OR_RETURN(const auto reader, open_documents(input, options, begin, first_line));
  Read out;
  for (;;) {
    ASSIGN_OR_RETURN(const auto chunk, reader->next());
    if (!chunk) return out;
    const bool says_something = !chunk->documents.empty() || !chunk->empties.empty();
    EXPECT_TRUE(chunk->left_out ? chunk->text.empty() : !chunk->text.empty() || says_something);
    if (chunk->left_out) out.left_out.push_back(*chunk->left_out);
    EXPECT_LE(chunk->file_bytes, input.size());
    for (const DocumentSpan span : chunk->documents) {
      out.documents.push_back(chunk->text.substr(span.begin, span.end - span.begin));
      out.lines.push_back(line_of(*chunk, span.begin));
    }
    out.text += chunk->text;
    if (chunk->left_out) continue;
    EXPECT_EQ(chunk->end, chunk->offset + static_cast<int64_t>(chunk->text.size()));
    out.ends.emplace_back(chunk->end, line_of(*chunk, chunk->text.size()));
  }
}
Result<Read> read_documents(const std::string& text, const DocumentOptions& options, int64_t begin = 0,
                            int64_t first_line = 1) {
  MemoryReader input(as_bytes(text), "a.txt");
  return read_documents(input, options, begin, first_line);
}
Texts documents_of(const std::string& text, DocumentMode mode) {
  return read_documents(text, {.mode = mode})->documents;
}

bool only(const std::string& text, const char* characters) {
  return text.find_first_not_of(characters) == std::string::npos;
}

// The same by the definition, on the whole text.
Texts expected_documents(std::string text, DocumentMode mode) {
  if (text.starts_with("\xEF\xBB\xBF")) text.erase(0, 3);
  Texts out;
  std::string open, line_end;
  const auto close = [&] {
    if (!only(open, " \t\n\r\v\f")) out.push_back(open);
    open.clear();
    line_end.clear();
  };
  for (size_t at = 0; at < text.size();) {
    const size_t newline = text.find('\n', at);
    const size_t next = newline == std::string::npos ? text.size() : newline + 1;
    std::string line = text.substr(at, next - at), end;
    if (line.ends_with("\r\n"))
      end = "\r\n";
    else if (line.ends_with('\n'))
      end = "\n";
    line.resize(line.size() - end.size());
    at = next;
    if (mode == DocumentMode::kParagraph && only(line, " \t\r")) {
      close();
    } else if (mode == DocumentMode::kParagraph) {
      open += line_end + line;
      line_end = end;
    } else {
      open = line;
      close();
    }
  }
  close();
  return out;
}

TEST(Documents, ModesHaveNames) {
  for (const char* name : {"line", "paragraph", "file", "jsonl"})
    EXPECT_EQ(document_mode_name(*parse_document_mode(name)), name);
  EXPECT_EQ(parse_document_mode("page").error().code(), ErrorCode::kInvalidArgument);
}

TEST(Documents, LinesEndWithOrWithoutCarriageReturn) {
  using enum DocumentMode;
  EXPECT_THAT(documents_of("a\nb\r\n\n \t\nlast", kLine), ElementsAre("a", "b", "last"));
  EXPECT_THAT(documents_of("\xEF\xBB\xBF"
                           "a\n\xEF\xBB\xBF"
                           "b",
                           kLine),
              ElementsAre("a",
                          "\xEF\xBB\xBF"
                          "b"));
  EXPECT_THAT(documents_of("a\rb\n\r\r\nc\r", kLine), ElementsAre("a\rb", "c\r"));
  EXPECT_THAT(documents_of(std::string("a\0b\n\0\n\xFF", 7), kLine),
              ElementsAre(std::string("a\0b", 3), std::string(1, '\0'), "\xFF"));
  for (const char* nothing : {"", "\n", "\r\n \v\f\n", "\xEF\xBB\xBF"})
    EXPECT_THAT(documents_of(nothing, kLine), ElementsAre());
}

TEST(Documents, ParagraphsEndAtBlankLines) {
  using enum DocumentMode;
  EXPECT_THAT(documents_of("\n\na\nb\n\n \t\r\nc\r\nd\r\n\r\ne", kParagraph), ElementsAre("a\nb", "c\r\nd", "e"));
  EXPECT_THAT(documents_of("  indented\n\v\n\n\v\n\nz\n", kParagraph), ElementsAre("  indented\n\v", "z"));
}

TEST(Documents, AFileIsOneDocument) {
  EXPECT_THAT(documents_of("\xEF\xBB\xBF"
                           "a\n\nb\n",
                           DocumentMode::kFile),
              ElementsAre("a\n\nb\n"));
  EXPECT_THAT(documents_of(" \n\n", DocumentMode::kFile), ElementsAre());
  EXPECT_THAT(documents_of("", DocumentMode::kFile), ElementsAre());
  const auto refused = read_documents(std::string(11, 'x'), {.mode = DocumentMode::kFile, .max_document_bytes = 10});
  EXPECT_EQ(refused.error().code(), ErrorCode::kResourceExhausted);
}

std::string random_lines(std::mt19937_64& random) {
  static const std::string kPieces[] = {
      "a",        "bc",   " ",        "\t", "\r", "\n", "\r\n", "\n\n", "\v", "\f", std::string(1, '\0'),
      "\xC3\xA9", "\xFF", "long line"};
  std::string text = random() % 8 == 0 ? "\xEF\xBB\xBF" : "";
  const size_t pieces = random() % 60;
  for (size_t i = 0; i < pieces; ++i) text += kPieces[random() % std::size(kPieces)];
  return text;
}

TEST(Documents, EqualTheDefinitionForAnyChunkSizeAndRestart) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE("MILLRACE_TEST_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < 4000; ++round) {
    const std::string text = random_lines(random);
    const std::string body = text.starts_with("\xEF\xBB\xBF") ? text.substr(3) : text;
    for (const auto mode : {DocumentMode::kLine, DocumentMode::kParagraph, DocumentMode::kJsonl}) {
      const DocumentOptions options{.mode = mode, .chunk_bytes = static_cast<int64_t>(1 + random() % 40)};
      const auto read = read_documents(text, options);
      ASSERT_TRUE(read);
      ASSERT_EQ(read->documents, expected_documents(text, mode)) << testing::PrintToString(text);
      ASSERT_EQ(read->text, body);
      for (size_t i = 0; i < read->documents.size(); ++i) {
        const auto line = static_cast<size_t>(read->lines[i]);
        ASSERT_LE(static_cast<int64_t>(line), 1 + std::count(text.begin(), text.end(), '\n'));
        size_t at = 0;
        for (size_t n = 1; n < line; ++n) at = body.find('\n', at) + 1;
        ASSERT_EQ(body.substr(at, read->documents[i].size()), read->documents[i]);
      }
      if (read->ends.empty()) continue;
      const auto [offset, first_line] = read->ends[random() % read->ends.size()];
      const auto rest = read_documents(text, {.mode = mode, .chunk_bytes = 7}, offset, first_line);
      ASSERT_TRUE(rest);
      const auto skipped = static_cast<ptrdiff_t>(read->documents.size() - rest->documents.size());
      ASSERT_TRUE(std::equal(rest->documents.begin(), rest->documents.end(), read->documents.begin() + skipped));
      ASSERT_TRUE(std::equal(rest->lines.begin(), rest->lines.end(), read->lines.begin() + skipped));
      ASSERT_EQ(rest->text, text.substr(static_cast<size_t>(offset)));
    }
  }
}

TEST(Documents, TheLimitDoesNotDependOnChunks) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE("MILLRACE_TEST_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < 4000; ++round) {
    const std::string text = random_lines(random);
    for (const auto mode : {DocumentMode::kLine, DocumentMode::kParagraph}) {
      const auto limit = static_cast<int64_t>(1 + random() % 20);
      const auto whole = read_documents(text, {.mode = mode, .chunk_bytes = 1 << 20, .max_document_bytes = limit});
      const auto pieces = read_documents(
          text, {.mode = mode, .chunk_bytes = static_cast<int64_t>(1 + random() % 20), .max_document_bytes = limit});
      ASSERT_EQ(whole.has_value(), pieces.has_value()) << testing::PrintToString(text);
      if (whole) {
        ASSERT_EQ(whole->documents, pieces->documents);
        for (const std::string& document : whole->documents) ASSERT_LE(static_cast<int64_t>(document.size()), limit);
      } else {
        ASSERT_EQ(whole.error().to_string(), pieces.error().to_string());
      }
    }
  }
}

// More of them than `limit`: nothing is known of the rest of such a line, so it is looked at as if it were blank.
bool has_line_that_begins_with_spaces(const std::string& text, size_t limit) {
  for (size_t at = 0; at < text.size();) {
    if (text.find_first_not_of(" \t\r", at) > at + limit) return true;
    at = std::min(text.find('\n', at), text.size() - 1) + 1;
  }
  return false;
}

TEST(Documents, OverTheLimitAreLeftOutAlone) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE("MILLRACE_TEST_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  int left_out = 0;
  for (int round = 0; round < 4000; ++round) {
    const std::string text = random_lines(random);
    for (const auto mode : {DocumentMode::kLine, DocumentMode::kParagraph, DocumentMode::kFile}) {
      const auto limit = static_cast<size_t>(1 + random() % 20);
      const auto read = read_documents(text, {.mode = mode,
                                              .chunk_bytes = static_cast<int64_t>(1 + random() % 20),
                                              .max_document_bytes = static_cast<int64_t>(limit),
                                              .leave_out_long = true});
      ASSERT_TRUE(read) << read.error().to_string();
      if (mode == DocumentMode::kParagraph && has_line_that_begins_with_spaces(text, limit)) continue;
      const Texts all = documents_of(text, mode);
      Texts expected;
      for (const std::string& document : all) {
        if (document.size() <= limit) expected.push_back(document);
      }
      ASSERT_EQ(read->documents, expected) << testing::PrintToString(text) << " limit " << limit;
      // Lines of spaces over the limit are left out too, so there may be more.
      ASSERT_GE(read->left_out.size() + read->documents.size(), all.size());
      for (const LeftOut& place : read->left_out) {
        ASSERT_EQ(place.line, 1 + std::count(text.begin(), text.begin() + place.offset, '\n'));
        ++left_out;
      }
    }
  }
  EXPECT_GT(left_out, 1000);
}

// Two line ends and a line of one byte without end; counts what is asked of it.
class EndlessLine final : public RandomReader {
 public:
  explicit EndlessLine(char fill) : fill_(fill) {}
  std::string_view name() const override { return "endless.txt"; }
  int64_t size() const override { return int64_t{200} << 20; }
  std::string_view version() const override { return {}; }
  Status read_at(int64_t offset, std::span<std::byte> out) const override {
    std::fill(out.begin(), out.end(), static_cast<std::byte>(fill_));
    if (offset == 0) std::fill_n(out.begin(), 2, std::byte{'\n'});
    read_to = offset + static_cast<int64_t>(out.size());
    return {};
  }
  mutable int64_t read_to = 0;

 private:
  char fill_;
};

TEST(Documents, ALineOverTheLimitIsNotReadToItsEnd) {
  for (const auto mode : {DocumentMode::kLine, DocumentMode::kParagraph, DocumentMode::kJsonl}) {
    for (const char fill : {'x', ' '}) {
      const EndlessLine input(fill);
      const auto read = read_documents(input, {.mode = mode, .chunk_bytes = 64 << 10, .max_document_bytes = 4 << 20});
      EXPECT_EQ(read.error().code(), ErrorCode::kResourceExhausted);
      EXPECT_THAT(read.error().to_string(),
                  AllOf(HasSubstr("endless.txt"), HasSubstr("line 3, offset 2 "), HasSubstr("4194304")));
      EXPECT_LT(input.read_to, 6 << 20);
    }
  }
}

TEST(Jsonl, TheTextIsAField) {
  EXPECT_EQ(*jsonl_text(R"({"id": 1, "text": "a\n\u00e9\ud83d\ude00"})", "text"), "a\n\xC3\xA9\xF0\x9F\x98\x80");
  EXPECT_EQ(*jsonl_text(R"({"text": {"x": 1}, "meta": {"body": {"en": "t"}}})", "meta.body.en"), "t");
  EXPECT_EQ(*jsonl_text(R"({"text": "first", "text": "last"})", "text"), "last");
  EXPECT_EQ(*jsonl_text(R"( {"text": ""} )", "text"), "");
  const auto error = [](std::string_view line, std::string_view field) {
    const auto text = jsonl_text(line, field);
    EXPECT_TRUE(text || text.error().code() == ErrorCode::kInvalidArgument);
    return text ? "read: " + *text : text.error().to_string();
  };
  EXPECT_THAT(error(R"({"id": 1})", "text"), AllOf(HasSubstr("'text'"), HasSubstr("none")));
  EXPECT_THAT(error(R"({"text": 1})", "text"), HasSubstr("not a string"));
  EXPECT_THAT(error(R"({"text": "a"})", "text.en"), HasSubstr("not inside an object"));
  EXPECT_THAT(error(R"(["text"])", "text"), HasSubstr("not inside an object"));
  EXPECT_THAT(error(R"({"text": "a"})", ""), HasSubstr("none"));
  for (const char* bad : {"", "{", R"({"text": "a")", R"({"text": "a"} x)", R"({"text": "a", "b": })",
                          "{\"text\": \"\xFF\"}", R"({"text": "\ud800"})"}) {
    EXPECT_THAT(error(bad, "text"), HasSubstr("not JSON")) << bad;
  }
}

}  // namespace
}  // namespace millrace::formats
