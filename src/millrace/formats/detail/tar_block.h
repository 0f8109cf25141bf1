// SPDX-License-Identifier: Apache-2.0
#pragma once

// Decodes the 512-byte blocks of a tar archive: the fields of a header, and the header of the next member together
// with the PAX and long-name headers before it. Views point into the block that they were read from. Pure functions.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "millrace/base/status.h"
#include "millrace/formats/tar.h"

namespace millrace::formats::tar {

struct Field {
  size_t at;
  size_t size;
};
inline constexpr Field kName{0, 100}, kMode{100, 8}, kUid{108, 8}, kGid{116, 8}, kSize{124, 12}, kMtime{136, 12};
inline constexpr Field kChecksum{148, 8}, kType{156, 1}, kMagic{257, 8}, kPrefix{345, 155};
inline constexpr std::string_view kUstarMagic("ustar\00000", 8);

inline std::string_view field_of(const char* block, Field field) {
  return {block + field.at, field.size};
}

// Returns the name quoted as one line, whatever its bytes are, for messages.
std::string quoted_member(std::string_view name);

// The place of a block, for messages.
struct Where {
  std::string_view source;
  int64_t offset;
};

enum class BlockKind {
  kMember,     // a regular file
  kOther,      // a directory, link or device; no data follows
  kExtension,  // PAX or long name: fields for the header that follows
  kZero,       // 512 zero bytes
};

struct Block {
  BlockKind kind = BlockKind::kZero;
  char type = 0;
  int64_t size = 0;
  std::string_view name;
  std::string_view prefix;  // if not empty, "prefix/name" is the whole name
};

// Decodes a header block. Errors: corruption (a wrong checksum, a size that is not a number), unsupported (a sparse
// file, an unknown type).
[[nodiscard]] Result<Block> decode_block(const char* block, const Where& where);

// Fields from PAX and long-name headers for the next member.
struct Extension {
  std::string& name;
  bool named = false;
  int64_t size = -1;
};

// Reads the payload of an extension of `type` into `extension`. Errors: corruption, unsupported.
[[nodiscard]] Status apply_extension(char type, std::string_view payload, const Where& where, Extension& extension);
inline constexpr int64_t kMaxExtension = 1 << 20;  // most bytes of a PAX or long-name payload; usual: some hundred

inline int64_t padded(int64_t size) {
  return (size + kTarBlock - 1) / kTarBlock * kTarBlock;
}

// The next block in an archive that is not an extension: a member, with the fields of its extensions, or a zero block.
struct Found {
  BlockKind kind = BlockKind::kZero;
  char type = 0;
  bool extended = false;  // `begin` is the offset of an extension
  int64_t begin = 0;
  int64_t data = 0;
  int64_t size = 0;
  int64_t end = 0;
  std::string_view name;  // points into the block, or into the storage for long names
};

// Finds the next member or zero block from `at` on. `view(offset, size)` returns a Result<const char*> to bytes before
// `limit`; it may invalidate the previous view. `base`: offset in the archive of view offset 0, for messages.
template <class View>
[[nodiscard]] Result<Found> find_header(const View& view, int64_t at, int64_t limit, std::string_view source,
                                        int64_t base, std::string& name_storage) {
  Extension extension{name_storage};
  Found found{.begin = at};
  for (;;) {
    const Where where{source, base + at};
    if (limit - at < kTarBlock) {
      return fail(ErrorCode::kCorruption, "{}: cut at offset {}, where a header must be", source, base + limit);
    }
    ASSIGN_OR_RETURN(const char* bytes, view(at, kTarBlock));
    ASSIGN_OR_RETURN(const Block block, decode_block(bytes, where));
    found.kind = block.kind;
    found.type = block.type;
    found.data = at + kTarBlock;
    if (block.kind == BlockKind::kZero) {
      if (!found.extended) return found;
      return fail(ErrorCode::kCorruption, "{}: the extended header at offset {} has no member", source,
                  base + found.begin);
    }
    found.size = block.kind == BlockKind::kMember && extension.size >= 0 ? extension.size : block.size;
    if (found.size > limit - found.data || padded(found.size) > limit - found.data) {
      return fail(
          ErrorCode::kCorruption,
          "{}: member {} at offset {} has {} bytes of data, padded to 512, and only {} bytes follow: it was cut",
          source, quoted_member(extension.named ? name_storage : block.name), where.offset, found.size,
          limit - found.data);
    }
    found.end = found.data + padded(found.size);
    if (block.kind != BlockKind::kExtension) {
      if (!extension.named && !block.prefix.empty()) {
        name_storage.assign(block.prefix).append(1, '/').append(block.name);
        extension.named = true;
      }
      found.name = extension.named ? std::string_view(name_storage) : block.name;
      return found;
    }
    if (found.size > kMaxExtension) {
      return fail(ErrorCode::kUnsupported, "{}: the extended header at offset {} has {} bytes", source, where.offset,
                  found.size);
    }
    ASSIGN_OR_RETURN(const char* payload, view(found.data, found.size));
    RETURN_IF_ERROR(apply_extension(block.type, {payload, static_cast<size_t>(found.size)}, where, extension));
    at = found.end;
    if (block.type != 'g') found.extended = true;
    if (!found.extended) found.begin = at;  // a global header belongs to no member
  }
}

}  // namespace millrace::formats::tar
