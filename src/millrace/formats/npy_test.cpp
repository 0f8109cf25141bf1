// SPDX-License-Identifier: Apache-2.0
#include "millrace/formats/npy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "millrace/base/testing.h"

namespace millrace::formats {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Ids = std::vector<uint32_t>;

std::string npy_of(const Ids& ids) {
  std::string out;
  append_npy_u32(out, ids);
  return out;
}

Result<Ids> read_npy(std::string_view file) {
  Ids ids{7};  // stays in front
  if (auto parsed = parse_npy_ids(as_bytes(file), ids, "a.npy"); !parsed) {
    EXPECT_THAT(ids, ElementsAre(7));
    EXPECT_THAT(parsed.error().to_string(), HasSubstr("a.npy"));
    return tl::unexpected(parsed.error());
  }
  ids.erase(ids.begin());
  return ids;
}

Result<Ids> read_json(std::string_view json) {
  Ids ids{7};
  if (auto parsed = parse_json_ids(json, ids, "a.json"); !parsed) {
    EXPECT_THAT(ids, ElementsAre(7));
    EXPECT_THAT(parsed.error().to_string(), HasSubstr("a.json"));
    return tl::unexpected(parsed.error());
  }
  ids.erase(ids.begin());
  return ids;
}

// A file of version 1.0 with any dictionary and data.
std::string raw_npy(std::string_view dictionary, std::string_view data) {
  std::string out("\x93NUMPY\x01\x00", 8);
  out += static_cast<char>(dictionary.size() & 255);
  out += static_cast<char>(dictionary.size() >> 8);
  return out.append(dictionary).append(data);
}

template <class T>
std::string raw_numbers(std::string_view descr, const std::vector<T>& numbers) {
  std::string data(numbers.size() * sizeof(T), '\0');
  std::memcpy(data.data(), numbers.data(), data.size());
  return raw_npy("{'descr': '" + std::string(descr) + "', 'fortran_order': False, 'shape': (" +
                     std::to_string(numbers.size()) + ",), }\n",
                 data);
}

TEST(Npy, BytesAreNumpys) {
  // numpy.save of numpy.array([1, 2, 3], dtype="<u4"), NumPy 2.4.6.
  std::string expected("\x93NUMPY\x01\x00v\x00{'descr': '<u4', 'fortran_order': False, 'shape': (3,), }", 67);
  expected += std::string(60, ' ') + "\n" + std::string("\1\0\0\0\2\0\0\0\3\0\0\0", 12);
  EXPECT_EQ(npy_of({1, 2, 3}), expected);
  EXPECT_EQ(npy_of({}).size(), 128U);
  EXPECT_THAT(npy_of(Ids(1000000)), HasSubstr("(1000000,), }"));
  EXPECT_EQ(npy_of(Ids(1000000)).size(), 4000128U);
}

TEST(Npy, ReadsEveryIntegerWidth) {
  EXPECT_THAT(*read_npy(npy_of({0, 5, 4294967295U})), ElementsAre(0, 5, 4294967295U));
  EXPECT_THAT(*read_npy(npy_of({})), ElementsAre());
  EXPECT_THAT(*read_npy(raw_numbers<uint8_t>("|u1", {0, 255})), ElementsAre(0, 255));
  EXPECT_THAT(*read_npy(raw_numbers<int8_t>("|i1", {0, 127})), ElementsAre(0, 127));
  EXPECT_THAT(*read_npy(raw_numbers<uint16_t>("<u2", {0, 65535})), ElementsAre(0, 65535));
  EXPECT_THAT(*read_npy(raw_numbers<int16_t>("<i2", {1, 32767})), ElementsAre(1, 32767));
  EXPECT_THAT(*read_npy(raw_numbers<int32_t>("<i4", {0, 2147483647})), ElementsAre(0, 2147483647));
  EXPECT_THAT(*read_npy(raw_numbers<int64_t>("<i8", {0, 4294967295})), ElementsAre(0, 4294967295U));
  EXPECT_THAT(*read_npy(raw_numbers<uint64_t>("<u8", {0, 4294967295})), ElementsAre(0, 4294967295U));
}

TEST(Npy, IdsMustFit) {
  const auto refused = [](const std::string& file) {
    const auto ids = read_npy(file);
    return ids ? "read" : std::string(error_code_name(ids.error().code())) + ": " + ids.error().to_string();
  };
  for (const std::string& file :
       {raw_numbers<int8_t>("|i1", {0, -1}), raw_numbers<int16_t>("<i2", {3, -1}),
        raw_numbers<int32_t>("<i4", {0, -100}), raw_numbers<int64_t>("<i8", {9, -1}),
        raw_numbers<int64_t>("<i8", {0, 4294967296}), raw_numbers<uint64_t>("<u8", {1, UINT64_MAX})}) {
    EXPECT_THAT(refused(file), AllOf(HasSubstr("invalid_argument"), HasSubstr("id number 1 "))) << file;
  }
}

TEST(Npy, ReadsOtherSpellingsOfTheHeader) {
  const std::string data("\1\0\0\0", 4);
  EXPECT_THAT(*read_npy(raw_npy("{'descr': '<u4', 'fortran_order': True, 'shape': (1,), }", data)), ElementsAre(1));
  EXPECT_THAT(*read_npy(raw_npy("{\"shape\":(1,),\"fortran_order\":False,\"descr\":\"<u4\"}  \n", data)),
              ElementsAre(1));
  EXPECT_THAT(*read_npy(raw_npy("{'descr': '<u4', 'fortran_order': False, 'shape': ( 1 , ) }", data)), ElementsAre(1));
  for (const char version : {'\2', '\3'}) {
    const std::string dictionary = "{'descr': '<u4', 'fortran_order': False, 'shape': (1,), }\n";
    const std::string file = std::string("\x93NUMPY") + version + std::string(1, '\0') +
                             static_cast<char>(dictionary.size()) + std::string(3, '\0') + dictionary + data;
    EXPECT_THAT(*read_npy(file), ElementsAre(1));
  }
}

TEST(Npy, RefusesWhatItDoesNotUnderstand) {
  const std::string data(24, '\0');
  const auto code = [&](const std::string& dictionary) { return read_npy(raw_npy(dictionary, data)).error().code(); };
  const auto with = [](std::string_view descr, std::string_view shape) {
    return "{'descr': " + std::string(descr) + ", 'fortran_order': False, 'shape': " + std::string(shape) + ", }";
  };
  EXPECT_EQ(code(with("'>i4'", "(6,)")), ErrorCode::kUnsupported);
  EXPECT_EQ(code(with("'<f4'", "(6,)")), ErrorCode::kUnsupported);
  EXPECT_EQ(code(with("[('a', '<i4'), ('b', [('c', '<u2')])]", "(6,)")), ErrorCode::kUnsupported);
  EXPECT_EQ(code(with("'<u4'", "(2, 3)")), ErrorCode::kUnsupported);
  EXPECT_EQ(code(with("'<u4'", "()")), ErrorCode::kUnsupported);
  EXPECT_EQ(read_npy(std::string("\x93NUMPY\x04\x00\x01\x00\x00\x00\x00\x00", 14)).error().code(),
            ErrorCode::kUnsupported);
  EXPECT_EQ(code(with("'<u4'", "(5,)")), ErrorCode::kCorruption);
  EXPECT_EQ(code(with("'<u4'", "(7,)")), ErrorCode::kCorruption);
  EXPECT_EQ(code(with("'<u4'", "(4611686018427387910,)")), ErrorCode::kCorruption);  // times four is 24 again
  EXPECT_EQ(code(with("'<u4'", "(99999999999999999999,)")), ErrorCode::kCorruption);
  for (const char* bad :
       {"", "{}", "{'descr': '<u4'}", "{'descr': '<u4', 'fortran_order': False, 'shape': (6,)", "[1]",
        "{'descr': '<u4', 'descr': '<u4', 'fortran_order': False, 'shape': (6,)}",
        "{'descr': '<u4', 'fortran_order': False, 'shape': (-6,)}",
        "{'descr': '<u4', 'fortran_order': 0, 'shape': (6,)}", "{'descr': '<u4' 'fortran_order': False, 'shape': (6,)}",
        "{'descr': [('a', 'fortran_order': False, 'shape': (6,)}",
        "{'descr': '<u4', 'fortran_order': False, 'shape': (6,), 'x': 1}",
        "{'descr': '<u4', 'fortran_order': False, 'shape': (6,)} x"}) {
    EXPECT_EQ(code(bad), ErrorCode::kCorruption) << bad;
  }
}

TEST(Npy, NoCutAndNoFlippedHeaderByteGivesWrongIds) {
  const Ids ids{1, 70000, 3};
  const std::string file = npy_of(ids);
  for (size_t size = 0; size < file.size(); ++size) EXPECT_FALSE(read_npy(file.substr(0, size))) << size;
  EXPECT_FALSE(read_npy(file + '\0'));
  for (size_t i = 0; i < 128; ++i) {
    for (int flip = 1; flip < 256; ++flip) {
      std::string damaged = file;
      damaged[i] = static_cast<char>(damaged[i] ^ flip);
      const auto read = read_npy(damaged);
      // '<u4' and '<i4' hold the same small ids: still no wrong one.
      EXPECT_TRUE(!read || *read == ids) << "byte " << i << " flipped with " << flip;
    }
  }
}

TEST(JsonIds, BytesArePythons) {
  const auto json = [](const Ids& ids) {
    std::string out = "x";
    append_json_ids(out, ids);
    return out;
  };
  EXPECT_EQ(json({}), "x[]");
  EXPECT_EQ(json({0}), "x[0]");
  EXPECT_EQ(json({1, 20, 4294967295U}), "x[1, 20, 4294967295]");
}

TEST(NpyMask, WhatIsWrittenIsReadAndOtherTypesAreRefused) {
  const std::vector<uint8_t> mask{0, 1, 1, 0, 1};
  std::string file;
  append_npy_u8(file, mask);
  EXPECT_THAT(file, HasSubstr("'descr': '|u1', 'fortran_order': False, 'shape': (5,), }"));
  EXPECT_EQ(file.size(), 128U + 5);
  const auto view = npy_u8_view(as_bytes(file), "m");
  ASSERT_TRUE(view) << view.error().to_string();
  EXPECT_TRUE(std::equal(view->begin(), view->end(), mask.begin(), mask.end()));
  for (const size_t size : places_to_damage(file.size())) {
    EXPECT_EQ(npy_u8_view(as_bytes(file).first(size), "m").error().code(), ErrorCode::kCorruption) << size;
  }
  EXPECT_EQ(npy_u8_view(as_bytes(file + "x"), "m").error().code(), ErrorCode::kCorruption);
  std::string ids;
  append_npy_u32(ids, std::vector<uint32_t>{1, 0});
  EXPECT_THAT(npy_u8_view(as_bytes(ids), "m").error().to_string(), HasSubstr("m: dtype <u4; uint8 or bool is read"));
}

TEST(JsonIds, WhatIsWrittenIsReadWithAnySpacing) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE("MILLRACE_TEST_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < 2000; ++round) {
    Ids ids(random() % 12);
    for (uint32_t& id : ids) id = static_cast<uint32_t>(random() & 0xFFFFFFFF) >> (random() % 32);
    std::string json;
    append_json_ids(json, ids);
    ASSERT_EQ(*read_json(json), ids) << json;
    std::string spaced;
    for (const char c : json) {
      if (c < '0' || c > '9') spaced.append(random() % 3, " \t\r\n"[random() % 4]);
      spaced += c;
    }
    ASSERT_EQ(*read_json(spaced + "\n"), ids) << spaced;
  }
}

