// SPDX-License-Identifier: Apache-2.0
#include "millrace/formats/detail/tar_block.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <limits>
#include <utility>

namespace millrace::formats::tar {

namespace {

// Up to the first NUL, as every text field is read.
std::string_view text_of(const char* block, Field field) {
  const void* nul = std::memchr(block + field.at, 0, field.size);
  if (nul == nullptr) return field_of(block, field);
  return {block + field.at, static_cast<size_t>(static_cast<const char*>(nul) - (block + field.at))};
}

// The sum of a block's 512 bytes, eight at a time: even and odd bytes of a word add up in four 16-bit lanes, which
// reach at most 64 * 2 * 255 = 32,640. Does not depend on byte order, and compilers turn it into vector code.
uint32_t sum_block(const char* block) {
  constexpr uint64_t kEvenBytes = 0x00FF00FF00FF00FF;
  constexpr uint64_t kEvenLanes = 0x0000FFFF0000FFFF;
  uint64_t lanes = 0;
  for (size_t i = 0; i < static_cast<size_t>(kTarBlock); i += sizeof(uint64_t)) {
    uint64_t word;
    std::memcpy(&word, block + i, sizeof(word));
    lanes += (word & kEvenBytes) + ((word >> 8) & kEvenBytes);
  }
  lanes = (lanes & kEvenLanes) + ((lanes >> 16) & kEvenLanes);
  return static_cast<uint32_t>(lanes) + static_cast<uint32_t>(lanes >> 32);
}

// Octal digits with spaces before and spaces or NULs behind, or base 256 behind a byte 0x80 (GNU, for sizes from 8
// GiB). nullopt for anything else, negative and overflowing numbers included.
std::optional<int64_t> parse_number(std::string_view field) {
  uint64_t value = 0;
  if (field[0] == '\x80') {
    for (const char c : field.substr(1)) {
      if (value >> 55 != 0) return std::nullopt;
      value = value << 8 | static_cast<unsigned char>(c);
    }
    return static_cast<int64_t>(value);
  }
  size_t at = 0;
  while (at < field.size() && field[at] == ' ') ++at;
  for (; at < field.size() && field[at] >= '0' && field[at] <= '7'; ++at) {
    value = value * 8 + static_cast<uint64_t>(field[at] - '0');  // at most 12 digits: 36 bits
  }
  for (; at < field.size(); ++at) {
    if (field[at] != ' ' && field[at] != '\0') return std::nullopt;
  }
  return static_cast<int64_t>(value);
}

// The header's checksum counts its own field as spaces. Some old writers added up signed bytes; both sums are accepted.
bool checksum_holds(const char* block, uint32_t raw_sum) {
  const auto stored = parse_number(field_of(block, kChecksum));
  if (!stored) return false;
  int64_t sum = int64_t{raw_sum} + static_cast<int64_t>(kChecksum.size) * ' ';
  for (const char c : field_of(block, kChecksum)) sum -= static_cast<unsigned char>(c);
  if (sum == *stored) return true;
  const auto negative = std::count_if(block, block + kTarBlock, [](char c) { return (c & 0x80) != 0; });
  return sum - 256 * negative == *stored;
}

Result<BlockKind> kind_of(char type, std::string_view name, const Where& where) {
  switch (type) {
    case '\0':
      return !name.empty() && name.back() == '/' ? BlockKind::kOther : BlockKind::kMember;
    case '0':
    case '7':
      return BlockKind::kMember;
    case '1':
    case '2':
    case '3':
    case '4':
    case '5':
    case '6':
    case 'V':  // GNU's label of a volume
      return BlockKind::kOther;
    case 'x':
    case 'g':
    case 'L':
    case 'K':
      return BlockKind::kExtension;
    case 'S':
      return fail(ErrorCode::kUnsupported, "{}: member {} at offset {} is sparse (GNU)", where.source,
                  quoted_member(name), where.offset);
    case 'M':
      return fail(ErrorCode::kUnsupported, "{}: member {} at offset {} continues another volume", where.source,
                  quoted_member(name), where.offset);
    default:
      return fail(ErrorCode::kUnsupported, "{}: member {} at offset {} has the unknown type 0x{:02x}", where.source,
                  quoted_member(name), where.offset, static_cast<unsigned char>(type));
  }
}

tl::unexpected<Error> bad_checksum(const char* block, const Where& where) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 4> kPackers{
      {{"\x1f\x8b", "gzip"}, {"BZh", "bzip2"}, {"\xfd\x37zXZ", "xz"}, {"\x28\xb5\x2f\xfd", "zstd"}}};
  for (const auto& [magic, packer] : kPackers) {
    if (where.offset == 0 && std::string_view(block, magic.size()) == magic) {
      return fail(ErrorCode::kUnsupported, "{}: compressed with {}; unpack it first", where.source, packer);
    }
  }
  return fail(ErrorCode::kCorruption, "{}: the header at offset {} does not have the checksum it states", where.source,
              where.offset);
}

// Takes one "length key=value\n" record off the front of `records`.
std::optional<std::pair<std::string_view, std::string_view>> take_pax_record(std::string_view& records) {
  size_t length = 0;
  const auto [end, error] = std::from_chars(records.data(), records.data() + records.size(), length);
  const auto digits = static_cast<size_t>(end - records.data());
  if (error != std::errc() || length > records.size() || length < digits + 4 || records[digits] != ' ')
    return std::nullopt;
  if (records[length - 1] != '\n') return std::nullopt;
  const std::string_view record = records.substr(digits + 1, length - digits - 2);
  const size_t equals = record.find('=');
  if (equals == 0 || equals == std::string_view::npos) return std::nullopt;
  records.remove_prefix(length);
  return std::pair(record.substr(0, equals), record.substr(equals + 1));
}

Status apply_pax(std::string_view records, bool global, const Where& where, Extension& extension) {
  while (!records.empty()) {
    const auto record = take_pax_record(records);
    if (!record) {
      return fail(ErrorCode::kCorruption, "{}: the PAX header at offset {} has a malformed record", where.source,
                  where.offset);
    }
    const auto [key, value] = *record;
    if (key.starts_with("GNU.sparse.")) {
      return fail(ErrorCode::kUnsupported, "{}: the member at offset {} is sparse ({})", where.source, where.offset,
                  key);
    }
    if (key != "path" && key != "size") continue;
    if (global) {
      return fail(ErrorCode::kUnsupported, "{}: the global PAX header at offset {} sets '{}' for all members",
                  where.source, where.offset, key);
    }
    if (key == "path" && !value.empty() && value.find('\0') == std::string_view::npos) {
      extension.name = value;
      extension.named = true;
      continue;
    }
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), extension.size);
    if (key == "path" || error != std::errc() || end != value.data() + value.size() || extension.size < 0) {
      return fail(ErrorCode::kCorruption, "{}: the PAX header at offset {} has an impossible '{}'", where.source,
                  where.offset, key);
    }
  }
  return {};
}

}  // namespace

