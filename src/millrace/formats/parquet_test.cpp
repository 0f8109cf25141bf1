// SPDX-License-Identifier: Apache-2.0
#include "millrace/formats/parquet.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/formats/documents.h"

namespace millrace::formats {
namespace {

// What pyarrow writes is read in tests/e2e/test_prepare_inputs.py; here is what needs no writer.
TEST(Parquet, IsToldByBothItsEnds) {
  const auto told = [](std::string_view file) { return is_parquet(MemoryReader(as_bytes(file))).value(); };
  EXPECT_TRUE(told("PAR1....PAR1"));
  EXPECT_FALSE(told("PAR1....PAR2"));
  EXPECT_FALSE(told("PAR2....PAR1"));
  EXPECT_FALSE(told("PAR1PAR1"));
  EXPECT_FALSE(told(""));
}

TEST(Parquet, ThatIsDamagedOrCutTooFineIsRefused) {
  const MemoryReader file(as_bytes("PAR1 not really PAR1"), "a.parquet");
  const auto table = open_documents(file, {});
  ASSERT_FALSE(table);
  EXPECT_THAT(table.error().code(), ::testing::AnyOf(ErrorCode::kCorruption, ErrorCode::kUnsupported));
  EXPECT_THAT(table.error().to_string(), ::testing::HasSubstr("a.parquet"));
  const auto paragraphs = open_documents(file, {.mode = DocumentMode::kParagraph});
  EXPECT_EQ(paragraphs.error().code(), ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace millrace::formats
