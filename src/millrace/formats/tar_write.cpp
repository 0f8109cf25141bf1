// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "millrace/formats/detail/tar_block.h"
#include "millrace/formats/tar.h"

namespace millrace::formats {

namespace tar {

namespace {

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

// The '/' at which ustar can split a long name, with at most 155 bytes before it and 1 to 100 behind; npos without one.
size_t prefix_length(std::string_view name) {
  const size_t slash = name.find('/', std::max<size_t>(name.size() - kName.size - 1, 1));
  return slash <= kPrefix.size && slash + 1 < name.size() ? slash : std::string_view::npos;
}

// "length path=name\n", where the length counts its own digits.
std::string pax_path(std::string_view name) {
  const size_t rest = name.size() + std::strlen(" path=\n");
  size_t length = rest + 1;
  while (length != rest + fmt::formatted_size("{}", length)) length = rest + fmt::formatted_size("{}", length);
  return fmt::format("{} path={}\n", length, name);
}

}  // namespace

}  // namespace tar

Result<size_t> begin_tar_member(std::string& out, std::string_view name) {
  if (name.empty() || name.find('\0') != std::string_view::npos) {
    return fail(ErrorCode::kInvalidArgument, "a tar member cannot be named {}", tar::quoted_member(name));
  }
  std::string_view prefix;
  if (name.size() > tar::kName.size) {
    if (const size_t cut = tar::prefix_length(name); cut != std::string_view::npos) {
      prefix = name.substr(0, cut);
      name.remove_prefix(cut + 1);
    } else {
      const std::string record = tar::pax_path(name);
      tar::begin_header(out, {}, "././@PaxHeader", 'x');
      const size_t begin = out.size();
      out += record;
      end_tar_member(out, begin);
      name = name.substr(0, tar::kName.size);
    }
  }
  tar::begin_header(out, prefix, name, '0');
  return out.size();
}

void end_tar_member(std::string& out, size_t begin) {
  const size_t size = out.size() - begin;
  tar::end_header(out.data() + begin - kTarBlock, size);
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
