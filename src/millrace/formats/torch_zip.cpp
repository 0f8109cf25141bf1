// SPDX-License-Identifier: Apache-2.0
#include "millrace/formats/torch_zip.h"

#include <algorithm>
#include <cstring>

namespace millrace::formats {
namespace {

// APPNOTE.TXT of PKWARE, 4.3.7 (local header), 4.3.12 (directory), 4.3.14 to 4.3.16 (its ends).
constexpr uint32_t kLocalHeader = 0x04034B50, kDirectoryEntry = 0x02014B50, kDirectoryEnd = 0x06054B50;
constexpr uint32_t kDirectoryEnd64 = 0x06064B50, kLocator64 = 0x07064B50;
constexpr int64_t kLocalBytes = 30, kEntryBytes = 46, kEndBytes = 22, kEnd64Bytes = 56, kLocatorBytes = 20;
constexpr int64_t kMostComment = 65535, kMostDirectory = 256 << 20;
constexpr uint32_t kIn64 = 0xFFFFFFFF;

template <class T>
T number_at(std::string_view bytes, int64_t at) {
  T value = 0;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

Result<std::string> read_range(const RandomReader& file, int64_t at, int64_t bytes) {
  std::string text(static_cast<size_t>(bytes), '\0');
  RETURN_IF_ERROR(file.read_at(at, std::as_writable_bytes(std::span(text))));
  return text;
}

tl::unexpected<Error> damaged(const RandomReader& file, std::string_view reason) {
  return fail(ErrorCode::kCorruption, "{}: {}", file.name(), reason);
}

// Where the directory lies, as its end says.
struct Directory {
  uint64_t at = 0, bytes = 0, entries = 0;
  int64_t end = 0;  // where the first of its end records begins
};

Result<Directory> find_directory(const RandomReader& file) {
  const int64_t size = file.size();
  if (size == 0) return damaged(file, "it is empty");
  const int64_t tail_bytes = std::min(size, kMostComment + kEndBytes + kEnd64Bytes + kLocatorBytes);
  ASSIGN_OR_RETURN(const std::string tail, read_range(file, size - tail_bytes, tail_bytes));
  const int64_t start = size - tail_bytes;
  int64_t at = tail_bytes - kEndBytes;
  const auto is_end = [&] {
    return number_at<uint32_t>(tail, at) == kDirectoryEnd &&
           at + kEndBytes + number_at<uint16_t>(tail, at + 20) == tail_bytes;
  };
  while (at >= 0 && !is_end()) --at;
  if (at < 0) return damaged(file, "the end of its zip directory, which is written last, is not there: it is cut");
  Directory directory{number_at<uint32_t>(tail, at + 16), number_at<uint32_t>(tail, at + 12),
                      number_at<uint16_t>(tail, at + 10), start + at};
  const int64_t locator = at - kLocatorBytes, end64 = locator - kEnd64Bytes;
  if (end64 >= 0 && number_at<uint32_t>(tail, locator) == kLocator64 &&
      number_at<uint32_t>(tail, end64) == kDirectoryEnd64)
    directory = {number_at<uint64_t>(tail, end64 + 48), number_at<uint64_t>(tail, end64 + 40),
                 number_at<uint64_t>(tail, end64 + 32), start + end64};
  return directory;
}

// The 64-bit field number `place` of those that an entry moved to its extra field.
uint64_t from_extra(std::string_view extra, int64_t place, uint64_t small) {
  while (extra.size() >= 4) {
    const auto id = number_at<uint16_t>(extra, 0), bytes = number_at<uint16_t>(extra, 2);
    if (bytes + size_t{4} > extra.size()) break;
    if (id == 1 && (place + 1) * 8 <= bytes) return number_at<uint64_t>(extra, 4 + place * 8);
    extra.remove_prefix(bytes + size_t{4});
  }
  return small;
}

}  // namespace

Result<std::vector<TorchZipMember>> read_torch_zip(const RandomReader& file) {
  ASSIGN_OR_RETURN(const Directory directory, find_directory(file));
  const auto end = static_cast<uint64_t>(directory.end);
  if (directory.bytes > end || directory.at != end - directory.bytes)
    return damaged(file, "its size does not agree with its zip directory");
  if (directory.bytes > kMostDirectory) return damaged(file, "its zip directory is larger than 256 MiB");
  ASSIGN_OR_RETURN(const std::string text,
                   read_range(file, static_cast<int64_t>(directory.at), static_cast<int64_t>(directory.bytes)));
  std::vector<TorchZipMember> members;
  int64_t at = 0;
  const int64_t size = std::ssize(text);
  for (uint64_t i = 0; i < directory.entries; ++i) {
    if (size - at < kEntryBytes || number_at<uint32_t>(text, at) != kDirectoryEntry)
      return damaged(file, "its zip directory is damaged");
    const auto name = number_at<uint16_t>(text, at + 28), extra = number_at<uint16_t>(text, at + 30),
               comment = number_at<uint16_t>(text, at + 32);
    if (size - at - kEntryBytes < int64_t{name} + extra + comment) return damaged(file, "its zip directory is damaged");
    const std::string_view fields = std::string_view(text).substr(static_cast<size_t>(at + kEntryBytes + name), extra);
    uint64_t packed = number_at<uint32_t>(text, at + 20), place = number_at<uint32_t>(text, at + 42);
    int64_t moved = number_at<uint32_t>(text, at + 24) == kIn64 ? 1 : 0;  // the unpacked size comes first
    if (packed == kIn64) packed = from_extra(fields, moved++, packed);
    if (place == kIn64) place = from_extra(fields, moved++, place);
    if (place > directory.at || packed > directory.at - place || directory.at - place - packed < uint64_t{kLocalBytes})
      return damaged(file, "a member lies outside of its zip archive");
    members.push_back({text.substr(static_cast<size_t>(at + kEntryBytes), name), static_cast<int64_t>(place),
                       static_cast<int64_t>(packed), number_at<uint16_t>(text, at + 10) == 0});
    at += kEntryBytes + name + extra + comment;
  }
  return members;
}

Result<std::string> read_torch_pickle(const RandomReader& file, const std::vector<TorchZipMember>& members,
                                      int64_t limit_bytes) {
  const auto found = std::ranges::find_if(
      members, [](const TorchZipMember& each) { return each.name.ends_with("/data.pkl") || each.name == "data.pkl"; });
  if (found == members.end()) return fail(ErrorCode::kNotFound, "{}: no data.pkl in it", file.name());
  if (!found->stored) return fail(ErrorCode::kUnsupported, "{}: its data.pkl is packed", file.name());
  if (found->size > limit_bytes)
    return fail(ErrorCode::kResourceExhausted, "{}: its data.pkl has {} bytes", file.name(), found->size);
  ASSIGN_OR_RETURN(const std::string header, read_range(file, found->at, kLocalBytes));
  if (number_at<uint32_t>(header, 0) != kLocalHeader) return damaged(file, "data.pkl is not where its directory says");
  const int64_t at = found->at + kLocalBytes + number_at<uint16_t>(header, 26) + number_at<uint16_t>(header, 28);
  if (at > file.size() - found->size) return damaged(file, "data.pkl lies outside of it");
  return read_range(file, at, found->size);
}

}  // namespace millrace::formats