TEST(JsonIds, RefusesEverythingElse) {
  const auto code = [](std::string_view json) { return read_json(json).error().code(); };
  for (const char* bad : {"",           "[",    "1",     "[1",        "[1,",     "[1,]",  "[,1]",   "[1 2]", "[1,,2]",
                          "[01]",       "[00]", "[1.0]", "[1e3]",     "[\"1\"]", "[[1]]", "[null]", "[1]]",  "[1] x",
                          "{\"a\": 1}", "[ ",   "[+1]",  "[12345678", "[1;2]",   "[1:2]", "[1/2]"}) {
    EXPECT_EQ(code(bad), ErrorCode::kCorruption) << bad;
  }
  for (const char* bad : {"[-1]", "[4294967296]", "[99999999999]", "[1, 123456789012345678901234567890]"}) {
    EXPECT_EQ(code(bad), ErrorCode::kInvalidArgument) << bad;
  }
  EXPECT_THAT(read_json("[1, 2x]").error().to_string(), HasSubstr("byte 5"));
}

TEST(Npy, IdsOfFourBytesAreGivenInPlace) {
  const std::vector<uint32_t> ids{1, 2, 4'000'000'000};
  std::string npy, raw;
  append_npy_u32(npy, ids);
  append_raw_ids(raw, ids, 4);
  const auto of = [](std::string_view field, const std::string& data) { return ids_in_place(field, as_bytes(data)); };
  ASSERT_TRUE(of("token_ids.npy", npy));
  EXPECT_EQ(as_text(*of("token_ids.npy", npy)), raw);
  EXPECT_EQ(as_text(*of("token_ids.u32", raw)), raw);
  EXPECT_FALSE(of("token_ids.u32", raw.substr(1)));
  EXPECT_FALSE(of("token_ids.u16", raw));
  EXPECT_FALSE(of("token_ids.json", "[1]"));
  EXPECT_FALSE(of("token_ids.npy", npy.substr(0, npy.size() - 1)));
  std::string other = npy;
  other.replace(other.find("<u4"), 3, "<i4");
  EXPECT_FALSE(of("token_ids.npy", other)) << "some of them may be negative";
}

}  // namespace
}  // namespace millrace::formats
