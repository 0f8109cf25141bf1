// SPDX-License-Identifier: Apache-2.0
#include "millrace/formats/shard_index.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <cstring>
#include <numeric>

#include "millrace/formats/detail/raw_bytes.h"
#include "millrace/formats/npy.h"
#include "millrace/formats/tar.h"

namespace millrace::formats {
namespace {

static_assert(std::endian::native == std::endian::little, "columns are copied as they lie in the file");

// Layout version 1, as docs/format/shard_index.md draws it. The offsets of published versions never change.
constexpr std::string_view kIndexMagic = "MLRINDEX";
constexpr uint32_t kIndexVersion = 1;
constexpr size_t kFixedHeader = 80;
constexpr size_t kChecksumBytes = 16;
constexpr size_t kRowBytes = 28;
constexpr size_t kMaxProducer = 64 << 10;
constexpr size_t kMaxIdsField = 4096;

size_t aligned(size_t size) {
  return (size + 7) / 8 * 8;
}

template <class T>
void put_column(std::string& out, const std::vector<T>& column) {
  out.append(as_text(std::as_bytes(std::span(column))));
  out.resize(aligned(out.size()), '\0');
}

// The canonical form, most significant byte first: a dump of the file reads like xxhsum's output.
void put_hash(std::string& out, Hash128 hash) {
  for (const uint64_t half : {hash.high, hash.low}) {
    for (int shift = 56; shift >= 0; shift -= 8) out += static_cast<char>(half >> shift & 255);
  }
}

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
    std::array<uint64_t, 2> halves{};
    for (uint64_t& half : halves) {
      for (int i = 0; i < 8; ++i) half = half << 8 | take<uint8_t>();
    }
    return {halves[0], halves[1]};
  }
  std::string take_text(size_t size) {
    std::string text(as_text(rest_.first(size)));
    rest_ = rest_.subspan(size);
    return text;
  }
  template <class T>
  void take_column(std::vector<T>& column, size_t count) {
    column.resize(count);
    if (count != 0) std::memcpy(column.data(), rest_.data(), count * sizeof(T));
    rest_ = rest_.subspan(aligned(count * sizeof(T)));
  }

 private:
  std::span<const std::byte> rest_;
};

tl::unexpected<Error> bad_index(std::string_view source, std::string_view reason) {
  return fail(ErrorCode::kCorruption, "{}: {}", source, reason);
}

// Whether an extent has the size that its kind asks for.
bool whole_extent(const ShardIndex& index, size_t i) {
  const uint64_t offset = index.offset[i];
  const uint64_t size = index.size[i];
  if (index.kind == SampleExtentKind::kMembers)
    return (offset | size) % static_cast<uint64_t>(kTarBlock) == 0 && size != 0;
  return size == index.tokens[i] * (index.ids_field == "u16" ? sizeof(uint16_t) : sizeof(uint32_t));
}

Status check_extents(const ShardIndex& index, std::string_view source) {
  const auto shard_size = static_cast<uint64_t>(index.shard_size);
  uint64_t end = 0;
  for (size_t i = 0; i < index.offset.size(); ++i) {
    const uint64_t offset = index.offset[i];
    const uint64_t size = index.size[i];
    if (!whole_extent(index, i) || offset < end || offset > shard_size || size > shard_size - offset) {
      return fail(
          ErrorCode::kCorruption,
          "{}: sample {} is said to lie at [{}, {} + {}): not a whole sample, or over its neighbour, or outside "
          "the shard",
          source, i, offset, offset, size);
    }
    end = offset + size;
  }
  return {};
}

// Reads a shard front to back, hashes all of it, and hands out one extent after the other. What is before `begin` comes
// last.
class HashedShard {
 public:
  explicit HashedShard(const RandomReader& shard, int64_t begin = 0) : shard_(shard), begin_(begin), at_(begin) {}

  // Valid until the next call. REQUIRES: begin is not before the end of the extent before, end is inside the shard.
  Result<std::span<const std::byte>> extent(int64_t begin, int64_t end) {
    RETURN_IF_ERROR(pass(begin));
    RETURN_IF_ERROR(read(end - begin));
    return buffer_;
  }

  Result<Hash128> finish() {
    RETURN_IF_ERROR(pass(shard_.size()));
    at_ = 0;
    RETURN_IF_ERROR(pass(begin_));
    return hash_.digest();
  }

 private:
  static constexpr int64_t kPiece = 1 << 20;

  Status pass(int64_t end) {
    while (at_ < end) RETURN_IF_ERROR(read(std::min(end - at_, kPiece)));
    return {};
  }
  Status read(int64_t size) {
    buffer_.resize(static_cast<size_t>(size));
    RETURN_IF_ERROR(shard_.read_at(at_, buffer_));
    hash_.update(buffer_);
    at_ += size;
    return {};
  }

  const RandomReader& shard_;
  const int64_t begin_;
  std::vector<std::byte> buffer_;
  Xxh3Stream hash_;
  int64_t at_;
};

