// SPDX-License-Identifier: Apache-2.0
#include "millrace/base/io.h"

#include <cstring>

#include "millrace/base/huge_pages.h"

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

Result<std::string> read_all(const RandomReader& reader, int64_t limit_bytes) {
  if (reader.size() > limit_bytes) {
    return fail(ErrorCode::kResourceExhausted, "{}: {} bytes, more than the {} that fit here", reader.name(),
                reader.size(), limit_bytes);
  }
  std::string text;
  text.reserve(static_cast<size_t>(reader.size()));
  prefer_huge_pages(text.data(), text.capacity());
  text.resize(static_cast<size_t>(reader.size()));
  RETURN_IF_ERROR(reader.read_at(0, std::as_writable_bytes(std::span<char>(text))));
  return text;
}

}  // namespace millrace
