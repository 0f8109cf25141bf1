// SPDX-License-Identifier: Apache-2.0
#include "millrace/loader/collate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace millrace::loader {
namespace {

using ::testing::ElementsAre;

template <class Id>
struct Arrays {
  Arrays(int64_t rows, int64_t seq_len) : size(static_cast<size_t>(rows * seq_len)) {
    for (auto& v : values) v.assign(size, Id{-7});
  }
  std::vector<std::byte*> pointers() {
    std::vector<std::byte*> out;
    for (auto& v : values) out.push_back(reinterpret_cast<std::byte*>(v.data()));
    return out;
  }
  size_t size;
  std::vector<Id> values[3];
};

TEST(Collate, PadCutsAndPadsOnTheRight) {
  Arrays<int64_t> a(2, 4);
  const std::vector<uint32_t> shorter{5, 6}, longer{1, 2, 3, 4, 9};
  const Piece p0[] = {{shorter}}, p1[] = {{longer}};
  collate_row(Collate::kPad, IdType::kInt64, p0, 4, 99, 0, a.pointers());
  collate_row(Collate::kPad, IdType::kInt64, p1, 4, 99, 1, a.pointers());
  EXPECT_THAT(a.values[0], ElementsAre(5, 6, 99, 99, 1, 2, 3, 4));
  EXPECT_THAT(a.values[1], ElementsAre(5, 6, -100, -100, 1, 2, 3, 4));
  EXPECT_THAT(a.values[2], ElementsAre(1, 1, 0, 0, 1, 1, 1, 1));
}

TEST(Collate, PackRestartsPositionsAndHidesTheFirstTokenOfEachSample) {
  Arrays<int32_t> a(1, 6);
  const std::vector<uint32_t> x{10, 11, 12}, y{20, 21};
  const Piece pieces[] = {{x}, {y}};
  collate_row(Collate::kPack, IdType::kInt32, pieces, 6, 0, 0, a.pointers());
  EXPECT_THAT(a.values[0], ElementsAre(10, 11, 12, 20, 21, 0));
  EXPECT_THAT(a.values[1], ElementsAre(-100, 11, 12, -100, 21, -100));
  EXPECT_THAT(a.values[2], ElementsAre(0, 1, 2, 0, 1, 0));
}

// Checks every length, and that no number outside is written.
template <class Id>
void check_lengths(IdType type) {
  std::mt19937 random(1);
  for (int64_t count = 0; count < 40; ++count) {
    std::vector<uint32_t> x(static_cast<size_t>(count));
    for (uint32_t& id : x) id = static_cast<uint32_t>(random()) >> (sizeof(Id) == 8 ? 0 : 1);
    const std::vector<uint32_t> y{7};
    const Piece pieces[] = {{y}, {x}};
    const int64_t seq_len = count + 1;
    Arrays<Id> a(3, seq_len);
    collate_row(Collate::kPack, type, pieces, seq_len, 0, 1, a.pointers());
    std::vector<Id> ids(a.size, Id{-7}), labels = ids, positions = ids;
    const auto first = static_cast<size_t>(seq_len);
    ids[first] = 7;
    labels[first] = -100;
    positions[first] = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      ids[first + 1 + i] = static_cast<Id>(x[i]);
      labels[first + 1 + i] = i == 0 ? Id{-100} : static_cast<Id>(x[i]);
      positions[first + 1 + i] = static_cast<Id>(i);
    }
    EXPECT_EQ(a.values[0], ids);
    EXPECT_EQ(a.values[1], labels);
    EXPECT_EQ(a.values[2], positions);
  }
}

TEST(Collate, SamplesOfEveryLengthAreCopied) {
  check_lengths<int64_t>(IdType::kInt64);
  check_lengths<int32_t>(IdType::kInt32);
}

TEST(Collate, DocumentsAreNumberedInEachRow) {
  EXPECT_EQ(batch_arrays(Collate::kBestFit, false).size(), 3U);
  EXPECT_EQ(batch_arrays(Collate::kPack, true)[3].name, "document_ids");
  Arrays<int64_t> a(1, 6);
  std::vector<int64_t> documents(6, 77);
  auto arrays = a.pointers();
  arrays.push_back(reinterpret_cast<std::byte*>(documents.data()));
  const std::vector<uint32_t> x{10, 11, 12}, none, y{20, 21};
  const Piece pieces[] = {{x}, {none}, {y}};
  collate_row(Collate::kBestFit, IdType::kInt64, pieces, 6, 0, 0, arrays);
  EXPECT_THAT(a.values[2], ElementsAre(0, 1, 2, 0, 1, 0));
  EXPECT_THAT(documents, ElementsAre(0, 0, 0, 1, 1, -1)) << "a sample without tokens is in no row";
}

TEST(Collate, LabelsAreWhereTheMaskIsOne) {
  const std::vector<uint32_t> x{10, 11, 12, 13}, y{20, 21, 22};
  const uint8_t bits[] = {0b1011'0100, 0b0000'0001};  // x from bit 1: 0 1 0 1; y from bit 5: 1 0 1, and 1
  const Piece pieces[] = {{x, bits, 1}, {y, bits, 5}};
  Arrays<int32_t> pack(1, 8);
  collate_row(Collate::kPack, IdType::kInt32, pieces, 8, 9, 0, pack.pointers());
  EXPECT_THAT(pack.values[0], ElementsAre(10, 11, 12, 13, 20, 21, 22, 9));
  EXPECT_THAT(pack.values[1], ElementsAre(-100, 11, -100, 13, -100, -100, 22, -100)) << "y begins with a learned token";
  EXPECT_THAT(pack.values[2], ElementsAre(0, 1, 2, 3, 0, 1, 2, 0));
  Arrays<int64_t> pad(1, 3);
  const Piece across[] = {{y, bits, 6}};
  collate_row(Collate::kPad, IdType::kInt64, across, 3, 9, 0, pad.pointers());
  EXPECT_THAT(pad.values[0], ElementsAre(20, 21, 22));
  EXPECT_THAT(pad.values[1], ElementsAre(-100, 21, 22)) << "a mask goes on in the next byte";
  EXPECT_THAT(pad.values[2], ElementsAre(1, 1, 1)) << "what is not learned is attended to";
}

TEST(Collate, AnEmptySampleIsARowOfPadding) {
  Arrays<int64_t> a(1, 3);
  const Piece pieces[] = {{{}}};
  collate_row(Collate::kPad, IdType::kInt64, pieces, 3, 7, 0, a.pointers());
  EXPECT_THAT(a.values[0], ElementsAre(7, 7, 7));
  EXPECT_THAT(a.values[1], ElementsAre(-100, -100, -100));
  EXPECT_THAT(a.values[2], ElementsAre(0, 0, 0));
}

TEST(Collate, NamesAreReadAndRefused) {
  EXPECT_EQ(*parse_collate("pack"), Collate::kPack);
  EXPECT_EQ(parse_collate("stack").error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(batch_arrays(Collate::kPad, false)[2].name, "attention_mask");
}

}  // namespace
}  // namespace millrace::loader
