// SPDX-License-Identifier: Apache-2.0
#include "millrace/storage/detail/backend.h"

#include <algorithm>
#include <random>

namespace millrace {
namespace {

constexpr int64_t kCopyPieceBytes = 1 << 20;  // stays in a core's cache between the read and the write

}  // namespace

Status check_object_listing(std::string_view prefix, const ListOptions& options) {
  if (options.max_keys < 1) {
    return fail(ErrorCode::kInvalidArgument, "list \"{}\": max_keys is {}, not at least 1", prefix, options.max_keys);
  }
  if (prefix.find('\0') != prefix.npos) {
    return fail(ErrorCode::kInvalidArgument, "list \"{}\": the prefix contains a NUL byte", prefix);
  }
  return {};
}

Status check_listing(std::string_view prefix, const ListOptions& options) {
  RETURN_IF_ERROR(check_object_listing(prefix, options));
  // Checks whole components only: "a/.." may be the beginning of "a/..b".
  const size_t slash = prefix.rfind('/');
  if (slash == prefix.npos) return {};
  return with_context(check_key(prefix.substr(0, slash)), "list");
}

Status check_write_range(std::string_view name, int64_t offset, size_t size) {
  if (offset < 0 || size > static_cast<uint64_t>(INT64_MAX - offset)) {
    return fail(ErrorCode::kInvalidArgument, "write {}: {} bytes at offset {} are no valid range", name, size, offset);
  }
  return {};
}

Status check_read_range(const RandomReader& reader, int64_t offset, int64_t size) {
  if (offset < 0 || size < 0) {
    return fail(ErrorCode::kInvalidArgument, "read {}: {} bytes at offset {}", reader.name(), size, offset);
  }
  if (offset > reader.size() || size > reader.size() - offset) {
    return fail(ErrorCode::kOutOfRange, "read {}: {} bytes at offset {}: it has {} bytes", reader.name(), size, offset,
                reader.size());
  }
  return {};
}

Status copy_through_memory(const RandomReader& source, int64_t source_offset, int64_t size, Writer& writer,
                           int64_t offset) {
  RETURN_IF_ERROR(check_read_range(source, source_offset, size));
  std::vector<std::byte> piece(static_cast<size_t>(std::min(size, kCopyPieceBytes)));
  for (int64_t done = 0; done < size;) {
    const std::span<std::byte> part(piece.data(), static_cast<size_t>(std::min(size - done, kCopyPieceBytes)));
    RETURN_IF_ERROR(source.read_at(source_offset + done, part));
    RETURN_IF_ERROR(writer.write_at(offset + done, part));
    done += static_cast<int64_t>(part.size());
  }
  return {};
}

Clock::duration backoff(int failed_tries, Clock::duration first, Clock::duration longest) {
  thread_local std::minstd_rand random(std::random_device{}());
  const Clock::rep most = std::min(longest, first * (int64_t{1} << std::min(failed_tries - 1, 20))).count();
  return Clock::duration(std::uniform_int_distribution<Clock::rep>(most / 2, most)(random));
}

}  // namespace millrace
