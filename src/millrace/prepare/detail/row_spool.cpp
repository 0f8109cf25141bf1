// SPDX-License-Identifier: Apache-2.0
#include "millrace/prepare/detail/row_spool.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <utility>
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

// A file that goes when it is closed.
Result<std::pair<int, std::string>> nameless_file() {
  std::error_code error;
  const auto folder = std::filesystem::temp_directory_path(error);
  if (error) return tl::unexpected(errno_error(error.value(), "find the folder for temporary files (TMPDIR)"));
  std::string path = (folder / "millrace-rows-XXXXXX").string();
  const int file = ::mkostemp(path.data(), O_CLOEXEC);
  if (file < 0) return tl::unexpected(errno_error(errno, fmt::format("make {}, in TMPDIR", path)));
  ::unlink(path.c_str());
  return std::pair(file, folder.string());
}

// Moves all of `bytes` with pread or pwrite.
template <class Call, class Bytes>
bool move_all(Call call, int file, Bytes bytes, int64_t at) {
  while (!bytes.empty()) {
    const ssize_t moved = call(file, bytes.data(), bytes.size(), at);
    if (moved < 0 && errno == EINTR) continue;
    if (moved == 0) errno = EIO;  // the file is shorter than what was written
    if (moved <= 0) return false;
    at += moved;
    bytes = bytes.subspan(static_cast<size_t>(moved));
  }
  return true;
}

}  // namespace

RowSpool::~RowSpool() {
  if (file_ >= 0) ::close(file_);
}

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
  if (file_ < 0) {
    ASSIGN_OR_RETURN(auto made, nameless_file());
    std::tie(file_, folder_) = std::move(made);
  }
  int64_t at = spooled_ * static_cast<int64_t>(formats::kIndexRowBytes);
  for (const IndexColumn column : kColumns) {
    const auto bytes = column_of(rows_, column);
    if (!move_all(::pwrite, file_, bytes, at)) {
      return tl::unexpected(
          errno_error(errno, fmt::format("keep {} bytes for each document of a shard in {}, which TMPDIR may change",
                                         formats::kIndexRowBytes, folder_)));
    }
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
    if (!move_all(::pread, file_, std::span(run), at)) {
      return tl::unexpected(errno_error(errno, fmt::format("read a temporary file in {}", folder_)));
    }
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
