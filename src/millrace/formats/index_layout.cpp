// SPDX-License-Identifier: Apache-2.0
#include "millrace/formats/detail/index_layout.h"

#include <array>
#include <bit>
#include <cassert>
#include <cstring>

#include "millrace/formats/detail/raw_bytes.h"

namespace millrace::formats {
namespace {

static_assert(std::endian::native == std::endian::little, "columns are copied as they lie in the file");

// Layout version 1, as docs/format/shard_index.md draws it. The offsets of published versions never change.
constexpr std::string_view kIndexMagic = "MLRINDEX";
constexpr uint32_t kIndexVersion = 1;
constexpr size_t kMaxProducer = 64 << 10;
constexpr size_t kMaxIdsField = 4096;

// Takes fields off the front of bytes whose size was checked before.
class IndexCursor {
 public:
  explicit IndexCursor(std::span<const std::byte> bytes) : rest_(bytes) {}

  template <class T>
  T take() {
    T value;
    std::memcpy(&value, rest_.data(), sizeof(T));
    rest_ = rest_.subspan(sizeof(T));
    return value;
  }
  Hash128 take_hash() {
    const Hash128 hash = take_index_hash(rest_.first(kIndexChecksumBytes));
    rest_ = rest_.subspan(kIndexChecksumBytes);
    return hash;
  }
  std::string take_text(size_t size) {
    std::string text(as_text(rest_.first(size)));
    rest_ = rest_.subspan(size);
    return text;
  }

 private:
  std::span<const std::byte> rest_;
};

tl::unexpected<Error> bad_index(std::string_view source, std::string_view reason) {
  return fail(ErrorCode::kCorruption, "{}: {}", source, reason);
}

}  // namespace

void put_index_hash(std::string& out, Hash128 hash) {
  for (const uint64_t half : {hash.high, hash.low}) {
    for (int shift = 56; shift >= 0; shift -= 8) out += static_cast<char>(half >> shift & 255);
  }
}

Hash128 take_index_hash(std::span<const std::byte> bytes) {
  std::array<uint64_t, 2> halves{};
  for (size_t i = 0; i < kIndexChecksumBytes; ++i) halves[i / 8] = halves[i / 8] << 8 | static_cast<uint64_t>(bytes[i]);
  return {halves[0], halves[1]};
}

tl::unexpected<Error> bad_index_checksum(std::string_view source) {
  return bad_index(source, "the shard index does not have the checksum it states: cut or damaged");
}

std::string index_header(const ShardFacts& facts, int64_t samples) {
  assert(facts.producer.size() <= kMaxProducer && facts.ids_field.size() <= kMaxIdsField);
  const size_t size = aligned_to_8(kIndexFixedHeader + facts.ids_field.size() + facts.producer.size());
  std::string out;
  out.reserve(size);
  out.append(kIndexMagic);
  put(out, kIndexVersion);
  put(out, static_cast<uint32_t>(size));
  put(out, static_cast<uint64_t>(facts.shard_size));
  put(out, static_cast<uint64_t>(samples));
  put_index_hash(out, facts.shard_hash);
  put_index_hash(out, facts.tokenizer_hash);
  put(out, static_cast<uint32_t>(facts.ids_field.size()));
  put(out, static_cast<uint32_t>(facts.producer.size()));
  put(out, static_cast<uint32_t>(facts.kind));
  put(out, uint32_t{0});
  out.append(facts.ids_field).append(facts.producer);
  out.resize(size, '\0');
  return out;
}

Result<IndexHeader> parse_index_header(std::span<const std::byte> begin, int64_t file_size, std::string_view source) {
  if (begin.size() < kIndexFixedHeader + kIndexChecksumBytes || !as_text(begin).starts_with(kIndexMagic)) {
    return bad_index(source, "not a shard index, or cut in its header");
  }
  IndexCursor cursor(begin.subspan(kIndexMagic.size()));
  if (const auto version = cursor.take<uint32_t>(); version != kIndexVersion) {
    return fail(ErrorCode::kUnsupported,
                "{}: shard index version {}; this build reads version {}, and a newer Millrace reads it", source,
                version, kIndexVersion);
  }
  IndexHeader header;
  header.size = cursor.take<uint32_t>();
  header.facts.shard_size = static_cast<int64_t>(cursor.take<uint64_t>());
  const auto samples = cursor.take<uint64_t>();
  header.facts.shard_hash = cursor.take_hash();
  header.facts.tokenizer_hash = cursor.take_hash();
  const size_t ids_field = cursor.take<uint32_t>();
  const size_t producer = cursor.take<uint32_t>();
  const auto kind = cursor.take<uint32_t>();
  const auto reserved = cursor.take<uint32_t>();
  const auto size = static_cast<uint64_t>(header.size);
  const auto body = static_cast<uint64_t>(file_size) - kIndexChecksumBytes;
  if (header.facts.shard_size < 0 || kind > static_cast<uint32_t>(SampleExtentKind::kIds) || reserved != 0 ||
      ids_field > kMaxIdsField || producer > kMaxProducer ||
      size != aligned_to_8(kIndexFixedHeader + ids_field + producer) || size > begin.size() || size > body ||
      samples > body / kIndexRowBytes || size + aligned_to_8(samples * kIndexRowBytes) != body) {
    return bad_index(source, "the shard index states sizes that do not fit together: cut or damaged");
  }
  header.samples = static_cast<int64_t>(samples);
  header.facts.kind = static_cast<SampleExtentKind>(kind);
  header.facts.ids_field = cursor.take_text(ids_field);
  header.facts.producer = cursor.take_text(producer);
  if (header.facts.kind == SampleExtentKind::kIds && header.facts.ids_field != "u16" &&
      header.facts.ids_field != "u32") {
    return bad_index(source, "the samples are ids, and not said to be u16 or u32");
  }
  return header;
}

}  // namespace millrace::formats
