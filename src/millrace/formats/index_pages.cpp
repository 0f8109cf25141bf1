// SPDX-License-Identifier: Apache-2.0
#include "millrace/formats/index_pages.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "millrace/formats/detail/index_layout.h"

namespace millrace::formats {
namespace {

constexpr int64_t kOpenPiece = 4 << 20;  // a whole number of pages of every column
constexpr std::array<IndexColumn, kIndexColumns> kColumnOrder{IndexColumn::kOffset, IndexColumn::kSize,
                                                              IndexColumn::kHash, IndexColumn::kTokens};

constexpr int64_t page_bytes(IndexColumn column) {
  return IndexPages::kPageSamples * index_value_bytes(column);
}

// `bytes` begin at the front of a page; only the last page may be shorter than the others.
void append_page_hashes(std::span<const std::byte> bytes, IndexColumn column, std::vector<uint64_t>& hashes) {
  const auto page = static_cast<size_t>(page_bytes(column));
  for (size_t at = 0; at < bytes.size(); at += page) {
    hashes.push_back(xxh3_64(bytes.subspan(at, std::min(page, bytes.size() - at))));
  }
}

template <class T>
std::span<const std::byte> take_values(std::span<const std::byte> bytes, int64_t count, std::vector<T>& values) {
  values.resize(static_cast<size_t>(count));
  if (count > 0) std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
  return bytes.subspan(values.size() * sizeof(T));
}

tl::unexpected<Error> changed_index(std::string_view source) {
  return fail(ErrorCode::kCorruption, "{}: not what it held when it was opened: changed while reading", source);
}

}  // namespace

// The one pass over the file.
struct IndexPages::Opening {
  const RandomReader& file;
  IndexPages& pages;
  std::span<const std::byte> whole;  // the file, where it was read at once
  Xxh3Stream hash;
  std::vector<std::byte> buffer;
  std::span<const std::byte> piece;  // the last one
  int64_t at = 0;

  // Reads and hashes up to `end`, and shows each piece.
  template <class Visit>
  [[nodiscard]] Status pass(int64_t end, const Visit& visit) {
    while (at < end) {
      const auto size = static_cast<size_t>(std::min(end - at, kOpenPiece));
      if (whole.empty()) {
        buffer.resize(size);
        RETURN_IF_ERROR(file.read_at(at, buffer));
        piece = buffer;
      } else {
        piece = whole.subspan(static_cast<size_t>(at), size);
      }
      hash.update(piece);
      at += static_cast<int64_t>(size);
      visit(piece);
    }
    return {};
  }

  void count_tokens(std::span<const std::byte> bytes) {
    for (size_t i = 0; i < bytes.size(); i += sizeof(uint32_t)) {
      uint32_t tokens = 0;
      std::memcpy(&tokens, bytes.data() + i, sizeof tokens);
      if (tokens == kUnknownTokens) pages.counted_ = false;
      pages.tokens_ += tokens;
    }
  }

