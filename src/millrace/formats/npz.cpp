// SPDX-License-Identifier: Apache-2.0
#include "millrace/formats/npz.h"

#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "millrace/base/io/io.h"
#include "millrace/formats/detail/raw_bytes.h"
#include "millrace/formats/npy.h"

namespace millrace::formats {
namespace {

// APPNOTE.TXT of PKWARE, 4.3.7 (local header), 4.3.12 (directory), 4.3.16 (its end).
constexpr uint32_t kLocalHeader = 0x04034B50, kDirectoryEntry = 0x02014B50, kDirectoryEnd = 0x06054B50;
constexpr size_t kLocalBytes = 30, kEntryBytes = 46, kEndBytes = 22;
constexpr uint16_t kVersionNeeded = 20, kStored = 0, kDeflated = 8, kNameIsUtf8 = 1 << 11, kEncrypted = 1;
constexpr uint16_t kEarliestDate = (1 << 5) | 1;  // 1980-01-01: equal arrays give equal files
constexpr uint16_t kPaddingField = 0xD935;        // zipalign's extra field: its size, then zeros
constexpr size_t kMostBytes = std::numeric_limits<uint32_t>::max() - 1;

uint32_t crc_of(std::string_view bytes, uint32_t before = 0) {
  if (bytes.empty()) return before;  // of no memory, zlib answers with its first value
  // SAFETY: char may alias any object.
  return static_cast<uint32_t>(crc32_z(before, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

Result<std::string> deflated(std::string_view header, std::span<const std::byte> data) {
  z_stream stream{};
  // -15: without zlib's own header.
  if (deflateInit2(&stream, Z_DEFAULT_COMPRESSION, Z_DEFLATED, -15, 8, Z_DEFAULT_STRATEGY) != Z_OK) {
    return fail(ErrorCode::kResourceExhausted, "no memory to pack with");
  }
  std::string out(deflateBound(&stream, static_cast<uLong>(header.size() + data.size())), '\0');
  // SAFETY: zlib does not write to its input, and char may alias any object.
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  for (const std::string_view part : {header, as_text(data)}) {
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(part.data()));
    stream.avail_in = static_cast<uInt>(part.size());
    deflate(&stream, part.data() == header.data() ? Z_NO_FLUSH : Z_FINISH);
  }
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

// What the local header and the directory's entry both say.
struct Entry {
  std::string name;
  uint16_t method = kStored;
  uint32_t crc = 0;
  size_t packed = 0, size = 0, local_at = 0;

  void put_common(std::string& out, size_t extra) const {
    put(out, kVersionNeeded);
    put(out, kNameIsUtf8);
    put(out, method);
    put(out, uint16_t{0});
    put(out, kEarliestDate);
    put(out, crc);
    put(out, static_cast<uint32_t>(packed));
    put(out, static_cast<uint32_t>(size));
    put(out, static_cast<uint16_t>(name.size()));
    put(out, static_cast<uint16_t>(extra));
  }
  void put_directory(std::string& out) const {
    put(out, kDirectoryEntry);
    put(out, kVersionNeeded);
    put_common(out, 0);
    out.append(6, '\0');  // no comment, on disk 0, with no attributes within
    put(out, uint32_t{0});
    put(out, static_cast<uint32_t>(local_at));
    out += name;
  }
};

// The bytes of an extra field that puts what follows the local header at a multiple of kNpzAlignment.
size_t padding_at(size_t local_at, size_t name_bytes) {
  const size_t end = local_at + kLocalBytes + name_bytes + 4;
  return 4 + (kNpzAlignment - end % kNpzAlignment) % kNpzAlignment;
}

// Appends a member; its header in the directory is the answer.
Result<Entry> append_member(std::string& out, const NpzArray& array, bool compress) {
  const std::string header = npy_header(array.descr, array.shape);
  Entry entry{.name = array.name + ".npy", .method = compress ? kDeflated : kStored, .local_at = out.size()};
  entry.size = entry.packed = header.size() + array.data.size();
  if (entry.name.size() > std::numeric_limits<uint16_t>::max() || entry.size > kMostBytes) {
    return fail(ErrorCode::kUnsupported, "array {}: {} bytes, and NPZ files here are smaller than 4 GiB", array.name,
                array.data.size());
  }
  entry.crc = crc_of(as_text(array.data), crc_of(header));
  std::string packed;
  if (compress) {
    ASSIGN_OR_RETURN(packed, deflated(header, array.data));
    entry.packed = packed.size();
  }
  const size_t extra = compress ? 0 : padding_at(out.size(), entry.name.size());
  put(out, kLocalHeader);
  entry.put_common(out, extra);
  out += entry.name;
  if (extra > 0) {
    put(out, kPaddingField);
    put(out, static_cast<uint16_t>(extra - 4));
    out.append(extra - 4, '\0');
  }
  if (compress) {
    out += packed;
  } else {
    out.append(header).append(as_text(array.data));
  }
  return entry;
}

void append_end(std::string& out, size_t directory_at, size_t entries, std::string_view comment) {
  const size_t directory_bytes = out.size() - directory_at;
  put(out, kDirectoryEnd);
  put(out, uint32_t{0});
  put(out, static_cast<uint16_t>(entries));
  put(out, static_cast<uint16_t>(entries));
  put(out, static_cast<uint32_t>(directory_bytes));
  put(out, static_cast<uint32_t>(directory_at));
  put(out, static_cast<uint16_t>(comment.size()));
  out += comment;
}

// REQUIRES: at + sizeof(T) <= text.size().
template <class T>
T value_at(std::string_view text, size_t at) {
  T value;
  std::memcpy(&value, text.data() + at, sizeof value);
  return value;
}

// Where the end of the directory begins, whose comment reaches to the file's end; npos when there is none.
size_t find_end(std::string_view file) {
  constexpr size_t kMostComment = std::numeric_limits<uint16_t>::max();
  for (size_t back = kEndBytes; back <= std::min(file.size(), kEndBytes + kMostComment); ++back) {
    const size_t at = file.size() - back;
    if (value_at<uint32_t>(file, at) == kDirectoryEnd && value_at<uint16_t>(file, at + 20) == back - kEndBytes)
      return at;
  }
  return std::string_view::npos;
}

}  // namespace

Result<std::string> write_npz(std::span<const NpzArray> arrays, std::string_view comment, bool compress) {
  std::string out;
  size_t bytes = 0;
  for (const NpzArray& array : arrays) bytes += array.data.size();
  if (!compress) out.reserve(bytes + 512 * (arrays.size() + 1));
  std::vector<Entry> entries;
  for (const NpzArray& array : arrays) {
    ASSIGN_OR_RETURN(Entry entry, append_member(out, array, compress));
    entries.push_back(std::move(entry));
  }
  const size_t directory_at = out.size();
  for (const Entry& entry : entries) entry.put_directory(out);
  append_end(out, directory_at, entries.size(), comment);
  if (out.size() <= kMostBytes) return out;
  return fail(ErrorCode::kUnsupported, "{} bytes, and NPZ files here are smaller than 4 GiB", out.size());
}

const NpzMember* NpzFile::find(std::string_view name) const {
  const auto found = std::ranges::find(members, name, &NpzMember::name);
  return found == members.end() ? nullptr : &*found;
}

Result<NpzFile> parse_npz(std::span<const std::byte> file, std::string_view source) {
  const auto bad = [&](std::string_view why) {
    return fail(ErrorCode::kCorruption, "{}: not a whole NPZ file: {}", source, why);
  };
  const std::string_view text = as_text(file);
  const size_t end = find_end(text);
  if (end == std::string_view::npos) return bad("it has no directory at its end");
  const size_t count = value_at<uint16_t>(text, end + 10), begin = value_at<uint32_t>(text, end + 16);
  NpzFile npz{.comment = text.substr(end + kEndBytes)};
  size_t at = begin;
  for (size_t i = 0; i < count; ++i) {
    if (at > end || end - at < kEntryBytes || value_at<uint32_t>(text, at) != kDirectoryEntry) {
      return bad("its directory is damaged");
    }
    const size_t name_bytes = value_at<uint16_t>(text, at + 28), local = value_at<uint32_t>(text, at + 42);
    const size_t more = name_bytes + value_at<uint16_t>(text, at + 30) + value_at<uint16_t>(text, at + 32);
    const uint64_t packed = value_at<uint32_t>(text, at + 20);
    const uint16_t method = value_at<uint16_t>(text, at + 10), flags = value_at<uint16_t>(text, at + 8);
    if (end - at - kEntryBytes < more) return bad("its directory is damaged");
    NpzMember member{.name = text.substr(at + kEntryBytes, name_bytes),
                     .compressed = method == kDeflated,
                     .crc32 = value_at<uint32_t>(text, at + 16),
                     .size = value_at<uint32_t>(text, at + 24)};
    if ((flags & kEncrypted) != 0 || (method != kStored && method != kDeflated) ||
        std::max(packed, member.size) > kMostBytes || local > kMostBytes) {
      return fail(ErrorCode::kUnsupported, "{}: member {} is encrypted, packed otherwise than by deflate, or too large",
                  source, member.name);
    }
    if (local > end || end - local < kLocalBytes || value_at<uint32_t>(text, local) != kLocalHeader) {
      return bad("a member does not begin where its directory says");
    }
    const size_t data_at =
        local + kLocalBytes + value_at<uint16_t>(text, local + 26) + value_at<uint16_t>(text, local + 28);
    if (data_at > end || packed > end - data_at || (method == kStored && packed != member.size)) {
      return bad("a member reaches beyond it");
    }
    member.data = file.subspan(data_at, packed);
    npz.members.push_back(member);
    at += kEntryBytes + more;
  }
  return npz;
}

std::string_view npz_comment(std::string_view tail) {
  const size_t end = find_end(tail);
  return end == std::string_view::npos ? std::string_view() : tail.substr(end + kEndBytes);
}

Status check_npz_member(const NpzMember& member, std::string_view source) {
  if (crc_of(as_text(member.data)) == member.crc32) return {};
  return fail(ErrorCode::kCorruption, "{}: member {} does not match its CRC-32", source, member.name);
}

Result<std::string> unpack_npz_member(const NpzMember& member, std::string_view source) {
  if (!member.compressed) {
    RETURN_IF_ERROR(check_npz_member(member, source));
    return std::string(as_text(member.data));
  }
  // Deflate packs at most 1032 to 1: a size beyond that is a lie, and memory for it is not asked for.
  const bool possible = member.size / 1032 <= member.data.size();
  std::string out(possible ? member.size : 0, '\0');
  z_stream stream{};
  if (!possible || inflateInit2(&stream, -15) != Z_OK) {
    return fail(ErrorCode::kCorruption, "{}: member {} cannot be unpacked", source, member.name);
  }
  // SAFETY: as in deflated().
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(member.data.data()));
  stream.avail_in = static_cast<uInt>(member.data.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  const int ended = inflate(&stream, Z_FINISH);
  const bool whole = ended == Z_STREAM_END && stream.total_out == out.size();
  inflateEnd(&stream);
  if (whole && crc_of(out) == member.crc32) return out;
  return fail(ErrorCode::kCorruption, "{}: member {} is damaged: it does not unpack to what its CRC-32 says", source,
              member.name);
}

}  // namespace millrace::formats
