// SPDX-License-Identifier: Apache-2.0
#include "millrace/formats/shard_index.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstring>
#include <numeric>

#include "millrace/formats/detail/hashed_shard.h"
#include "millrace/formats/detail/index_layout.h"
#include "millrace/formats/detail/raw_bytes.h"
#include "millrace/formats/npy.h"
#include "millrace/formats/sound_part.h"
#include "millrace/formats/tar.h"

namespace millrace::formats {

namespace {

using detail::HashedShard;

static_assert(std::endian::native == std::endian::little, "columns are copied as they lie in the file");

template <class T>
void put_column(std::string& out, const std::vector<T>& column) {
  out.append(as_text(std::as_bytes(std::span(column))));
  out.resize(aligned_to_8(out.size()), '\0');
}

// Whether an extent has the size that its kind asks for.
bool whole_extent(const ShardFacts& facts, const ShardRows& rows, size_t i) {
  const uint64_t offset = rows.offset[i];
  const uint64_t size = rows.size[i];
  if (facts.kind == SampleExtentKind::kMembers)
    return (offset | size) % static_cast<uint64_t>(kTarBlock) == 0 && size != 0;
  return size == rows.tokens[i] * (facts.ids_field == "u16" ? sizeof(uint16_t) : sizeof(uint32_t));
}

// The place of an extent, for messages.
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
    if (!view.is_regular) continue;
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
         index.hash.size() == index.offset.size());
  std::string out = index_header(index, index.samples());
  out.reserve(out.size() + aligned_to_8(index.offset.size() * kIndexRowBytes) + kIndexChecksumBytes);
  put_column(out, index.offset);
  put_column(out, index.size);
  put_column(out, index.hash);
  put_column(out, index.tokens);
  put_index_hash(out, xxh3_128(out));
  return out;
}

int64_t shard_index_bytes(int64_t samples) {
  const size_t rows = aligned_to_8(static_cast<size_t>(samples) * kIndexRowBytes);
  return static_cast<int64_t>(kIndexFixedHeader + rows + kIndexChecksumBytes);
}

Result<Hash128> write_shard_index(
    ByteSink& out, const ShardFacts& facts, int64_t samples,
    const std::function<Status(IndexColumn column, const VisitValues& visit)>& visit_column) {
  Xxh3Stream hash;
  size_t size = 0;
  const auto append = [&](std::span<const std::byte> bytes) {
    hash.update(bytes);
    size += bytes.size();
    return out.append(bytes);
  };
  RETURN_IF_ERROR(append(as_bytes(index_header(facts, samples))));
  for (const IndexColumn column :
       {IndexColumn::kOffset, IndexColumn::kSize, IndexColumn::kHash, IndexColumn::kTokens}) {
    RETURN_IF_ERROR(visit_column(column, append));
  }
  RETURN_IF_ERROR(append(as_bytes(std::string(aligned_to_8(size) - size, '\0'))));
  std::string checksum;
  put_index_hash(checksum, hash.digest());
  RETURN_IF_ERROR(append(as_bytes(checksum)));
  return hash.digest();
}

Result<ShardIndex> parse_shard_index(std::span<const std::byte> file, std::string_view source) {
  ASSIGN_OR_RETURN(IndexHeader header, parse_index_header(file, static_cast<int64_t>(file.size()), source));
  const size_t body = file.size() - kIndexChecksumBytes;
  if (take_index_hash(file.subspan(body)) != xxh3_128(file.first(body))) return bad_index_checksum(source);
  ShardIndex index;
  static_cast<ShardFacts&>(index) = std::move(header.facts);
  const auto take_column = [&](IndexColumn column, auto& values) {
    values.resize(static_cast<size_t>(header.samples));
    if (values.empty()) return;
    std::memcpy(values.data(), file.data() + header.column_at(column), values.size() * sizeof values[0]);
  };
  take_column(IndexColumn::kOffset, index.offset);
  take_column(IndexColumn::kSize, index.size);
  take_column(IndexColumn::kHash, index.hash);
  take_column(IndexColumn::kTokens, index.tokens);
  RETURN_IF_ERROR(check_rows(index, index, 0, source));
  return index;
}

Status check_rows(const ShardFacts& facts, const ShardRows& rows, int64_t first, std::string_view source,
                  uint64_t end) {
  const auto shard_size = static_cast<uint64_t>(facts.shard_size);
  for (size_t i = 0; i < rows.offset.size(); ++i) {
    const uint64_t offset = rows.offset[i];
    const uint64_t size = rows.size[i];
    if (!whole_extent(facts, rows, i) || offset < end || offset > shard_size || size > shard_size - offset) {
      return fail(
          ErrorCode::kCorruption,
          "{}: sample {} is said to lie at [{}, {} + {}): not a whole sample, or over its neighbour, or outside "
          "the shard",
          source, first + static_cast<int64_t>(i), offset, offset, size);
    }
    end = offset + size;
  }
  return {};
}

