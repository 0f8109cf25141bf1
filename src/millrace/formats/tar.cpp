// SPDX-License-Identifier: Apache-2.0
#include "millrace/formats/tar.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <limits>
#include <utility>

namespace millrace::formats {
namespace {

constexpr int64_t kWindowMin = 64 << 10;    // after a jump over a large payload: the next headers
constexpr int64_t kWindowMax = 1 << 20;     // doubled up to here while members lie close together
constexpr int64_t kLargeGap = 256 << 10;    // a jump this far past the window is not worth reading through
constexpr int64_t kMaxExtension = 1 << 20;  // of a PAX or long-name payload; real ones hold a few hundred bytes

struct Field {
  size_t at;
  size_t size;
};
constexpr Field kName{0, 100}, kMode{100, 8}, kUid{108, 8}, kGid{116, 8}, kSize{124, 12}, kMtime{136, 12};
constexpr Field kChecksum{148, 8}, kType{156, 1}, kMagic{257, 8}, kPrefix{345, 155};
constexpr std::string_view kUstarMagic("ustar\00000", 8);

std::string_view field_of(const char* block, Field field) {
  return {block + field.at, field.size};
}

// Up to the first NUL, as every text field is read.
std::string_view text_of(const char* block, Field field) {
  const void* nul = std::memchr(block + field.at, 0, field.size);
  if (nul == nullptr) return field_of(block, field);
  return {block + field.at, static_cast<size_t>(static_cast<const char*>(nul) - (block + field.at))};
}

// A member's name for a message: one line, whatever its bytes are.
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
// GiB). Nothing for anything else, negative and overflowing numbers included.
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

struct Where {
  std::string_view source;
  int64_t offset;
};

enum class BlockKind {
  kMember,     // a regular file
  kOther,      // a directory, link or device: no data behind it
  kExtension,  // PAX or long name: says something about the header that follows
  kZero,       // 512 zero bytes
};

struct Block {
  BlockKind kind = BlockKind::kZero;
  char type = 0;
  int64_t size = 0;
  std::string_view name;
  std::string_view prefix;  // "prefix/name" is the whole name when it is not empty
};

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

// What PAX and long-name headers said about the member that follows.
struct Extension {
  std::string& name;
  bool named = false;
  int64_t size = -1;
};

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

int64_t padded(int64_t size) {
  return (size + kTarBlock - 1) / kTarBlock * kTarBlock;
}

// The next thing in an archive that is not an extension: a member with everything said about it, or a zero block.
struct Found {
  BlockKind kind = BlockKind::kZero;
  char type = 0;
  bool extended = false;  // begin is that of an extension
  int64_t begin = 0;
  int64_t data = 0;
  int64_t size = 0;
  int64_t end = 0;
  std::string_view name;  // lies in the block, or in the storage for long names
};

// `view(offset, size)` gives a Result<const char*> to bytes that lie before `limit`; it may end the life of the view
// before. `base` is the archive's offset of view offset 0, for messages.
template <class View>
Result<Found> find_header(const View& view, int64_t at, int64_t limit, std::string_view source, int64_t base,
                          std::string& name_storage) {
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

void put_text(char* block, Field field, std::string_view text) {
  std::copy(text.begin(), text.end(), block + field.at);
}

// Octal with a closing NUL; base 256 when it does not fit (sizes only).
void put_number(char* block, Field field, uint64_t value) {
  const size_t digits = field.size - 1;
  const bool octal = value >> (3 * digits) == 0;
  if (!octal) block[field.at] = '\x80';
  for (size_t i = 0; i < digits; ++i) {
    const size_t place = octal ? field.at + digits - 1 - i : field.at + digits - i;
    block[place] = octal ? static_cast<char>('0' + (value & 7)) : static_cast<char>(value & 255);
    value >>= octal ? 3 : 8;
  }
}

// A header without name, type and size, which are all that differs between files.
constexpr std::array<char, kTarBlock> kPlainHeader = [] {
  std::array<char, kTarBlock> block{};
  const auto put = [&block](Field field, std::string_view text) {
    std::copy(text.begin(), text.end(), block.begin() + field.at);
  };
  put(kMode, "0000444");
  put(kUid, "0000000");
  put(kGid, "0000000");
  put(kMtime, "00000000000");
  put(kChecksum, "        ");  // as it is counted
  put(kMagic, kUstarMagic);
  return block;
}();

template <class Bytes>
constexpr uint32_t sum_of(const Bytes& bytes) {
  uint32_t sum = 0;
  for (const char c : bytes) sum += static_cast<unsigned char>(c);
  return sum;
}
constexpr uint32_t kPlainSum = sum_of(kPlainHeader);

// Until the size is known, the sum of everything else stands where the checksum will be.
void begin_header(std::string& out, std::string_view prefix, std::string_view name, char type) {
  const size_t at = out.size();
  out.append(kPlainHeader.data(), kPlainHeader.size());
  char* block = out.data() + at;
  put_text(block, kName, name);
  put_text(block, kPrefix, prefix);
  block[kType.at] = type;
  const uint32_t sum = kPlainSum + sum_of(name) + sum_of(prefix) + static_cast<unsigned char>(type);
  std::memcpy(block + kChecksum.at, &sum, sizeof(sum));
}

void end_header(char* block, uint64_t size) {
  uint32_t sum;
  std::memcpy(&sum, block + kChecksum.at, sizeof(sum));
  put_number(block, kSize, size);
  sum += sum_of(field_of(block, kSize));
  put_number(block, {kChecksum.at, kChecksum.size - 1}, sum);
  block[kChecksum.at + 6] = '\0';
}

// Where ustar can cut a long name: a '/' with at most 155 bytes before it and 1 to 100 behind. npos when there is none.
size_t prefix_length(std::string_view name) {
  const size_t slash = name.find('/', std::max<size_t>(name.size() - kName.size - 1, 1));
  return slash != std::string_view::npos && slash <= kPrefix.size && slash + 1 < name.size() ? slash
                                                                                             : std::string_view::npos;
}

// "length path=name\n", where the length counts its own digits.
std::string pax_path(std::string_view name) {
  const size_t rest = name.size() + std::strlen(" path=\n");
  size_t length = rest + 1;
  while (length != rest + fmt::formatted_size("{}", length)) length = rest + fmt::formatted_size("{}", length);
  return fmt::format("{} path={}\n", length, name);
}

}  // namespace

TarReader::TarReader(const RandomReader& archive) : archive_(archive) {}

Status TarReader::fill(int64_t offset, int64_t size) {
  const int64_t window_end = window_begin_ + static_cast<int64_t>(window_.size());
  if (offset >= window_begin_ && offset + size <= window_end) return {};
  const int64_t doubled = std::clamp(2 * (window_end - window_begin_), kWindowMin, kWindowMax);
  const int64_t want = std::max(size, offset - window_end > kLargeGap ? kWindowMin : doubled);
  window_.resize(static_cast<size_t>(std::min(want, archive_.size() - offset)));
  window_begin_ = offset;
  if (auto read = archive_.read_at(offset, window_); !read) {
    window_.clear();
    return read;
  }
  return {};
}

Result<std::optional<TarMember>> TarReader::next() {
  const auto view = [this](int64_t offset, int64_t size) -> Result<const char*> {
    RETURN_IF_ERROR(fill(offset, size));
    return as_text(window_).data() + (offset - window_begin_);
  };
  for (;;) {
    if (at_ == archive_.size()) {
      return fail(ErrorCode::kCorruption, "{}: it ends at offset {} without end-of-archive blocks: it was cut",
                  archive_.name(), at_);
    }
    std::string name;
    ASSIGN_OR_RETURN(const Found found, find_header(view, at_, archive_.size(), archive_.name(), 0, name));
    if (found.kind == BlockKind::kZero) {
      RETURN_IF_ERROR(check_end(found.begin));
      return std::nullopt;
    }
    at_ = found.end;
    if (found.kind == BlockKind::kOther) continue;
    if (found.name.data() != name.data()) name = found.name;
    return TarMember{std::move(name), found.begin, found.data, found.size, found.end};
  }
}

Status TarReader::check_end(int64_t begin) {
  for (int64_t at = begin; at < archive_.size();) {
    RETURN_IF_ERROR(fill(at, std::min(kTarBlock, archive_.size() - at)));
    const std::string_view bytes = as_text(window_).substr(static_cast<size_t>(at - window_begin_));
    const size_t data = bytes.find_first_not_of('\0');
    if (data == std::string_view::npos) {
      at += static_cast<int64_t>(bytes.size());
      continue;
    }
    const int64_t found = at + static_cast<int64_t>(data);
    return fail(ErrorCode::kCorruption, "{}: zeros at offset {}, and data behind them at {}: {}", archive_.name(),
                begin, found, found - begin < 2 * kTarBlock ? "a hole?" : "a hole, or joined archives?");
  }
  if (archive_.size() - begin < 2 * kTarBlock) {
    return fail(ErrorCode::kCorruption,
                "{}: the end-of-archive blocks at offset {} have {} bytes instead of {}: it was cut", archive_.name(),
                begin, archive_.size() - begin, 2 * kTarBlock);
  }
  return {};
}

Result<TarView> next_tar_view(std::span<const std::byte> bytes, size_t& at, std::string& name_storage,
                              std::string_view source, int64_t base_offset) {
  const char* const text = as_text(bytes).data();
  const auto view = [text](int64_t offset, int64_t) -> Result<const char*> { return text + offset; };
  ASSIGN_OR_RETURN(const Found found, find_header(view, static_cast<int64_t>(at), static_cast<int64_t>(bytes.size()),
                                                  source, base_offset, name_storage));
  if (found.kind == BlockKind::kZero) {
    return fail(ErrorCode::kCorruption, "{}: zeros at offset {}, where a member must be", source,
                base_offset + found.begin);
  }
  if (found.kind == BlockKind::kOther) {
    return fail(ErrorCode::kUnsupported,
                "{}: member {} at offset {} is no regular file (type '{}') and lies inside a sample", source,
                quoted_member(found.name), base_offset + found.begin, found.type);
  }
  at = static_cast<size_t>(found.end);
  return TarView{found.name, bytes.subspan(static_cast<size_t>(found.data), static_cast<size_t>(found.size))};
}

std::optional<SampleName> split_sample_name(std::string_view member_name) {
  const std::string_view first = member_name.substr(0, member_name.find('/'));
  if (first.size() >= 4 && first.starts_with("__") && first.ends_with("__")) return std::nullopt;
  const size_t slash = member_name.rfind('/');
  const size_t base = slash == std::string_view::npos ? 0 : slash + 1;
  const size_t dot = member_name.find('.', base);
  if (dot == std::string_view::npos) return std::nullopt;
  if (dot == base) {
    // webdataset's pattern then lets the key end in the slash, if the component before it has no dot.
    if (base == 0) return std::nullopt;
    const size_t parent = slash == 0 ? std::string_view::npos : member_name.rfind('/', slash - 1);
    const size_t parent_begin = parent == std::string_view::npos ? 0 : parent + 1;
    if (member_name.substr(parent_begin, slash - parent_begin).find('.') != std::string_view::npos) return std::nullopt;
  }
  SampleName name{member_name.substr(0, dot), std::string(member_name.substr(dot + 1))};
  for (char& c : name.field) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return name;
}

SampleReader::SampleReader(const RandomReader& archive) : archive_(archive), reader_(archive) {}

Result<std::optional<SampleExtent>> SampleReader::next() {
  for (;;) {
    if (!pending_ && !ended_) {
      ASSIGN_OR_RETURN(pending_, reader_.next());
      ended_ = !pending_;
    }
    if (!pending_) break;
    auto name = split_sample_name(pending_->name);
    if (name) {
      if (!sample_.members.empty() && name->key != sample_.key) break;
      RETURN_IF_ERROR(add(std::move(*name)));
    }
    pending_.reset();
  }
  if (sample_.members.empty()) return std::nullopt;
  if (first_fields_.empty()) first_fields_ = sample_.fields;
  if (!std::is_permutation(sample_.fields.begin(), sample_.fields.end(), first_fields_.begin(), first_fields_.end())) {
    return fail(ErrorCode::kCorruption,
                "{}: incomplete sample {} at offset {}: it has the fields {}, the first sample {}", archive_.name(),
                quoted_member(sample_.key), sample_.begin, fmt::join(sample_.fields, " "),
                fmt::join(first_fields_, " "));
  }
  return std::exchange(sample_, {});
}

Status SampleReader::add(SampleName name) {
  if (std::find(sample_.fields.begin(), sample_.fields.end(), name.field) != sample_.fields.end()) {
    return fail(ErrorCode::kCorruption, "{}: member {} at offset {} repeats a field of its sample", archive_.name(),
                quoted_member(pending_->name), pending_->begin);
  }
  if (sample_.members.empty()) {
    sample_.key = name.key;
    sample_.begin = pending_->begin;
  }
  sample_.end = pending_->end;
  sample_.fields.push_back(std::move(name.field));
  sample_.members.push_back(std::move(*pending_));
  return {};
}

Result<size_t> begin_tar_member(std::string& out, std::string_view name) {
  if (name.empty() || name.find('\0') != std::string_view::npos) {
    return fail(ErrorCode::kInvalidArgument, "a tar member cannot be named {}", quoted_member(name));
  }
  std::string_view prefix;
  if (name.size() > kName.size) {
    if (const size_t cut = prefix_length(name); cut != std::string_view::npos) {
      prefix = name.substr(0, cut);
      name.remove_prefix(cut + 1);
    } else {
      const std::string record = pax_path(name);
      begin_header(out, {}, "././@PaxHeader", 'x');
      const size_t begin = out.size();
      out += record;
      end_tar_member(out, begin);
      name = name.substr(0, kName.size);
    }
  }
  begin_header(out, prefix, name, '0');
  return out.size();
}

void end_tar_member(std::string& out, size_t begin) {
  const size_t size = out.size() - begin;
  end_header(out.data() + begin - kTarBlock, size);
  out.append((static_cast<size_t>(kTarBlock) - size % kTarBlock) % kTarBlock, '\0');
}

Status append_tar_member(std::string& out, std::string_view name, std::span<const std::byte> data) {
  ASSIGN_OR_RETURN(const size_t begin, begin_tar_member(out, name));
  out.append(as_text(data));
  end_tar_member(out, begin);
  return {};
}

void append_tar_end(std::string& out) {
  out.append(2 * static_cast<size_t>(kTarBlock), '\0');
}

}  // namespace millrace::formats
