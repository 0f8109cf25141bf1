// SPDX-License-Identifier: Apache-2.0
#include "millrace/prepare/detail/row_spool.h"

#include <fmt/format.h>

#include <array>
#include <vector>

namespace millrace::prepare {

namespace {

using formats::IndexColumn;

constexpr std::array<IndexColumn, formats::kIndexColumns> kColumns{IndexColumn::kOffset, IndexColumn::kSize,
                                                                   IndexColumn::kHash, IndexColumn::kTokens};

std::span<const std::byte> column_of(const formats::ShardRows& rows, IndexColumn column) {
  switch (column) {
    case IndexColumn::kOffset:
      return std::as_bytes(std::span(rows.offset));
    case IndexColumn::kSize:
      return std::as_bytes(std::span(rows.size));
    case IndexColumn::kHash:
      return std::as_bytes(std::span(rows.hash));
    case IndexColumn::kTokens:
      break;
  }
  return std::as_bytes(std::span(rows.tokens));
}

}  // namespace

Status RowSpool::add(uint64_t offset, uint64_t size, uint32_t tokens, uint64_t hash) {
  if (samples() == 0) first_offset_ = offset;
  if (rows_.samples() == kRunSamples) RETURN_IF_ERROR(spool());
  rows_.offset.push_back(offset);
  rows_.size.push_back(size);
  rows_.tokens.push_back(tokens);
  rows_.hash.push_back(hash);
  tokens_ += tokens;
  return {};
}

Status RowSpool::spool() {
  if (!file_) {
    ASSIGN_OR_RETURN(
        file_, UnnamedFile::create(fmt::format("{} bytes for each document of a shard", formats::kIndexRowBytes)));
  }
  int64_t at = spooled_ * static_cast<int64_t>(formats::kIndexRowBytes);
  for (const IndexColumn column : kColumns) {
    const auto bytes = column_of(rows_, column);
    RETURN_IF_ERROR(file_->write_at(at, bytes));
    at += static_cast<int64_t>(bytes.size());
  }
  spooled_ += rows_.samples();
  rows_.offset.clear();
  rows_.size.clear();
  rows_.tokens.clear();
  rows_.hash.clear();
  return {};
}

Status RowSpool::visit(IndexColumn column, const Visit& visit) const {
  std::vector<std::byte> run(static_cast<size_t>(spooled_ > 0 ? kRunSamples * formats::index_value_bytes(column) : 0));
  const int64_t within = static_cast<int64_t>(column) * kRunSamples * static_cast<int64_t>(sizeof(uint64_t));
  for (int64_t first = 0; first < spooled_; first += kRunSamples) {
    const int64_t at = first * static_cast<int64_t>(formats::kIndexRowBytes) + within;
    RETURN_IF_ERROR(file_->read_at(at, run));
    RETURN_IF_ERROR(visit(run));
  }
  const auto rest = column_of(rows_, column);
  return rest.empty() ? Status() : visit(rest);
}

Status RowSpool::visit_tokens(const std::function<Status(std::span<const uint32_t>)>& visit) const {
  return this->visit(IndexColumn::kTokens, [&](std::span<const std::byte> values) {
    // SAFETY: the bytes are those of uint32_t values, in memory that operator new aligned for any type.
    return visit({reinterpret_cast<const uint32_t*>(values.data()), values.size() / sizeof(uint32_t)});
  });
}

}  // namespace millrace::prepare
