// SPDX-License-Identifier: Apache-2.0
#include "millrace/formats/csv.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <random>

#include "millrace/base/testing.h"
#include "millrace/formats/detail/csv_number.h"
#include "millrace/formats/detail/csv_scan.h"

namespace millrace::formats {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr double kInf = std::numeric_limits<double>::infinity();

struct ReadCsv {
  CsvHead head;
  std::vector<CsvType> types;
  CsvTable<double> table;
};

Result<ReadCsv> read_text(std::string_view text, const CsvOptions& options = {}) {
  ReadCsv found;
  ASSIGN_OR_RETURN(found.head, read_csv_head(text, "e.csv", options));
  found.types.resize(found.head.names.size());
  RETURN_IF_ERROR(infer_csv_types(text, "e.csv", found.head, options, found.types));
  ASSIGN_OR_RETURN(found.table, read_csv<double>(text, "e.csv", found.head, found.types, options));
  return found;
}

std::vector<double> numbers_of(std::string_view text, const CsvOptions& options = {}) {
  const auto found = read_text(text, options);
  EXPECT_TRUE(found) << found.error().to_string();
  return found ? found->table.numbers : std::vector<double>();
}

std::string csv_refusal(std::string_view text, const CsvOptions& options = {}) {
  const auto found = read_text(text, options);
  EXPECT_FALSE(found) << text;
  if (found) return {};
  EXPECT_EQ(found.error().code(), ErrorCode::kCorruption);
  return found.error().message();
}

TEST(Csv, NumbersAndTextInRows) {
  const auto found = read_text("t,task,x\n0,pick the cube,-0.5\n1,\"put, it\",2e-3\n");
  ASSERT_TRUE(found);
  EXPECT_THAT(found->head.names, ElementsAre("t", "task", "x"));
  EXPECT_THAT(found->types, ElementsAre(CsvType::kNumber, CsvType::kText, CsvType::kNumber));
  EXPECT_EQ(found->table.rows, 2);
  EXPECT_THAT(found->table.numbers, ElementsAre(0, -0.5, 1, 2e-3));
  EXPECT_EQ(found->table.texts[0][0], "pick the cube");
  EXPECT_EQ(found->table.texts[0][1], "put, it");
}

TEST(Csv, LineEndsMarksAndDelimiters) {
  EXPECT_THAT(numbers_of("\xEF\xBB\xBF"
                         "a,b\r\n1,2\r\n3,4\r\n"),
              ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(read_text("\xEF\xBB\xBF"
                      "a,b\n1,2\n")
                ->head.names[0],
            "a");
  EXPECT_THAT(numbers_of("a\tb\r1\t2\r3\t4"), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(numbers_of("a;b\n1;2\n\n\r\n\n"), ElementsAre(1, 2));
  EXPECT_THAT(numbers_of("\"a,1;2\";b|c\n1;2\n", {.delimiter = ';'}), ElementsAre(1, 2));
  EXPECT_THAT(numbers_of("a;b\n1,5;-2,25e1\n", {.decimal = ','}), ElementsAre(1.5, -22.5));
  EXPECT_THAT(csv_refusal("a;b\n1,5;2,5\n"), AllOf(StartsWith("e.csv:2:1: "), HasSubstr("--decimal ,")));
  EXPECT_THAT(csv_refusal("a;b\n1.5;2,5\n", {.decimal = ','}), HasSubstr("--decimal ."));
}

TEST(Csv, QuotesAreThoseOfPythonsCsv) {
  const auto found = read_text("s,x\n\"a\"\"b\r\nc\",1\nd\"e\",2\n\"f\"g\"h,\"3\"\n\"\",4");
  ASSERT_TRUE(found) << found.error().to_string();
  const auto& texts = found->table.texts[0];
  EXPECT_EQ(texts[0], "a\"b\r\nc");
  EXPECT_EQ(texts[1], "d\"e\"");
  EXPECT_EQ(texts[2], "fg\"h");
  EXPECT_EQ(texts[3], "");
  EXPECT_THAT(found->table.numbers, ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(csv_refusal("s,x\na,1\nb,\"2\n"), AllOf(StartsWith("e.csv:3:3: "), HasSubstr("a quote begins here")));
}

TEST(Csv, RowsOfAnotherLength) {
  EXPECT_THAT(csv_refusal("a,b,c\n1,2,3\n4,5\n6,7,8\n"),
              StartsWith("e.csv:3:3: this row has 2 cells, and the header 3"));
  EXPECT_THAT(csv_refusal("a,b\n1,2\n3,4,5\n"), StartsWith("e.csv:3:3: this row has more cells"));
  EXPECT_THAT(csv_refusal("a,b\n1,2\n3"), HasSubstr("it may be cut"));
  EXPECT_THAT(csv_refusal("a,b\n1,2\n\n3,4\n"), StartsWith("e.csv:3:1: a blank line"));
  EXPECT_THAT(numbers_of("a,b\n1,2\n3,4.5"), ElementsAre(1, 2, 3, 4.5));
}

TEST(Csv, CellsThatAreNoNumbers) {
  EXPECT_THAT(csv_refusal("a,b\n1,2\n3,\xC3\xA9"
                          "4\n"),
              StartsWith("e.csv:3:3: \"\xC3\xA9"
                         "4\" in column \"b\" is not a number"));
  EXPECT_THAT(csv_refusal("\xC3\xA9,b\n1,2\n3,x\n"), StartsWith("e.csv:3:3: "));
  EXPECT_THAT(csv_refusal("s,b\n\xC3\xA9t,2\n\xC3\xA9t,x\n"), StartsWith("e.csv:3:4: "));
  EXPECT_THAT(csv_refusal("a\nword\n3\n"), AllOf(StartsWith("e.csv:3:1: "), HasSubstr("--text a")));
  EXPECT_EQ(read_text("a\n7\nword\n", {.text_columns = {"a"}})->table.texts[0][1], "word");
  EXPECT_THAT(csv_refusal("a,b\n1,2\n,3\n"), HasSubstr("--empty nan"));
  EXPECT_TRUE(std::isnan(numbers_of("a,b\n1,2\n,3\n", {.empty_is_nan = true})[2]));
  EXPECT_THAT(csv_refusal("a\n1e400\n"), HasSubstr("\"1e400\" in column \"a\" is too large for a double"));
  EXPECT_THAT(csv_refusal("s,a\n\xFF,1\n"), HasSubstr("not UTF-8"));
  EXPECT_THAT(csv_refusal(std::string_view("s,a\nx\0,1\n", 9)), HasSubstr("NUL"));
}

TEST(Csv, Headers) {
  EXPECT_THAT(csv_refusal("0.5,1\n2,3\n"), AllOf(StartsWith("e.csv:1:1: "), HasSubstr("--header no")));
  EXPECT_THAT(csv_refusal("0\n1\n"), HasSubstr("looks like data"));
  EXPECT_THAT(numbers_of("0,1\n2,3\n"), ElementsAre(2, 3)) << "names as pandas writes them";
  EXPECT_THAT(numbers_of("0.5,1\n2,3\n", {.header = CsvHeader::kYes}), ElementsAre(2, 3));
  const auto without = read_text("0.5,1\n2,3\n", {.header = CsvHeader::kNo});
  EXPECT_THAT(without->table.numbers, ElementsAre(0.5, 1, 2, 3));
  EXPECT_THAT(without->head.names, ElementsAre("c0", "c1"));
  EXPECT_THAT(csv_refusal("a,b,a\n1,2,3\n"), StartsWith("e.csv:1:5: column 3 has the same name as column 1"));
  EXPECT_THAT(csv_refusal(""), StartsWith("e.csv:1:1: the file is empty"));
  EXPECT_THAT(csv_refusal("\r\n\r\n"), HasSubstr("empty"));
  const auto none = read_text("a,b");
  ASSERT_TRUE(none);
  EXPECT_EQ(none->table.rows, 0);
  EXPECT_EQ(read_csv_head("PK\x03\x04", "e.csv", {}).error().code(), ErrorCode::kInvalidArgument);
}

TEST(Csv, Float32RefusesInfinitiesAndNotesLargeRoundedValues) {
  const std::string_view text = "i,t\n16777216,1700000000.25\n16777217,inf\n";
  const std::vector<CsvType> types(2, CsvType::kNumber);
  const auto head = *read_csv_head(text, "e.csv", {});
  const auto table = read_csv<float>(text, "e.csv", head, types, {});
  ASSERT_TRUE(table) << table.error().to_string();
  EXPECT_THAT(table->rounded, ElementsAre(1, 0));
  EXPECT_EQ(table->numbers[3], std::numeric_limits<float>::infinity());
  const auto large = read_csv<float>("i,t\n1,1e39\n", "e.csv", head, types, {});
  EXPECT_THAT(large.error().message(), AllOf(StartsWith("e.csv:2:3: "), HasSubstr("--dtype float64")));
}

double value_of(std::string_view text) {
  double value = 0;
  EXPECT_EQ(detail::parse_cell(text, '.', value), detail::NumberStatus::kOk) << text;
  return value;
}
detail::NumberStatus status_of(std::string_view text) {
  double value = 0;
  return detail::parse_cell(text, '.', value);
}

TEST(CsvNumber, TakesWhatFloatTakes) {
  EXPECT_EQ(value_of(" +1_000.5\t"), 1000.5);
  EXPECT_EQ(value_of("-iNfInItY"), -kInf);
  EXPECT_EQ(value_of("+inf"), kInf);
  EXPECT_TRUE(std::isnan(value_of("NaN")) && std::signbit(value_of("-nan")));
  EXPECT_TRUE(std::signbit(value_of("-0.0")));
  EXPECT_EQ(value_of("1."), 1);
  EXPECT_EQ(value_of(".5e+1"), 5);
  EXPECT_EQ(value_of("-1e-400"), 0);
  EXPECT_EQ(value_of("5e-324"), 5e-324);
  EXPECT_EQ(value_of("2.4703282292062327e-324"), 0);
  EXPECT_EQ(value_of("2.4703282292062328e-324"), 5e-324);
  EXPECT_EQ(value_of("1.7976931348623158e308"), 1.7976931348623157e308);
  EXPECT_EQ(value_of("9007199254740993"), 9007199254740992.0);
  EXPECT_EQ(value_of("9007199254740993.0000000000000000000000000001"), 9007199254740994.0);
  for (const char* text : {"",     " ",   ".",   "-",   "+",      "e5",    "1e",  "1e+",   "0x10",  "1__0", "_1",  "1_",
                           "1_.5", "--1", "+-1", "1 2", "nan(1)", "infin", "1,5", "1.5.2", "1e5.0", "true", "-.e1"}) {
    EXPECT_EQ(status_of(text), detail::NumberStatus::kNotANumber) << text;
  }
  for (const char* text : {"1e400", "-1.8e308", "1e99999999999999999999"}) {
    EXPECT_EQ(status_of(text), detail::NumberStatus::kTooLarge) << text;
  }
}

// Digits with a point anywhere and sometimes an exponent, of the lengths that each way through the parser takes.
std::string random_number(std::mt19937_64& random) {
  std::string digits = random() % 3 == 0 ? "-" : "";
  const size_t count = 1 + random() % 24, point = random() % (count + 1);
  for (size_t i = 0; i < count; ++i) {
    if (i == point) digits += '.';
    digits += static_cast<char>('0' + random() % 10);
  }
  if (random() % 4 == 0) digits += "e" + std::to_string(static_cast<int>(random() % 660) - 340);
  return digits;
}

TEST(CsvNumber, EqualsStrtodToTheLastBit) {
  SCOPED_TRACE(test_seed());
  std::mt19937_64 random(test_seed());
  for (int i = 0; i < rounds(300'000); ++i) {
    std::string text = random_number(random);
    // A third are doubles as Python's repr writes them.
    if (i % 3 == 0) text = fmt::format("{}", std::bit_cast<double>(random()));
    const double wanted = std::strtod(text.c_str(), nullptr);
    if (std::isnan(wanted)) continue;
    double value = 0;
    const auto status = detail::parse_cell(text, '.', value);
    if (std::isinf(wanted) && text.find("inf") == std::string::npos) {
      ASSERT_EQ(status, detail::NumberStatus::kTooLarge) << text;
    } else {
      ASSERT_EQ(status, detail::NumberStatus::kOk) << text;
      ASSERT_EQ(std::bit_cast<uint64_t>(value), std::bit_cast<uint64_t>(wanted)) << text;
    }
  }
}

TEST(CsvScan, VectorsMarkWhatPlainCodeMarks) {
  SCOPED_TRACE(test_seed());
  std::mt19937_64 random(test_seed());
  for (size_t size = 0; size < 400; ++size) {
    std::string text(size, 'x');
    for (char& c : text) c = "01.,;\"\r\n\xFF-"[random() % 10];
    std::vector<uint64_t> plain((size + 63) / 64, 7), fast(plain);
    detail::mark_separators_plain(text, ';', plain.data());
    detail::mark_separators()(text, ';', fast.data());
    ASSERT_EQ(plain, fast) << text;
  }
}

TEST(CsvScan, CursorFindsEveryMarkFromAnyPlace) {
  std::mt19937_64 random(test_seed());
  std::string text(70'000, 'x');
  for (int i = 0; i < 300; ++i) text[random() % text.size()] = ',';
  detail::SeparatorCursor cursor(text, ',', 0);
  for (size_t at = 0; at < text.size();) {
    const size_t wanted = std::min(text.find(',', at), text.size());
    ASSERT_EQ(cursor.next(), wanted);
    at = wanted + 1 + (random() % 2 == 0 ? random() % 300 : random() % 20'000);
    if (at < text.size()) cursor.skip_to(at);
  }
  EXPECT_EQ(detail::SeparatorCursor("", ',', 0).next(), 0);
}

}  // namespace
}  // namespace millrace::formats
