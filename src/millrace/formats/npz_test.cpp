// SPDX-License-Identifier: Apache-2.0
#include "millrace/formats/npz.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "millrace/base/testing.h"
#include "millrace/formats/npy.h"

namespace millrace::formats {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::SizeIs;

std::string sample_npz(bool compress, std::string_view comment = "made by a test") {
  std::vector<float> numbers(300);
  std::iota(numbers.begin(), numbers.end(), 0.f);
  const std::vector<uint8_t> few{1, 2, 3};
  const std::vector<NpzArray> arrays{{"few", "|u1", {3}, std::as_bytes(std::span(few))},
                                     {"a longer name", "<f4", {100, 3}, std::as_bytes(std::span(numbers))},
                                     {"none", "<f8", {0, 2}, {}}};
  return *write_npz(arrays, comment, compress);
}

TEST(Npz, MembersComeBackAndStoredOnesAreAligned) {
  for (const bool compress : {false, true}) {
    const std::string file = sample_npz(compress);
    const auto npz = parse_npz(as_bytes(file), "a.npz");
    ASSERT_TRUE(npz) << npz.error().to_string();
    EXPECT_THAT(npz->members, SizeIs(3));
    EXPECT_EQ(npz->comment, "made by a test");
    EXPECT_EQ(npz_comment(std::string_view(file).substr(file.size() - 40)), "made by a test");
    const NpzMember* member = npz->find("a longer name.npy");
    ASSERT_NE(member, nullptr);
    EXPECT_EQ(member->compressed, compress);
    const auto unpacked = unpack_npz_member(*member, "a.npz");
    ASSERT_TRUE(unpacked) << unpacked.error().to_string();
    const auto array = parse_npy(as_bytes(*unpacked), "a.npz");
    ASSERT_TRUE(array);
    EXPECT_THAT(array->shape, ElementsAre(100, 3));
    EXPECT_EQ(array->data.size(), 1200);
    if (compress) continue;
    for (const NpzMember& each : npz->members) {
      const auto data = parse_npy(each.data, "a")->data;
      EXPECT_EQ((as_text(data).data() - file.data()) % kNpzAlignment, 0) << each.name;
    }
  }
}

// The content of every member that can be read.
std::vector<std::string> readable(std::string_view file) {
  std::vector<std::string> all;
  const auto npz = parse_npz(as_bytes(file), "a.npz");
  if (!npz) return all;
  for (const NpzMember& member : npz->members) {
    if (const auto unpacked = unpack_npz_member(member, "a.npz")) all.push_back(*unpacked);
  }
  return all;
}

// A zip archive has no checksum of names and dates; of content it has.
TEST(Npz, DamagedContentIsFound) {
  for (const bool compress : {false, true}) {
    const std::string whole = sample_npz(compress, "");
    const auto right = readable(whole);
    ASSERT_THAT(right, SizeIs(3));
    for (size_t size = 0; size < whole.size(); ++size) {
      ASSERT_THAT(readable(std::string_view(whole).substr(0, size)), SizeIs(0)) << size;
    }
    for (const size_t at : places_to_damage(whole.size())) {
      std::string damaged = whole;
      damaged[at] = static_cast<char>(damaged[at] ^ 0x21);
      for (const std::string& content : readable(damaged)) ASSERT_THAT(right, Contains(content)) << at;
    }
  }
}

}  // namespace
}  // namespace millrace::formats