namespace {

void add_row(const SampleExtent& sample, std::span<const std::byte> extent, uint32_t tokens, ShardIndex& index) {
  index.offset.push_back(static_cast<uint64_t>(sample.begin));
  index.size.push_back(extent.size());
  index.hash.push_back(xxh3_64(extent));
  index.tokens.push_back(tokens);
}

// Adds the samples one after the other; behind an error those before it are there.
Status add_any_samples(const RandomReader& shard, HashedShard& bytes, ShardIndex& index, TarSkipped* skipped) {
  SampleReader samples(shard, FieldSets::kAny);
  for (;;) {
    ASSIGN_OR_RETURN(const std::optional<SampleExtent> sample, samples.next());
    if (skipped != nullptr && !sample) *skipped = samples.skipped();
    if (!sample) return {};
    ASSIGN_OR_RETURN(const auto extent, bytes.extent(sample->begin, sample->end));
    add_row(*sample, extent, kUnknownTokens, index);
  }
}

// The same, with their ids counted in the field that `index` names, or in one that is found.
Status add_samples(const RandomReader& shard, HashedShard& bytes, ShardIndex& index, TarSkipped* skipped) {
  const std::string asked_field = index.ids_field;
  SampleReader samples(shard);
  std::vector<uint32_t> ids;
  for (;;) {
    ASSIGN_OR_RETURN(const std::optional<SampleExtent> sample, samples.next());
    if (skipped != nullptr && !sample) *skipped = samples.skipped();
    if (!sample) return {};
    if (index.samples() == 0) {
      ASSIGN_OR_RETURN(index.ids_field, choose_ids_field(sample->fields, asked_field, shard.name()));
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
    add_row(*sample, extent, tokens, index);
  }
}

// An index without samples. Errors: invalid_argument (a field that holds no ids).
Result<ShardIndex> begin_index(const RandomReader& shard, std::string_view asked_field) {
  ShardIndex index;
  index.shard_size = shard.size();
  index.ids_field = field_name(asked_field);
  if (index.ids_field.empty() || ids_coding(index.ids_field)) return index;
  return fail(ErrorCode::kInvalidArgument, "ids are read from .npy, .json, .u16 and .u32 fields, not from {}",
              index.ids_field);
}

}  // namespace

Result<ShardIndex> index_any_shard(const RandomReader& shard, TarSkipped* skipped) {
  ASSIGN_OR_RETURN(ShardIndex index, begin_index(shard, {}));
  HashedShard bytes(shard);
  RETURN_IF_ERROR(add_any_samples(shard, bytes, index, skipped));
  ASSIGN_OR_RETURN(index.shard_hash, bytes.finish());
  return index;
}

Result<ShardIndex> index_shard(const RandomReader& shard, std::string_view asked_field, TarSkipped* skipped) {
  ASSIGN_OR_RETURN(ShardIndex index, begin_index(shard, asked_field));
  HashedShard bytes(shard);
  RETURN_IF_ERROR(add_samples(shard, bytes, index, skipped));
  ASSIGN_OR_RETURN(index.shard_hash, bytes.finish());
  return index;
}

Result<SoundPart> index_sound_part(const RandomReader& shard, bool counts_ids, std::string_view asked_field) {
  SoundPart part;
  ASSIGN_OR_RETURN(part.index, begin_index(shard, counts_ids ? asked_field : std::string_view()));
  HashedShard bytes(shard);
  const Status added = counts_ids ? add_samples(shard, bytes, part.index, &part.skipped)
                                  : add_any_samples(shard, bytes, part.index, &part.skipped);
  if (!added && added.error().code() != ErrorCode::kCorruption) return tl::unexpected(added.error());
  if (!added) part.damage = added.error();
  ASSIGN_OR_RETURN(part.index.shard_hash, bytes.finish());
  return part;
}

struct ShardCheck::Impl {
  const RandomReader& shard;
  const ShardFacts& facts;
  std::optional<detail::HashedShard> bytes;
  int64_t samples = 0;
  std::string last_key;

  // Beginning where the hash of the shard does.
  HashedShard& open(int64_t first_offset) {
    if (!bytes) bytes.emplace(shard, facts.kind == SampleExtentKind::kMembers ? 0 : first_offset);
    return *bytes;
  }

  Status add_sample(int64_t begin, int64_t size, uint64_t hash) {
    const ExtentPlace place{shard.name(), samples++, begin};
    ASSIGN_OR_RETURN(const auto extent, open(begin).extent(begin, begin + size));
    if (xxh3_64(extent) != hash) return bad_sample(place, "its bytes do not have the hash in the index");
    if (facts.kind != SampleExtentKind::kMembers) return {};
    ASSIGN_OR_RETURN(SampleContent content, walk_sample(extent, {}, place));
    if (content.key == last_key) return bad_sample(place, "it is a part of the sample before");
    last_key = std::move(content.key);
    return {};
  }
};

ShardCheck::ShardCheck(const RandomReader& shard, const ShardFacts& facts)
    : impl_(new Impl{.shard = shard, .facts = facts}) {}
ShardCheck::~ShardCheck() = default;

Status ShardCheck::begin() {
  const RandomReader& shard = impl_->shard;
  const ShardFacts& facts = impl_->facts;
  if (shard.size() == facts.shard_size) return {};
  return fail(ErrorCode::kCorruption, "{}: {} bytes, and its index says {}: cut, or another shard", shard.name(),
              shard.size(), facts.shard_size);
}

Status ShardCheck::add(const ShardRows& rows) {
  for (size_t i = 0; i < rows.offset.size(); ++i) {
    RETURN_IF_ERROR(
        impl_->add_sample(static_cast<int64_t>(rows.offset[i]), static_cast<int64_t>(rows.size[i]), rows.hash[i]));
  }
  return {};
}

Status ShardCheck::finish() {
  ASSIGN_OR_RETURN(const Hash128 hash, impl_->open(0).finish());
  if (hash == impl_->facts.shard_hash) return {};
  return fail(ErrorCode::kCorruption, "{}: damaged outside its samples: its bytes do not have the hash in the index",
              impl_->shard.name());
}

Status check_shard(const RandomReader& shard, const ShardIndex& index) {
  ShardCheck check(shard, index);
  RETURN_IF_ERROR(check.begin());
  RETURN_IF_ERROR(check_rows(index, index, 0, shard.name()));
  RETURN_IF_ERROR(check.add(index));
  return check.finish();
}

}  // namespace millrace::formats
