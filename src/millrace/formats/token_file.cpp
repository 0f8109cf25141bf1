// SPDX-License-Identifier: Apache-2.0
#include "millrace/formats/token_file.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <span>
#include <vector>

#include "millrace/formats/detail/hashed_shard.h"

namespace millrace::formats {

static_assert(std::endian::native == std::endian::little, "numbers are copied as they lie in the file");

namespace {

// llm.c's magic number and version for ids of each width, and the id that its scripts put before each document.
struct TokenFileKind {
  int32_t magic;
  int32_t version;
  size_t width;
  uint32_t document_start;
};
constexpr std::array<TokenFileKind, 2> kTokenFileKinds{{{20240520, 1, 2, 50256}, {20240801, 7, 4, 128000}}};

const TokenFileKind* kind_of_magic(int32_t magic) {
  const auto* const kind = std::ranges::find(kTokenFileKinds, magic, &TokenFileKind::magic);
  return kind == kTokenFileKinds.end() ? nullptr : kind;
}

using TokenFileFields = std::array<int32_t, 3>;  // magic number, version, how many ids

Result<TokenFileFields> read_fields(const RandomReader& file) {
  TokenFileFields fields{};
  if (file.size() >= static_cast<int64_t>(kTokenFileHead)) {
    RETURN_IF_ERROR(file.read_at(0, std::as_writable_bytes(std::span(fields))));
  }
  return fields;
}

Status check_head(const RandomReader& file, const TokenFileFields& fields, const TokenFileKind& kind) {
  const auto [magic, version, tokens] = fields;
  if (version != kind.version) {
    return fail(ErrorCode::kCorruption, "{}: version {} of a token file with the magic number {}, which has {}",
                file.name(), version, magic, kind.version);
  }
  const int64_t ids_bytes = file.size() - static_cast<int64_t>(kTokenFileHead);
  if (tokens >= 0 && ids_bytes == int64_t{tokens} * static_cast<int64_t>(kind.width)) return {};
  return fail(ErrorCode::kCorruption, "{}: its head counts {} ids of {} bytes, and {} bytes follow: cut, or changed",
              file.name(), tokens, kind.width, ids_bytes);
}

// Where documents begin, in ids: 0 and each place of `start`.
template <class Id>
Result<std::vector<int64_t>> document_starts(const RandomReader& file, int64_t tokens, uint32_t start) {
  constexpr int64_t kPiece = 1 << 20;
  std::vector<int64_t> starts;
  if (tokens > 0) starts.push_back(0);
  bool is_found = false;
  std::vector<Id> ids;
  for (int64_t at = 0; at < tokens; at += kPiece) {
    ids.resize(static_cast<size_t>(std::min(kPiece, tokens - at)));
    const int64_t offset = static_cast<int64_t>(kTokenFileHead) + at * static_cast<int64_t>(sizeof(Id));
    RETURN_IF_ERROR(file.read_at(offset, std::as_writable_bytes(std::span(ids))));
    for (size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] != start) continue;
      is_found = true;
      if (const int64_t place = at + static_cast<int64_t>(i); place > 0) starts.push_back(place);
    }
  }
  if (is_found || tokens == 0) return starts;
  return fail(ErrorCode::kInvalidArgument,
              "{}: no document begins with the id {}: name the id that stands before each document (--document-start)",
              file.name(), start);
}

}  // namespace

std::string token_file_head(int64_t tokens, size_t width) {
  const TokenFileKind& kind = *std::ranges::find(kTokenFileKinds, width, &TokenFileKind::width);
  const TokenFileFields fields{kind.magic, kind.version, static_cast<int32_t>(tokens)};
  std::string head(kTokenFileHead, '\0');
  std::memcpy(head.data(), fields.data(), sizeof(fields));
  return head;
}

Result<bool> is_token_file(const RandomReader& file) {
  ASSIGN_OR_RETURN(const TokenFileFields fields, read_fields(file));
  return kind_of_magic(fields[0]) != nullptr;
}

Result<ShardIndex> index_token_file(const RandomReader& shard, std::optional<uint32_t> document_start) {
  ASSIGN_OR_RETURN(const TokenFileFields fields, read_fields(shard));
  const TokenFileKind* const kind = kind_of_magic(fields[0]);
  if (kind == nullptr) return fail(ErrorCode::kCorruption, "{}: it does not begin as a token file", shard.name());
  RETURN_IF_ERROR(check_head(shard, fields, *kind));
  const int64_t tokens = fields[2];
  const uint32_t start = document_start.value_or(kind->document_start);
  ASSIGN_OR_RETURN(std::vector<int64_t> bounds, kind->width == sizeof(uint16_t)
                                                    ? document_starts<uint16_t>(shard, tokens, start)
                                                    : document_starts<uint32_t>(shard, tokens, start));
  const auto documents = bounds.size();
  bounds.push_back(tokens);
  ShardIndex index;
  index.kind = SampleExtentKind::kIds;
  index.shard_size = shard.size();
  index.ids_field = kind->width == sizeof(uint16_t) ? "u16" : "u32";
  detail::HashedShard content(shard, static_cast<int64_t>(kTokenFileHead));
  const auto offset_of = [&](int64_t id) {
    return static_cast<int64_t>(kTokenFileHead) + id * static_cast<int64_t>(kind->width);
  };
  for (size_t i = 0; i < documents; ++i) {
    const int64_t begin = offset_of(bounds[i]), end = offset_of(bounds[i + 1]);
    ASSIGN_OR_RETURN(const auto extent, content.extent(begin, end));
    index.offset.push_back(static_cast<uint64_t>(begin));
    index.size.push_back(static_cast<uint64_t>(end - begin));
    index.tokens.push_back(static_cast<uint32_t>(bounds[i + 1] - bounds[i]));
    index.hash.push_back(xxh3_64(extent));
  }
  ASSIGN_OR_RETURN(index.shard_hash, content.finish());
  return index;
}

}  // namespace millrace::formats
