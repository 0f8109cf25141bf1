// SPDX-License-Identifier: Apache-2.0
// Pickles and archives as Python's pickle and torch.save write them. The real ones are in
// tests/e2e/test_ckpt_last_good.py.
#include "millrace/formats/pickle.h"

#include <gtest/gtest.h>

#include <map>

#include "millrace/formats/torch_zip.h"

namespace millrace::formats {
namespace {

using namespace std::literals;

// pickle.dumps({"epoch": 1, "global_step": 70000, "name": "x", "far": 2**40, "less": -2, "inner": {"global_step": 5}},
// 2)
const std::string kProtocol2 =
    "\x80\x02}q\x00(X\x05\x00\x00\x00"
    "epochq\x01K\x01X\x0b\x00\x00\x00global_"
    "stepq\x02Jp\x11\x01\x00X\x04\x00\x00\x00nameq\x03X\x01\x00\x00\x00xq\x04X\x03"
    "\x00\x00\x00"
    "farq\x05\x8a\x06\x00\x00\x00\x00\x00\x01X\x04\x00\x00\x00lessq\x06J\xfe\xff\xff\xffX\x05\x00\x00\x00innerq\x07}"
    "q\x08h"
    "\x02K\x05su."s;

// A _StorageInfo with relative_path "f", offset 7 and length 9, pickled with protocol 4.
const std::string kStored =
    "\x80\x04\x95\x40\x00\x00\x00\x00\x00\x00\x00\x8c\x01m\x8c\x01"
    "C\x93)\x81}\x94(\x8c\x0drelative_path\x8c\x01"
    "f\x8c\x06offsetK\x07\x8c\x06lengthK\x09ub."s;

TEST(Pickle, TellsTheNumbersOfTheOutermostDict) {
  const auto content = read_pickle(kProtocol2, "p");
  ASSERT_TRUE(content) << content.error().to_string();
  const std::map<std::string, int64_t, std::less<>> expected{
      {"epoch", 1}, {"far", int64_t{1} << 40}, {"global_step", 70000}, {"less", -2}};
  EXPECT_EQ(content->numbers, expected);
  EXPECT_TRUE(content->ranges.empty());
}

TEST(Pickle, TellsWhereDcpStoresWhat) {
  const auto content = read_pickle(kStored, "p");
  ASSERT_TRUE(content) << content.error().to_string();
  ASSERT_EQ(content->ranges.size(), 1u);
  EXPECT_EQ(content->ranges[0].file, "f");
  EXPECT_EQ(content->ranges[0].offset, 7);
  EXPECT_EQ(content->ranges[0].length, 9);
}

TEST(Pickle, EveryCutIsCorruption) {
  for (const std::string& whole : {kProtocol2, kStored}) {
    for (size_t bytes = 0; bytes < whole.size(); ++bytes) {
      const auto content = read_pickle(std::string_view(whole).substr(0, bytes), "name");
      ASSERT_FALSE(content) << bytes;
      EXPECT_EQ(content.error().code(), ErrorCode::kCorruption);
      EXPECT_TRUE(content.error().message().starts_with("name: "));
    }
  }
}

TEST(Pickle, DamagedBytesNeverCrash) {
  for (const std::string& whole : {kProtocol2, kStored}) {
    for (size_t at = 0; at < whole.size(); ++at) {
      for (int value = 0; value < 256; ++value) {
        std::string damaged = whole;
        damaged[at] = static_cast<char>(value);
        static_cast<void>(read_pickle(damaged, "p"));
      }
    }
  }
}

std::string number(uint64_t value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text += static_cast<char>(value >> (8 * i));
  return text;
}

// An archive with one stored member; `in_64`: with the ends and fields of ZIP64, as torch.save writes them.
std::string archive(std::string_view name, std::string_view data, bool in_64) {
  const std::string sizes = number(data.size(), 4) + number(data.size(), 4);
  std::string zip = "PK\x03\x04" + std::string(14, '\0') + sizes + number(name.size(), 2) + number(3, 2) +
                    std::string(name) + "xyz" + std::string(data);
  const size_t directory = zip.size();
  const std::string extra =
      in_64 ? number(1, 2) + number(24, 2) + number(data.size(), 8) + number(data.size(), 8) + number(0, 8) : "";
  zip += "PK\x01\x02" + std::string(16, '\0') + (in_64 ? std::string(8, '\xff') : sizes) + number(name.size(), 2) +
         number(extra.size(), 2) + std::string(10, '\0') + (in_64 ? std::string(4, '\xff') : number(0, 4)) +
         std::string(name) + extra;
  const size_t bytes = zip.size() - directory, end64 = zip.size();
  if (in_64)
    zip += "PK\x06\x06" + number(44, 8) + std::string(12, '\0') + number(1, 8) + number(1, 8) + number(bytes, 8) +
           number(directory, 8) + "PK\x06\x07" + number(0, 4) + number(end64, 8) + number(1, 4);
  return zip + "PK\x05\x06" + number(0, 4) + number(1, 2) + number(1, 2) + number(bytes, 4) + number(directory, 4) +
         number(0, 2);
}

TEST(TorchZip, GivesThePickle) {
  for (const bool in_64 : {false, true}) {
    const std::string zip = archive("a/data.pkl", kProtocol2, in_64);
    const MemoryReader reader(as_bytes(zip), "x.pt");
    const auto members = read_torch_zip(reader);
    ASSERT_TRUE(members) << members.error().to_string();
    ASSERT_EQ(members->size(), 1u);
    EXPECT_EQ(members->front().size, std::ssize(kProtocol2));
    EXPECT_EQ(read_torch_pickle(reader, *members).value(), kProtocol2);
    EXPECT_EQ(read_torch_pickle(reader, *members, 3).error().code(), ErrorCode::kResourceExhausted);
  }
}

TEST(TorchZip, EveryCutIsCorruption) {
  const std::string zip = archive("a/data.pkl", kProtocol2, true);
  for (size_t bytes = 0; bytes < zip.size(); ++bytes) {
    const MemoryReader reader(as_bytes(std::string_view(zip).substr(0, bytes)), "x.pt");
    const auto members = read_torch_zip(reader);
    ASSERT_FALSE(members) << bytes;
    EXPECT_EQ(members.error().code(), ErrorCode::kCorruption);
  }
  const std::string longer = zip + std::string(10, '\0'), hole = std::string(zip).erase(40, 8);
  for (const std::string& other : {longer, hole, std::string(zip.size(), '\0')}) {
    const MemoryReader reader(as_bytes(other), "x.pt");
    EXPECT_EQ(read_torch_zip(reader).error().code(), ErrorCode::kCorruption);
  }
}

TEST(TorchZip, DamagedBytesNeverCrash) {
  const std::string zip = archive("a/data.pkl", kProtocol2, true);
  for (size_t at = 0; at < zip.size(); ++at) {
    for (const int value : {0, 1, 0x7f, 0xff}) {
      std::string damaged = zip;
      damaged[at] = static_cast<char>(value);
      const MemoryReader reader(as_bytes(damaged), "x.pt");
      const auto members = read_torch_zip(reader);
      if (members) static_cast<void>(read_torch_pickle(reader, *members));
    }
  }
}

}  // namespace
}  // namespace millrace::formats