  [[nodiscard]] Status run(const IndexHeader& header) {
    const auto unseen = [](std::span<const std::byte>) {};
    RETURN_IF_ERROR(pass(header.size, unseen));
    for (const IndexColumn column : kColumnOrder) {
      auto& hashes = pages.page_hashes_[static_cast<size_t>(column)];
      hashes.reserve(static_cast<size_t>(pages.pages()));
      pages.column_at_[static_cast<size_t>(column)] = at;
      RETURN_IF_ERROR(pass(at + header.samples * index_value_bytes(column), [&](std::span<const std::byte> bytes) {
        append_page_hashes(bytes, column, hashes);
        if (column == IndexColumn::kTokens) count_tokens(bytes);
      }));
    }
    RETURN_IF_ERROR(pass(header.checksum_at(), unseen));
    const Hash128 body = hash.digest();
    RETURN_IF_ERROR(pass(pages.file_size_, unseen));
    if (take_index_hash(piece) != body) return bad_index_checksum(file.name());
    pages.file_hash_ = hash.digest();
    return {};
  }
};

Result<IndexPages> IndexPages::open(const RandomReader& file) {
  const bool is_small = file.size() <= kOpenPiece;
  std::vector<std::byte> begin(is_small ? static_cast<size_t>(file.size()) : kIndexMaxHeader);
  RETURN_IF_ERROR(file.read_at(0, begin));
  return open(file, begin, is_small);
}

Result<IndexPages> IndexPages::open(std::span<const std::byte> file, std::string_view source) {
  return open(MemoryReader({}, std::string(source)), file, /*is_whole=*/true);
}

Result<IndexPages> IndexPages::open(const RandomReader& file, std::span<const std::byte> begin, bool is_whole) {
  const int64_t size = is_whole ? std::ssize(begin) : file.size();
  ASSIGN_OR_RETURN(IndexHeader header, parse_index_header(begin, size, file.name()));
  IndexPages pages;
  pages.samples_ = header.samples;
  pages.file_size_ = size;
  Opening opening{.file = file, .pages = pages};
  if (is_whole) opening.whole = begin;
  RETURN_IF_ERROR(opening.run(header));
  pages.facts_ = std::move(header.facts);
  return pages;
}

std::array<IndexPages::Range, 4> IndexPages::ranges(int64_t page) const {
  const int64_t first = page * kPageSamples;
  const int64_t count = std::min(kPageSamples, samples_ - first);
  std::array<Range, 4> found;
  for (const IndexColumn column : kColumnOrder) {
    const int64_t width = index_value_bytes(column);
    found[static_cast<size_t>(column)] = {column_at_[static_cast<size_t>(column)] + first * width, count * width};
  }
  return found;
}

Result<ShardRows> IndexPages::parse(int64_t page, std::span<const std::byte> bytes, std::string_view source) const {
  const int64_t count = std::min(kPageSamples, samples_ - page * kPageSamples);
  size_t at = 0;
  for (const IndexColumn column : kColumnOrder) {
    const auto size = static_cast<size_t>(count * index_value_bytes(column));
    if (xxh3_64(bytes.subspan(at, size)) != page_hashes_[static_cast<size_t>(column)][static_cast<size_t>(page)]) {
      return changed_index(source);
    }
    at += size;
  }
  ShardRows rows;
  bytes = take_values(bytes, count, rows.offset);
  bytes = take_values(bytes, count, rows.size);
  bytes = take_values(bytes, count, rows.hash);
  take_values(bytes, count, rows.tokens);
  return rows;
}

ShardRows IndexPages::take_page(int64_t page, std::span<const std::byte> file) const {
  const int64_t count = std::min(kPageSamples, samples_ - page * kPageSamples);
  const auto parts = ranges(page);
  const auto column = [&](IndexColumn of) {
    const Range& range = parts[static_cast<size_t>(of)];
    return file.subspan(static_cast<size_t>(range.offset), static_cast<size_t>(range.size));
  };
  ShardRows rows;
  take_values(column(IndexColumn::kOffset), count, rows.offset);
  take_values(column(IndexColumn::kSize), count, rows.size);
  take_values(column(IndexColumn::kHash), count, rows.hash);
  take_values(column(IndexColumn::kTokens), count, rows.tokens);
  return rows;
}

Status IndexPages::visit_rows(const RandomReader& file,
                              const std::function<Status(int64_t, const ShardRows&)>& visit) const {
  std::vector<std::byte> bytes;
  uint64_t end = 0;
  for (int64_t page = 0; page < pages(); ++page) {
    const auto parts = ranges(page);
    bytes.clear();
    for (const Range& range : parts) {
      const size_t at = bytes.size();
      bytes.resize(at + static_cast<size_t>(range.size));
      RETURN_IF_ERROR(file.read_at(range.offset, std::span(bytes).subspan(at)));
    }
    ASSIGN_OR_RETURN(const ShardRows rows, parse(page, bytes, file.name()));
    RETURN_IF_ERROR(check_rows(facts_, rows, page * kPageSamples, file.name(), end));
    end = rows.offset.back() + rows.size.back();
    RETURN_IF_ERROR(visit(page * kPageSamples, rows));
  }
  return {};
}

Status IndexPages::visit_tokens(const RandomReader& file,
                                const std::function<Status(std::span<const uint32_t>)>& visit) const {
  constexpr auto kColumn = static_cast<size_t>(IndexColumn::kTokens);
  constexpr int64_t kRun = kOpenPiece / static_cast<int64_t>(sizeof(uint32_t));
  std::vector<uint32_t> tokens;
  std::vector<uint64_t> hashes;
  for (int64_t first = 0; first < samples_; first += kRun) {
    tokens.resize(static_cast<size_t>(std::min(kRun, samples_ - first)));
    const auto bytes = std::as_writable_bytes(std::span(tokens));
    RETURN_IF_ERROR(file.read_at(column_at_[kColumn] + first * static_cast<int64_t>(sizeof(uint32_t)), bytes));
    hashes.clear();
    append_page_hashes(bytes, IndexColumn::kTokens, hashes);
    const auto expected = page_hashes_[kColumn].begin() + first / kPageSamples;
    if (!std::equal(hashes.begin(), hashes.end(), expected)) return changed_index(file.name());
    RETURN_IF_ERROR(visit(tokens));
  }
  return {};
}

Status check_shard(const RandomReader& shard, const IndexPages& pages, const RandomReader& index_file) {
  ShardCheck check(shard, pages.facts());
  RETURN_IF_ERROR(check.begin());
  RETURN_IF_ERROR(pages.visit_rows(index_file, [&](int64_t, const ShardRows& rows) { return check.add(rows); }));
  return check.finish();
}

}  // namespace millrace::formats
