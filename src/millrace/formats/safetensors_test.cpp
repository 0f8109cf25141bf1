// SPDX-License-Identifier: Apache-2.0
#include "millrace/formats/safetensors.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "millrace/base/testing.h"
#include "millrace/base/text/utf8.h"

namespace millrace::formats {
namespace {

using ::testing::HasSubstr;
using namespace std::string_literals;

// What the reference (safetensors 0.8.0, safetensors.numpy.save) writes for b: float32 [1, 2], a: int64 [[1, -1]],
// z: uint8 [7], e: float32 (0, 3), s: bool True, with the metadata {"format": "np"}.
const std::string kReferenceHeader =
    "8\x01\0\0\0\0\0\0"
    R"({"__metadata__":{"format":"np"},"a":{"dtype":"I64","shape":[1,2],"data_offsets":[0,16]},)"
    R"("b":{"dtype":"F32","shape":[2],"data_offsets":[16,24]},"e":{"dtype":"F32","shape":[0,3],"data_offsets":[24,24]},)"
    R"("z":{"dtype":"U8","shape":[1],"data_offsets":[24,25]},"s":{"dtype":"BOOL","shape":[],"data_offsets":[25,26]}}   )"s;
const std::string kReferenceData = "\1\0\0\0\0\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff\0\0\x80?\0\0\0@\7\1"s;

Result<SafetensorsHeader> parse_file(std::string_view file) {
  return parse_safetensors_header(MemoryReader(as_bytes(file), "model.safetensors"));
}

// A file around a header's JSON, with `data_bytes` of data.
std::string file_of(std::string_view json, size_t data_bytes) {
  std::string file;
  for (int shift = 0; shift < 64; shift += 8) file += static_cast<char>(json.size() >> shift & 0xFF);
  return file.append(json).append(data_bytes, '\0');
}

void expect_corrupt(std::string_view file, std::string_view reason) {
  const auto parsed = parse_file(file);
  ASSERT_FALSE(parsed) << file.substr(8, 200);
  EXPECT_EQ(parsed.error().code(), ErrorCode::kCorruption);
  EXPECT_THAT(parsed.error().to_string(), HasSubstr("model.safetensors: "));
  EXPECT_THAT(parsed.error().to_string(), HasSubstr(std::string(reason)));
}

// One tensor's entry, valid for 4 bytes of data.
void expect_entry_corrupt(std::string_view entry, std::string_view reason) {
  expect_corrupt(file_of(fmt::format(R"({{"a":{}}})", entry), 4), reason);
}

std::vector<TensorInfo> reference_tensors() {
  return {{"b", Dtype::kF32, {2}},
          {"a", Dtype::kI64, {1, 2}},
          {"z", Dtype::kU8, {1}},
          {"e", Dtype::kF32, {0, 3}},
          {"s", Dtype::kBool, {}}};
}

void expect_same_tensors(const SafetensorsHeader& a, const SafetensorsHeader& b) {
  ASSERT_EQ(a.tensors.size(), b.tensors.size());
  for (size_t i = 0; i < a.tensors.size(); ++i) {
    EXPECT_EQ(a.tensors[i].name, b.tensors[i].name);
    EXPECT_EQ(a.tensors[i].dtype, b.tensors[i].dtype);
    EXPECT_EQ(a.tensors[i].shape, b.tensors[i].shape);
    EXPECT_EQ(a.tensors[i].begin, b.tensors[i].begin);
    EXPECT_EQ(a.tensors[i].end, b.tensors[i].end);
  }
  EXPECT_EQ(a.metadata, b.metadata);
  EXPECT_EQ(a.data_offset, b.data_offset);
  EXPECT_EQ(a.data_bytes, b.data_bytes);
}

TEST(Safetensors, WritesTheReferenceBytes) {
  EXPECT_EQ(layout_safetensors(reference_tensors(), {{"format", "np"}})->header_bytes, kReferenceHeader);
  EXPECT_EQ(layout_safetensors({})->header_bytes, "\x08\0\0\0\0\0\0\0{}      "s);
  EXPECT_EQ(
      layout_safetensors({{"w\xc3\xa9\"\\\n\x01\x7f/", Dtype::kI16, {1}}})->header_bytes,
      "H\0\0\0\0\0\0\0{\"w\xc3\xa9\\\"\\\\\\n\\u0001\x7f/\":{\"dtype\":\"I16\",\"shape\":[1],\"data_offsets\":[0,2]}}  "s);
}

TEST(Safetensors, ReadsTheReferenceFile) {
  const auto header = parse_file(kReferenceHeader + kReferenceData);
  ASSERT_TRUE(header) << header.error().to_string();
  EXPECT_EQ(header->data_offset, static_cast<int64_t>(kReferenceHeader.size()));
  EXPECT_EQ(header->data_bytes, 26);
  EXPECT_EQ(header->metadata, (std::map<std::string, std::string>{{"format", "np"}}));
  ASSERT_NE(header->find("b"), nullptr);
  EXPECT_EQ(header->find("b")->begin, 16);
  EXPECT_EQ(header->find("s")->shape, std::vector<int64_t>{});
  EXPECT_EQ(header->find("e")->shape, (std::vector<int64_t>{0, 3}));
  EXPECT_EQ(header->find("nothing"), nullptr);
  expect_same_tensors(*header, layout_safetensors(reference_tensors(), {{"format", "np"}})->header);
}

TEST(Safetensors, DtypesAreTheReferencesInItsOrder) {
  // The list in the reference's own error message for an unknown dtype.
  const std::vector<std::string_view> names = {
      "BOOL", "F4",  "F6_E2M3", "F6_E3M2", "U8",  "I8",  "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ",
      "I16",  "U16", "F16",     "BF16",    "I32", "U32", "F32",     "C64",     "F64",     "I64",         "U64"};
  for (size_t i = 0; i < names.size(); ++i) {
    EXPECT_EQ(dtype_name(static_cast<Dtype>(i)), names[i]);
    EXPECT_EQ(dtype_from_name(names[i]), static_cast<Dtype>(i));
  }
  EXPECT_EQ(dtype_from_name("f32"), std::nullopt);
  EXPECT_EQ(dtype_bits(Dtype::kF6E3M2), 6);
  EXPECT_EQ(dtype_bits(Dtype::kBF16), 16);
  EXPECT_EQ(dtype_bits(Dtype::kC64), 64);
}

TEST(Safetensors, TensorBytes) {
  const auto bytes = [](Dtype dtype, std::vector<int64_t> shape) { return tensor_bytes(dtype, shape); };
  EXPECT_EQ(*bytes(Dtype::kF32, {}), 4);
  EXPECT_EQ(*bytes(Dtype::kBF16, {3, 5}), 30);
  EXPECT_EQ(*bytes(Dtype::kF4, {2, 3}), 3);
  EXPECT_EQ(*bytes(Dtype::kU64, {0, 1 << 20}), 0);
  EXPECT_THAT(bytes(Dtype::kF4, {3}).error().message(), HasSubstr("whole bytes"));
  EXPECT_THAT(bytes(Dtype::kF32, {-1}).error().message(), HasSubstr("negative"));
  EXPECT_THAT(bytes(Dtype::kF32, {int64_t{1} << 49, 0}).error().message(), HasSubstr("2^48"));
  EXPECT_THAT(bytes(Dtype::kU8, {int64_t{1} << 40, int64_t{1} << 40}).error().message(), HasSubstr("overflows"));
  EXPECT_THAT(bytes(Dtype::kU64, {int64_t{1} << 48, 1 << 13}).error().message(), HasSubstr("overflows"));
}

TEST(Safetensors, AlignmentMovesTheDataOnly) {
  const auto layout = layout_safetensors(reference_tensors(), {}, 4096);
  ASSERT_TRUE(layout);
  EXPECT_EQ(layout->header.data_offset, 4096);
  EXPECT_EQ(layout->header_bytes.size(), 4096U);
  const auto parsed = parse_file(layout->header_bytes + kReferenceData);
  ASSERT_TRUE(parsed) << parsed.error().to_string();
  expect_same_tensors(*parsed, layout->header);
  EXPECT_FALSE(layout_safetensors({}, {}, 0));
  EXPECT_FALSE(layout_safetensors({}, {}, 12));
}

TEST(Safetensors, LayoutRefuses) {
  const auto reason = [](std::vector<TensorInfo> tensors, std::map<std::string, std::string> metadata = {}) {
    const auto layout = layout_safetensors(std::move(tensors), std::move(metadata));
    if (layout) return std::string("no error");
    EXPECT_EQ(layout.error().code(), ErrorCode::kInvalidArgument);
    return layout.error().message();
  };
  EXPECT_THAT(reason({{"a", Dtype::kF32, {}}, {"a", Dtype::kU8, {}}}), HasSubstr("two tensors named \"a\""));
  EXPECT_THAT(reason({{"__metadata__", Dtype::kF32, {}}}), HasSubstr("reserved"));
  EXPECT_THAT(reason({{"\xff", Dtype::kF32, {}}}), HasSubstr("UTF-8"));
  EXPECT_THAT(reason({}, {{"a", "\xff"}}), HasSubstr("UTF-8"));
  EXPECT_THAT(reason({{"a", Dtype::kF4, {1}}}), HasSubstr("tensor \"a\""));
  EXPECT_THAT(reason({{"a", Dtype::kU8, {int64_t{1} << 48}}, {"b", Dtype::kU8, {1}}}), HasSubstr("2^48"));
  // Names alone pass the limit, or only the header around them does.
  EXPECT_THAT(reason({{std::string(100'000'001, 'x'), Dtype::kU8, {1}}}), HasSubstr("takes 100000001 bytes or more"));
  EXPECT_THAT(layout_safetensors({}, {}, int64_t{1} << 27).error().message(), HasSubstr("limit is 100000000"));
}

TEST(Safetensors, RefusesWhatIsNoHeader) {
  expect_corrupt("1234567", "7 bytes");
  expect_corrupt("\0\0\0\0\0\0\0\0"s, "does not start with '{'");
  expect_corrupt("\x01\xe1\xf5\x05\0\0\0\0{}"s, "over the limit");  // 100,000,001
  expect_corrupt(std::string(8, '\xff'), "over the limit");
  expect_corrupt("\x03\0\0\0\0\0\0\0{}"s, "a header of 3 bytes in a file of 10 bytes");
  expect_corrupt(file_of(" []", 0), "start with '{'");
  expect_corrupt(file_of("\v{}", 0), "start with '{'");
  expect_corrupt(file_of(" \n", 0), "start with '{'");
  expect_corrupt(file_of("{}\xff", 0), "invalid UTF-8 at byte 10");
  expect_corrupt(file_of("{}\0}"s, 0), "a NUL at byte 10");
  expect_corrupt(file_of("{} {}", 0), "not JSON");
  expect_corrupt(file_of(R"({"a)", 0), "not JSON");
  expect_corrupt(file_of("{}", 1), "tensors end at byte 10 of the file, which has 11 bytes");
  EXPECT_TRUE(parse_file(file_of("{} \n\t\r", 0)));
  EXPECT_TRUE(parse_file(file_of(" \n\t\r{}", 0)));
}

TEST(Safetensors, RefusesWrongEntries) {
  expect_entry_corrupt("[]", "\"a\": an array where an object should be");
  expect_entry_corrupt("7", "a number where an object should be");
  expect_entry_corrupt("null", "null where an object should be");
  expect_entry_corrupt("{}", "tensor \"a\": dtype, shape or data_offsets is missing");
  expect_entry_corrupt(R"({"dtype":"F32","shape":[1]})", "is missing");
  expect_entry_corrupt(R"({"dtype":"X32","shape":[1],"data_offsets":[0,4]})", "tensor \"a\": unknown dtype \"X32\"");
  expect_entry_corrupt(R"({"dtype":1,"shape":[1],"data_offsets":[0,4]})", "dtype has the wrong type (a number)");
  expect_entry_corrupt(R"({"dtype":["F32"],"shape":[1],"data_offsets":[0,4]})", "dtype has the wrong type (an array)");
  expect_entry_corrupt(R"({"dtype":"F32","shape":1,"data_offsets":[0,4]})", "shape has the wrong type (a number)");
  expect_entry_corrupt(R"({"dtype":"F32","shape":{},"data_offsets":[0,4]})", "shape has the wrong type (an object)");
  expect_entry_corrupt(R"({"dtype":"F32","shape":[[1]],"data_offsets":[0,4]})", "shape holds an array");
  expect_entry_corrupt(R"({"dtype":"F32","shape":["1"],"data_offsets":[0,4]})", "shape holds a string");
  expect_entry_corrupt(R"({"dtype":"F32","shape":[-1],"data_offsets":[0,4]})", "shape holds a negative number");
  expect_entry_corrupt(R"({"dtype":"F32","shape":[1.0],"data_offsets":[0,4]})", "not a whole number");
  expect_entry_corrupt(R"({"dtype":"F32","shape":[true],"data_offsets":[0,4]})", "shape holds a boolean");
  expect_entry_corrupt(R"({"dtype":"F32","shape":[1],"data_offsets":[-0,4]})", "data_offsets holds a negative number");
  expect_entry_corrupt(R"({"dtype":"F32","shape":[1],"data_offsets":[0]})", "fewer than two");
  expect_entry_corrupt(R"({"dtype":"F32","shape":[1],"data_offsets":[0,4,4]})", "more than two");
  expect_entry_corrupt(R"({"dtype":"F32","shape":[1],"data_offsets":[0,281474976710657]})", "over 2^48");
  expect_entry_corrupt(R"({"dtype":"F32","shape":[1],"data_offsets":[0,99999999999999999999]})", "not a whole number");
  expect_entry_corrupt(R"({"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]})", "dtype occurs twice");
}

TEST(Safetensors, RefusesDuplicatesAndWrongMetadata) {
  const std::string entry = R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})";
  const std::string empty = R"({"dtype":"F32","shape":[0],"data_offsets":[4,4]})";
  expect_corrupt(file_of(fmt::format(R"({{"a":{0},"a":{0}}})", entry), 4), "two tensors named \"a\"");
  expect_corrupt(file_of(fmt::format(R"({{"a":{},"\u0061":{}}})", entry, empty), 4), "two tensors named \"a\"");
  expect_corrupt(file_of(fmt::format(R"({{"__metadata__":{{}},"a":{},"__metadata__":{{}}}})", entry), 4),
                 "occurs twice");
  expect_corrupt(file_of(fmt::format(R"({{"__metadata__":{{"k":"1","k":"2"}},"a":{}}})", entry), 4), "occurs twice");
  expect_corrupt(file_of(fmt::format(R"({{"__metadata__":{{"k":1}},"a":{}}})", entry), 4),
                 "__metadata__ key \"k\": a number");
  expect_corrupt(file_of(fmt::format(R"({{"__metadata__":{{"k":{{}}}},"a":{}}})", entry), 4),
                 "an object where a string");
  expect_corrupt(file_of(fmt::format(R"({{"__metadata__":[],"a":{}}})", entry), 4), "an array where an object");
  expect_corrupt(file_of(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"\ud800":1}})", 4), "not JSON");
}

