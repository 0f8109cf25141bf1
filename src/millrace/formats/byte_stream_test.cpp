// SPDX-License-Identifier: Apache-2.0
#include "millrace/formats/byte_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>
#include <zstd.h>

#include <random>
#include <string>

#include "millrace/base/testing.h"

namespace millrace::formats {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string gzip(std::string_view text) {
  z_stream state{};
  deflateInit2(&state, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY);
  std::string packed(deflateBound(&state, text.size()) + 64, '\0');
  state.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  state.avail_in = static_cast<uInt>(text.size());
  state.next_out = reinterpret_cast<Bytef*>(packed.data());
  state.avail_out = static_cast<uInt>(packed.size());
  deflate(&state, Z_FINISH);
  packed.resize(state.total_out);
  deflateEnd(&state);
  return packed;
}

std::string zstd(std::string_view text) {
  std::string packed(ZSTD_compressBound(text.size()), '\0');
  ZSTD_CCtx* const state = ZSTD_createCCtx();
  ZSTD_CCtx_setParameter(state, ZSTD_c_checksumFlag, 1);
  packed.resize(ZSTD_compress2(state, packed.data(), packed.size(), text.data(), text.size()));
  ZSTD_freeCCtx(state);
  return packed;
}

// The whole content, in reads of `piece` bytes.
Result<std::string> content(std::string_view file, size_t piece, int64_t begin = 0) {
  const MemoryReader reader(as_bytes(file), "a.gz");
  ASSIGN_OR_RETURN(const auto stream, open_stream(reader, begin));
  std::string text;
  for (size_t size = piece; size == piece;) {
    std::string part(piece, '\0');
    ASSIGN_OR_RETURN(size, stream->read(std::as_writable_bytes(std::span<char>(part))));
    text.append(part, 0, size);
  }
  EXPECT_EQ(stream->file_bytes(), reader.size());
  return text;
}

std::string random_content(std::mt19937_64& random) {
  std::string text;
  const size_t size = random() % 4 == 0 ? random() % 2'000'000 : random() % 500;
  while (text.size() < size) text.append(1 + random() % 9, static_cast<char>(random() % 16 + 'a'));
  return text;
}

TEST(ByteStream, UnpacksWhatItsFirstBytesSay) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE("MILLRACE_TEST_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < 60; ++round) {
    for (const auto pack : {gzip, zstd}) {
      std::string text, packed;
      for (uint64_t members = 1 + random() % 3; members > 0; --members) {
        const std::string part = random_content(random);
        text += part;
        packed += pack(part);
      }
      const size_t piece = 1 + random() % (text.size() + 10);
      ASSERT_EQ(content(packed, piece).value(), text);
      const auto begin = static_cast<int64_t>(random() % (text.size() + 1));
      ASSERT_EQ(content(packed, piece, begin).value(), text.substr(static_cast<size_t>(begin)));
      ASSERT_EQ(content(packed, 1 << 20, static_cast<int64_t>(text.size()) + 1).error().code(), ErrorCode::kOutOfRange);
    }
    const std::string text = "x" + random_content(random);
    ASSERT_EQ(content(text, 100).value(), text);
    ASSERT_EQ(content(text, 100, 1).value(), text.substr(1));
  }
  EXPECT_EQ(content("", 10).value(), "");
  EXPECT_EQ(content(gzip(""), 10).value(), "");
  EXPECT_EQ(content(zstd(""), 10).value(), "");
  EXPECT_EQ(content(gzip("padded") + std::string(512, '\0'), 10).value(), "padded");
  EXPECT_EQ(content("\x1F\x8B", 10).value(), "\x1F\x8B");
}

TEST(ByteStream, NeverPassesOverDamage) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE("MILLRACE_TEST_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < 400; ++round) {
    const std::string text = random_content(random) + "end";
    for (const auto pack : {gzip, zstd}) {
      const std::string packed = pack(text);
      const auto cut = content(packed.substr(0, 4 + random() % (packed.size() - 4)), 4096);
      ASSERT_FALSE(cut);
      ASSERT_EQ(cut.error().code(), ErrorCode::kCorruption);
      ASSERT_THAT(cut.error().to_string(), AllOf(HasSubstr("a.gz"), HasSubstr("cut at byte")));
      std::string flipped = packed;
      flipped[10 + random() % (packed.size() - 10)] ^= static_cast<char>(1 << random() % 8);
      const auto read = content(flipped, 4096);
      ASSERT_TRUE(!read || *read == text);
      ASSERT_EQ(content(packed + "x", 4096).error().code(), ErrorCode::kCorruption);
    }
  }
}

}  // namespace
}  // namespace millrace::formats