// Where an extent lies, for messages.
struct ExtentPlace {
  std::string_view source;
  int64_t sample;
  int64_t offset;
};

tl::unexpected<Error> bad_sample(const ExtentPlace& place, std::string_view reason) {
  return fail(ErrorCode::kCorruption, "{}: sample {} at offset {}: {}", place.source, place.sample, place.offset,
              reason);
}

// Walks the members of an extent: their common key, and the data of `ids_field` when there is such a field.
struct SampleContent {
  std::string key;
  std::optional<std::span<const std::byte>> ids;
};
Result<SampleContent> walk_sample(std::span<const std::byte> extent, std::string_view ids_field,
                                  const ExtentPlace& place) {
  SampleContent content;
  std::string long_name;
  for (size_t at = 0; at < extent.size();) {
    ASSIGN_OR_RETURN(const TarView view, next_tar_view(extent, at, long_name, place.source, place.offset));
    const auto name = split_sample_name(view.name);
    if (!name) continue;
    if (!content.key.empty() && content.key != name->key) return bad_sample(place, "the extent holds two samples");
    content.key = name->key;
    if (!ids_field.empty() && name->field == ids_field) content.ids = view.data;
  }
  if (content.key.empty()) return bad_sample(place, "the extent holds no sample");
  return content;
}

Result<std::string> choose_ids_field(const std::vector<std::string>& fields, std::string_view wanted,
                                     std::string_view source) {
  const auto has = [&](std::string_view field) {
    return std::find(fields.begin(), fields.end(), field) != fields.end();
  };
  if (wanted.empty()) {
    for (const char* field :
         {"token_ids.npy", "token_ids.json", "token_ids.u16", "token_ids.u32", "input_ids.npy", "input_ids.json"}) {
      if (has(field)) return std::string(field);
    }
    return std::string();
  }
  if (has(wanted)) return std::string(wanted);
  return fail(ErrorCode::kInvalidArgument, "{}: its samples have no field {}; they have {}", source, wanted,
              fmt::join(fields, " "));
}

Result<uint32_t> count_ids(std::span<const std::byte> data, std::string_view field, std::vector<uint32_t>& ids,
                           std::string_view source) {
  ids.clear();
  RETURN_IF_ERROR(parse_ids(field, data, ids, source));
  if (ids.size() >= kUnknownTokens)
    return fail(ErrorCode::kUnsupported, "{}: {} ids in one sample", source, ids.size());
  return static_cast<uint32_t>(ids.size());
}

}  // namespace

int64_t ShardIndex::total_tokens() const {
  return tokens_known() ? std::accumulate(tokens.begin(), tokens.end(), int64_t{0}) : 0;
}

bool ShardIndex::tokens_known() const {
  return !ids_field.empty() && std::find(tokens.begin(), tokens.end(), kUnknownTokens) == tokens.end();
}

std::string serialize_shard_index(const ShardIndex& index) {
  assert(index.size.size() == index.offset.size() && index.tokens.size() == index.offset.size() &&
         index.hash.size() == index.offset.size() && index.producer.size() <= kMaxProducer &&
         index.ids_field.size() <= kMaxIdsField);
  const size_t header = aligned(kFixedHeader + index.ids_field.size() + index.producer.size());
  std::string out;
  out.reserve(header + aligned(index.offset.size() * kRowBytes) + kChecksumBytes);
  out.append(kIndexMagic);
  put(out, kIndexVersion);
  put(out, static_cast<uint32_t>(header));
  put(out, static_cast<uint64_t>(index.shard_size));
  put(out, static_cast<uint64_t>(index.samples()));
  put_hash(out, index.shard_hash);
  put_hash(out, index.tokenizer_hash);
  put(out, static_cast<uint32_t>(index.ids_field.size()));
  put(out, static_cast<uint32_t>(index.producer.size()));
  put(out, static_cast<uint32_t>(index.kind));
  put(out, uint32_t{0});
  out.append(index.ids_field).append(index.producer);
  out.resize(header, '\0');
  put_column(out, index.offset);
  put_column(out, index.size);
  put_column(out, index.hash);
  put_column(out, index.tokens);
  put_hash(out, xxh3_128(out));
  return out;
}