TEST(Safetensors, UnknownKeysOfAnEntryArePassedOver) {
  const auto header = parse_file(file_of(
      R"({"a":{"x":{"shape":[9,{"dtype":1}],"y":null},"dtype":"F32","z":[[],-1.5,"s",true],"shape":[1],"data_offsets":[0,4]}})",
      4));
  ASSERT_TRUE(header) << header.error().to_string();
  EXPECT_EQ(header->find("a")->shape, std::vector<int64_t>{1});
}

TEST(Safetensors, RefusesHolesOverlapsAndWrongSizes) {
  const auto file = [](int64_t a0, int64_t a1, int64_t b0, int64_t b1, size_t data) {
    return file_of(
        fmt::format(
            R"({{"a":{{"dtype":"U8","shape":[4],"data_offsets":[{},{}]}},"b":{{"dtype":"U8","shape":[4],"data_offsets":[{},{}]}}}})",
            a0, a1, b0, b1),
        data);
  };
  EXPECT_TRUE(parse_file(file(0, 4, 4, 8, 8)));
  EXPECT_TRUE(parse_file(file(4, 8, 0, 4, 8)));
  expect_corrupt(file(0, 4, 5, 9, 9), "tensor \"b\", data [5, 9): hole");
  expect_corrupt(file(0, 4, 3, 7, 7), "tensor \"b\", data [3, 7): overlap");
  expect_corrupt(file(0, 4, 0, 4, 4), "overlap");
  expect_corrupt(file(1, 5, 5, 9, 9), "tensor \"a\", data [1, 5): hole");
  expect_corrupt(file(0, 4, 4, 3, 8), "ends before it begins");
  expect_corrupt(file(0, 5, 5, 9, 9), "dtype and shape make 4 bytes");
  expect_corrupt(file(0, 4, 4, 8, 9), "which has");
  expect_corrupt(file(0, 4, 4, 8, 7), "which has");
  expect_corrupt(file_of(R"({"a":{"dtype":"U8","shape":[281474976710656,281474976710656],"data_offsets":[0,4]}})", 4),
                 "overflows");
  expect_corrupt(file_of(R"({"a":{"dtype":"F4","shape":[7],"data_offsets":[0,4]}})", 4), "whole bytes");
}

