// SPDX-License-Identifier: Apache-2.0
#include "millrace/base/io/io.h"

#include <cstring>

namespace millrace {

Status MemoryReader::read_at(int64_t offset, std::span<std::byte> out) const {
  const auto begin = static_cast<size_t>(offset);
  if (begin > bytes_.size() || out.size() > bytes_.size() - begin) {
    return fail(ErrorCode::kOutOfRange, "read {} [{}, {}): it has {} bytes", name_, begin, begin + out.size(),
                bytes_.size());
  }
  if (!out.empty()) std::memcpy(out.data(), bytes_.data() + begin, out.size());
  return {};
}

Status MemorySink::append(std::span<const std::byte> bytes) {
  bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  return {};
}

Status check_size(const RandomReader& reader, int64_t limit_bytes) {
  if (reader.size() <= limit_bytes) return {};
  return fail(ErrorCode::kResourceExhausted, "{}: {} bytes, more than the {} that fit here", reader.name(),
              reader.size(), limit_bytes);
}

Result<std::string> read_all(const RandomReader& reader, int64_t limit_bytes) {
  RETURN_IF_ERROR(check_size(reader, limit_bytes));
  std::string text(static_cast<size_t>(reader.size()), '\0');
  RETURN_IF_ERROR(reader.read_at(0, std::as_writable_bytes(std::span<char>(text))));
  return text;
}

}  // namespace millrace