Result<ShardIndex> parse_shard_index(std::span<const std::byte> file, std::string_view source) {
  if (file.size() < kFixedHeader + kChecksumBytes || !as_text(file).starts_with(kIndexMagic)) {
    return bad_index(source, "not a shard index, or cut in its header");
  }
  IndexCursor cursor(file.subspan(kIndexMagic.size()));
  if (const auto version = cursor.take<uint32_t>(); version != kIndexVersion) {
    return fail(ErrorCode::kUnsupported, "{}: shard index version {}; this build reads version {}", source, version,
                kIndexVersion);
  }
  const size_t body = file.size() - kChecksumBytes;
  if (IndexCursor(file.subspan(body)).take_hash() != xxh3_128(file.first(body))) {
    return bad_index(source, "the shard index does not have the checksum it states: cut or damaged");
  }
  // Behind the checksum only a defective writer can be wrong; what follows keeps such a file from being read out of
  // bounds.
  ShardIndex index;
  const size_t header = cursor.take<uint32_t>();
  index.shard_size = static_cast<int64_t>(cursor.take<uint64_t>());
  const auto samples = cursor.take<uint64_t>();
  index.shard_hash = cursor.take_hash();
  index.tokenizer_hash = cursor.take_hash();
  const size_t ids_field = cursor.take<uint32_t>();
  const size_t producer = cursor.take<uint32_t>();
  const auto kind = cursor.take<uint32_t>();
  const auto reserved = cursor.take<uint32_t>();
  if (index.shard_size < 0 || kind > static_cast<uint32_t>(SampleExtentKind::kIds) || reserved != 0 ||
      ids_field > kMaxIdsField || producer > kMaxProducer || header != aligned(kFixedHeader + ids_field + producer) ||
      header > body || samples > body / kRowBytes || header + aligned(samples * kRowBytes) != body) {
    return bad_index(source, "the shard index states sizes that do not fit together");
  }
  index.kind = static_cast<SampleExtentKind>(kind);
  index.ids_field = cursor.take_text(ids_field);
  index.producer = cursor.take_text(producer);
  cursor.take_text(header - kFixedHeader - ids_field - producer);
  cursor.take_column(index.offset, samples);
  cursor.take_column(index.size, samples);
  cursor.take_column(index.hash, samples);
  cursor.take_column(index.tokens, samples);
  if (index.kind == SampleExtentKind::kIds && index.ids_field != "u16" && index.ids_field != "u32") {
    return bad_index(source, "the samples are ids, and not said to be u16 or u32");
  }
  RETURN_IF_ERROR(check_extents(index, source));
  return index;
}

Result<ShardIndex> index_shard(const RandomReader& shard, std::string_view ids_field) {
  if (!ids_field.empty() && !ids_coding(ids_field)) {
    return fail(ErrorCode::kInvalidArgument, "ids are read from .npy, .json, .u16 and .u32 fields, not from {}",
                ids_field);
  }
  ShardIndex index;
  index.shard_size = shard.size();
  index.ids_field = ids_field;
  SampleReader samples(shard);
  HashedShard bytes(shard);
  std::vector<uint32_t> ids;
  for (;;) {
    ASSIGN_OR_RETURN(const std::optional<SampleExtent> sample, samples.next());
    if (!sample) break;
    if (index.samples() == 0) {
      ASSIGN_OR_RETURN(index.ids_field, choose_ids_field(sample->fields, ids_field, shard.name()));
    }
    ASSIGN_OR_RETURN(const auto extent, bytes.extent(sample->begin, sample->end));
    const ExtentPlace place{shard.name(), index.samples(), sample->begin};
    ASSIGN_OR_RETURN(const SampleContent content, walk_sample(extent, index.ids_field, place));
    uint32_t tokens = kUnknownTokens;
    if (content.ids) {
      const auto source =
          fmt::format("{}: sample {} at offset {}: {}", place.source, place.sample, place.offset, index.ids_field);
      ASSIGN_OR_RETURN(tokens, count_ids(*content.ids, index.ids_field, ids, source));
    }
    index.offset.push_back(static_cast<uint64_t>(sample->begin));
    index.size.push_back(extent.size());
    index.hash.push_back(xxh3_64(extent));
    index.tokens.push_back(tokens);
  }
  ASSIGN_OR_RETURN(index.shard_hash, bytes.finish());
  return index;
}

Status check_shard(const RandomReader& shard, const ShardIndex& index) {
  if (shard.size() != index.shard_size) {
    return fail(ErrorCode::kCorruption, "{}: {} bytes, and its index says {}: cut, or another shard", shard.name(),
                shard.size(), index.shard_size);
  }
  RETURN_IF_ERROR(check_extents(index, shard.name()));
  const bool members = index.kind == SampleExtentKind::kMembers;
  HashedShard bytes(shard, members || index.offset.empty() ? 0 : static_cast<int64_t>(index.offset[0]));
  std::string last_key;
  for (size_t i = 0; i < index.offset.size(); ++i) {
    const auto begin = static_cast<int64_t>(index.offset[i]);
    const ExtentPlace place{shard.name(), static_cast<int64_t>(i), begin};
    ASSIGN_OR_RETURN(const auto extent, bytes.extent(begin, begin + static_cast<int64_t>(index.size[i])));
    if (xxh3_64(extent) != index.hash[i]) return bad_sample(place, "its bytes do not have the hash in the index");
    if (!members) continue;
    ASSIGN_OR_RETURN(SampleContent content, walk_sample(extent, {}, place));
    if (content.key == last_key) return bad_sample(place, "it is a part of the sample before");
    last_key = std::move(content.key);
  }
  ASSIGN_OR_RETURN(const Hash128 hash, bytes.finish());
  if (hash != index.shard_hash) {
    return fail(ErrorCode::kCorruption, "{}: damaged outside its samples: its bytes do not have the hash in the index",
                shard.name());
  }
  return {};
}

}  // namespace millrace::formats