TEST(Safetensors, EveryTruncationIsFound) {
  const std::string file = kReferenceHeader + kReferenceData;
  for (size_t size = 0; size < file.size(); ++size) expect_corrupt(std::string_view(file).substr(0, size), "");
}

// The format has no checksum: a flipped byte may make another name, metadata or dtype of the same width, or blank out a
// dimension of 1. Nothing else may pass, and every tensor keeps its bytes.
TEST(Safetensors, EveryFlippedByteIsFoundOrKeepsTheBytes) {
  auto tensors = reference_tensors();
  std::erase_if(tensors,
                [](const TensorInfo& t) { return t.name == "e"; });  // an empty tensor's shape is not held by its size
  const auto layout = layout_safetensors(tensors, {{"format", "np"}});
  const std::string file = layout->header_bytes + kReferenceData;
  int passed = 0;
  const auto places = places_to_damage(layout->header_bytes.size());
  for (const size_t at : places) {
    for (int flip = 1; flip < 256; ++flip) {
      std::string flipped = file;
      flipped[at] = static_cast<char>(flipped[at] ^ flip);
      const auto parsed = parse_file(flipped);
      if (!parsed) {
        EXPECT_EQ(parsed.error().code(), ErrorCode::kCorruption);
        continue;
      }
      SCOPED_TRACE(fmt::format("byte {} ^ {}", at, flip));
      ++passed;
      EXPECT_GE(at, 8U);
      int changes = parsed->metadata != layout->header.metadata;
      ASSERT_EQ(parsed->tensors.size(), layout->header.tensors.size());
      for (size_t i = 0; i < parsed->tensors.size(); ++i) {
        const TensorInfo &there = parsed->tensors[i], &here = layout->header.tensors[i];
        changes += (there.name != here.name) + (there.dtype != here.dtype) + (there.shape != here.shape);
        EXPECT_EQ(dtype_bits(there.dtype), dtype_bits(here.dtype));
        EXPECT_EQ(there.begin, here.begin);
        EXPECT_EQ(there.end, here.end);
      }
      EXPECT_LE(changes, 1);
    }
  }
  if (places.size() == layout->header_bytes.size()) {
    EXPECT_GT(passed, 0);
  }
}