std::string quoted_member(std::string_view name) {
  std::string out = "'";
  for (const char c : name.substr(0, 200)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte >= 0x7F) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  return out + (name.size() > 200 ? "...'" : "'");
}

Result<Block> decode_block(const char* block, const Where& where) {
  const uint32_t sum = sum_block(block);
  if (sum == 0) return Block{};
  if (!checksum_holds(block, sum)) return bad_checksum(block, where);
  Block out;
  out.type = block[kType.at];
  out.name = text_of(block, kName);
  if (field_of(block, kMagic) == kUstarMagic) out.prefix = text_of(block, kPrefix);
  ASSIGN_OR_RETURN(out.kind, kind_of(out.type, out.name, where));
  const auto size = parse_number(field_of(block, kSize));
  if (!size) {
    return fail(ErrorCode::kCorruption, "{}: member {} at offset {}: its size is not a number or too large",
                where.source, quoted_member(out.name), where.offset);
  }
  if (out.kind != BlockKind::kOther) out.size = *size;  // links state their target's size, and no data follows
  return out;
}

Status apply_extension(char type, std::string_view payload, const Where& where, Extension& extension) {
  if (type == 'K') return {};  // a link's target
  if (type != 'L') return apply_pax(payload, type == 'g', where, extension);
  payload = payload.substr(0, payload.find('\0'));
  if (payload.empty()) {
    return fail(ErrorCode::kCorruption, "{}: the long name at offset {} is empty", where.source, where.offset);
  }
  extension.name = payload;
  extension.named = true;
  return {};
}

}  // namespace millrace::formats::tar
