// SPDX-License-Identifier: Apache-2.0
#pragma once

// Writes and reads NPZ: a zip archive of .npy members, as numpy.savez and savez_compressed write it and numpy.load
// reads it. Stored members are aligned, so their arrays can be used directly in a mapped file. Archives of 4 GiB and
// more (ZIP64) are neither written nor read. Pure functions over bytes; thread-safe.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/status.h"

namespace millrace::formats {

inline constexpr size_t kNpzAlignment = 64;

struct NpzArray {
  std::string name;   // name of the array; the member is name + ".npy"
  std::string descr;  // '<f4'
  std::vector<uint64_t> shape;
  std::span<const std::byte> data;  // in C order
};

// Makes an archive with the comment `comment` (at most 65535 bytes). Without `compress`, the data of every array
// begins at a multiple of kNpzAlignment in the file. Equal arguments give equal bytes with one version of zlib.
// Errors: unsupported (4 GiB or more, in one array or in all).
[[nodiscard]] Result<std::string> write_npz(std::span<const NpzArray> arrays, std::string_view comment, bool compress);

struct NpzMember {
  std::string_view name;  // "data.npy"
  bool compressed = false;
  uint32_t crc32 = 0;
  uint64_t size = 0;                // unpacked
  std::span<const std::byte> data;  // as stored in the archive
};

struct NpzFile {
  std::vector<NpzMember> members;  // in the order of the archive's directory
  std::string_view comment;

  const NpzMember* find(std::string_view name) const;
};

// Reads the archive's directory. The result points into `file`. `source` is for messages. Errors: corruption (no
// archive, cut, members outside of it), unsupported (encrypted, ZIP64, compressed by another method than deflate).
[[nodiscard]] Result<NpzFile> parse_npz(std::span<const std::byte> file, std::string_view source);

// Returns only the comment of an archive whose last bytes are `tail`; empty when `tail` is not the end of an archive.
std::string_view npz_comment(std::string_view tail);

// Checks a stored member against its CRC-32. Errors: corruption. REQUIRES: !compressed.
[[nodiscard]] Status check_npz_member(const NpzMember& member, std::string_view source);
// Unpacks and checks a member of either kind. Errors: corruption.
[[nodiscard]] Result<std::string> unpack_npz_member(const NpzMember& member, std::string_view source);

}  // namespace millrace::formats