std::string random_name(std::mt19937_64& random) {
  std::string text;
  for (uint64_t i = random() % 12; i > 0; --i) {
    constexpr uint32_t kLimits[] = {0x20, 0x80, 0x80, 0x800, 0xD800, 0x110000};
    uint32_t code_point = static_cast<uint32_t>(random() % kLimits[random() % std::size(kLimits)]);
    if (code_point >= 0xD800 && code_point < 0xE000) code_point = 0xFFFD;
    append_utf8(code_point, text);
  }
  return text;
}

TEST(Safetensors, RandomHeadersRoundTrip) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE(fmt::format("MILLRACE_TEST_SEED={}", seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < 300; ++round) {
    std::map<std::string, TensorInfo> by_name;
    for (uint64_t n = random() % 20; n > 0; --n) {
      TensorInfo tensor{random_name(random), static_cast<Dtype>(random() % 22), {}};
      for (uint64_t d = random() % 4; d > 0; --d) tensor.shape.push_back(static_cast<int64_t>(random() % 6));
      if (tensor_bytes(tensor.dtype, tensor.shape) && tensor.name != "__metadata__") by_name[tensor.name] = tensor;
    }
    std::vector<TensorInfo> tensors;
    for (auto& [name, tensor] : by_name) tensors.push_back(tensor);
    std::shuffle(tensors.begin(), tensors.end(), random);
    std::map<std::string, std::string> metadata;
    for (uint64_t n = random() % 3; n > 0; --n) metadata[random_name(random)] = random_name(random);

    const auto layout = layout_safetensors(tensors, metadata, int64_t{8} << random() % 10);
    ASSERT_TRUE(layout) << layout.error().to_string();
    const auto parsed =
        parse_file(layout->header_bytes + std::string(static_cast<size_t>(layout->header.data_bytes), '\0'));
    ASSERT_TRUE(parsed) << parsed.error().to_string();
    expect_same_tensors(*parsed, layout->header);
    for (const auto& [name, tensor] : by_name) {
      ASSERT_NE(parsed->find(name), nullptr);
      EXPECT_EQ(parsed->find(name)->shape, tensor.shape);
    }
  }
}

}  // namespace
}  // namespace millrace::formats
