// SPDX-License-Identifier: Apache-2.0
#include "millrace/formats/npy.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cstring>
#include <optional>
#include <type_traits>

namespace millrace::formats {
namespace {

static_assert(std::endian::native == std::endian::little, "ids are copied as they lie in the file");

constexpr std::string_view kNpyMagic = "\x93NUMPY";
constexpr size_t kNpyAlignment = 64;
constexpr size_t kMostDimensions = 64;  // of NumPy 2
constexpr size_t kGrowthDigits = 21;    // numpy leaves room to write a longer first dimension in place

// numpy's header. `text` is a Python literal: {'descr': '<u4', 'fortran_order': False, 'shape': (3,), }
class NpyHeader {
 public:
  // Reads the dictionary; false when it is not one of these three keys with values of the right kind.
  bool parse(std::string_view text) {
    rest_ = text;
    if (!take('{')) return false;
    while (!take('}')) {
      std::string_view key;
      if (!take_string(key) || !take(':') || !take_value(key)) return false;
      if (!take(',') && peek() != '}') return false;
    }
    return peek() == '\0' && keys_ == 7;
  }

  std::string_view descr;  // empty for a structured dtype, which is written as a list
  bool fortran_order = false;
  std::vector<uint64_t> shape;

 private:
  char peek() {
    while (!rest_.empty() && (rest_.front() == ' ' || rest_.front() == '\n')) rest_.remove_prefix(1);
    return rest_.empty() ? '\0' : rest_.front();
  }
  bool take(char c) {
    if (peek() != c || rest_.empty()) return false;
    rest_.remove_prefix(1);
    return true;
  }
  bool take_word(std::string_view word) {
    if (peek() == '\0' || !rest_.starts_with(word)) return false;
    rest_.remove_prefix(word.size());
    return true;
  }
  bool take_string(std::string_view& out) {
    const char quote = peek();
    if (quote != '\'' && quote != '"') return false;
    const size_t end = rest_.find(quote, 1);
    if (end == std::string_view::npos) return false;
    out = rest_.substr(1, end - 1);
    rest_.remove_prefix(end + 1);
    return true;
  }
  bool take_value(std::string_view key) {
    if (key == "descr") return mark(1) && (peek() == '[' ? skip_list() : take_string(descr));
    if (key == "fortran_order") {
      fortran_order = take_word("True");
      return mark(2) && (fortran_order || take_word("False"));
    }
    return key == "shape" && mark(4) && take_shape();
  }
  bool mark(unsigned key) {
    const bool first = (keys_ & key) == 0;
    keys_ |= key;
    return first;
  }
  bool skip_list() {
    size_t depth = 0;
    for (size_t i = 0; i < rest_.size(); ++i) {
      depth += rest_[i] == '[' ? 1 : 0;
      depth -= rest_[i] == ']' ? 1 : 0;
      if (depth == 0) {
        rest_.remove_prefix(i + 1);
        return true;
      }
    }
    return false;
  }
  bool take_shape() {
    if (!take('(')) return false;
    while (!take(')')) {
      uint64_t size = 0;
      peek();
      const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), size);
      if (error != std::errc()) return false;
      rest_.remove_prefix(static_cast<size_t>(end - rest_.data()));
      if (shape.size() == kMostDimensions) return false;
      shape.push_back(size);
      if (!take(',') && peek() != ')') return false;
    }
    return true;
  }

  std::string_view rest_;
  unsigned keys_ = 0;  // which were seen
};

// Appends `count` numbers of type T; at the first that is not a 32-bit id, gives its index instead.
template <class T>
std::optional<size_t> append_ids(const std::byte* data, size_t count, std::vector<uint32_t>& ids) {
  const size_t before = ids.size();
  ids.resize(before + count);
  if constexpr (std::is_same_v<T, uint32_t>) {
    if (count != 0) std::memcpy(ids.data() + before, data, count * sizeof(T));
    return std::nullopt;
  }
  const auto wide = [data](size_t i) {
    T value;
    std::memcpy(&value, data + i * sizeof(T), sizeof(T));
    return static_cast<uint64_t>(value);  // sign-extends: a negative id has high bits too
  };
  uint64_t high_bits = 0;
  uint32_t* const out = ids.data() + before;
  for (size_t i = 0; i < count; ++i) {
    const uint64_t value = wide(i);
    high_bits |= value >> 32;
    out[i] = static_cast<uint32_t>(value);
  }
  if (high_bits == 0) return std::nullopt;
  ids.resize(before);
  size_t bad = 0;
  while (wide(bad) >> 32 == 0) ++bad;
  return bad;
}

struct IdType {
  std::string_view descr;
  size_t size;
  std::optional<size_t> (*append)(const std::byte*, size_t, std::vector<uint32_t>&);
};
constexpr std::array<IdType, 8> kIdTypes{{{"<u4", 4, append_ids<uint32_t>},
                                          {"<i4", 4, append_ids<int32_t>},
                                          {"<i8", 8, append_ids<int64_t>},
                                          {"<u8", 8, append_ids<uint64_t>},
                                          {"<u2", 2, append_ids<uint16_t>},
                                          {"<i2", 2, append_ids<int16_t>},
                                          {"|u1", 1, append_ids<uint8_t>},
                                          {"|i1", 1, append_ids<int8_t>}}};

// Length of everything before the data; nullopt when the file is cut or not npy. Sets `header` to the dictionary.
std::optional<size_t> npy_data_offset(std::string_view file, std::string_view& header) {
  if (!file.starts_with(kNpyMagic) || file.size() < 10) return std::nullopt;
  const bool wide = file[6] != 1;  // version 1.0 has two bytes for the length, 2.0 and 3.0 four
  const size_t begin = wide ? 12 : 10;
  uint32_t length = 0;
  if (file.size() < begin) return std::nullopt;
  std::memcpy(&length, file.data() + 8, begin - 8);
  if (length > file.size() - begin) return std::nullopt;
  header = file.substr(begin, length);
  return begin + length;
}

std::string_view dtype_name(const NpyArray& array) {
  return array.descr.empty() ? "(structured)" : array.descr;
}

// A one-dimensional array as the file has it.
Result<NpyArray> open_ids(std::span<const std::byte> file, std::string_view source) {
  ASSIGN_OR_RETURN(NpyArray array, parse_npy(file, source));
  if (array.shape.size() == 1) return array;
  return fail(ErrorCode::kUnsupported, "{}: an array of one dimension is needed, this has {}", source,
              array.shape.size());
}

Status check_size(const NpyArray& array, size_t item_bytes, std::string_view what, std::string_view source) {
  const size_t bytes = array.data.size();
  if (array.shape[0] == bytes / item_bytes && bytes % item_bytes == 0) return {};
  return fail(ErrorCode::kCorruption, "{}: {} {} of {} bytes are stated, {} bytes are there", source, array.shape[0],
              what, item_bytes, bytes);
}

// Around the descr and the length. numpy's spaces in front of the newline leave room for kGrowthDigits digits and then
// align the data: whatever the length, these are as many bytes.
constexpr std::string_view kBeforeDescr("\x93NUMPY\x01\x00\x76\x00{'descr': '", 21);
constexpr std::string_view kBeforeLength = "', 'fortran_order': False, 'shape': (";
constexpr std::string_view kBehindLength = ",), }";
constexpr size_t kUnpadded = kBeforeDescr.size() + 3 + kBeforeLength.size() + kGrowthDigits + kBehindLength.size() + 1;
static_assert((kUnpadded + kNpyAlignment - 1) / kNpyAlignment * kNpyAlignment == kNpyHeaderBytes);
static_assert(kNpyHeaderBytes - kNpyMagic.size() - 4 == 0x76);

// `descr` has three characters.
void append_header(std::string& out, std::string_view descr, size_t length) {
  const size_t at = out.size();
  out.append(kNpyHeaderBytes, ' ');
  char* header = out.data() + at;
  header[kNpyHeaderBytes - 1] = '\n';
  const auto put = [&header](std::string_view text) { header = std::copy(text.begin(), text.end(), header); };
  put(kBeforeDescr);
  put(descr);
  put(kBeforeLength);
  header = std::to_chars(header, header + kGrowthDigits, length).ptr;
  put(kBehindLength);
}

tl::unexpected<Error> bad_json_ids(std::string_view source, size_t at, std::string_view reason) {
  return fail(ErrorCode::kCorruption, "{}: not a JSON list of ids: {} at byte {}", source, reason, at);
}

// The number of digits at the front of `text`, at most 11, and their value. Eight bytes at a time: the digits' count
// costs no branch, which is what makes lists of ids of mixed lengths slow otherwise.
size_t take_digits(std::string_view text, uint64_t& value) {
  size_t digits = 0;
  value = 0;
  if (text.size() >= 8) {
    uint64_t word;
    std::memcpy(&word, text.data(), sizeof(word));
    word ^= 0x3030303030303030;  // a digit is 0 to 9 now
    const uint64_t others = (word | ((word & 0x7F7F7F7F7F7F7F7F) + 0x7676767676767676)) & 0x8080808080808080;
    digits = static_cast<size_t>(std::countr_zero(others)) / 8;
    // The digits move to the word's end, zeros before them; then pairs, fours and eights of digits join.
    word = digits == 0 ? 0 : word << (64 - 8 * digits);
    word = (word * 10 + (word >> 8)) & 0x00FF00FF00FF00FF;
    word = (word * 100 + (word >> 16)) & 0x0000FFFF0000FFFF;
    value = (word * 10000 + (word >> 32)) & 0xFFFFFFFF;
    if (digits < 8) return digits;
  }
  for (; digits < std::min<size_t>(text.size(), 11) && text[digits] >= '0' && text[digits] <= '9'; ++digits) {
    value = value * 10 + static_cast<uint64_t>(text[digits] - '0');
  }
  return digits;
}

bool json_space(char c) {
  return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

}  // namespace

Result<NpyArray> parse_npy(std::span<const std::byte> file, std::string_view source) {
  std::string_view dictionary;
  const std::string_view text = as_text(file);
  if (text.starts_with(kNpyMagic) && text.size() >= 8 && (text[6] < 1 || text[6] > 3 || text[7] != 0)) {
    return fail(ErrorCode::kUnsupported, "{}: .npy version {}.{}", source, std::to_integer<int>(file[6]),
                std::to_integer<int>(file[7]));
  }
  const auto data_offset = npy_data_offset(text, dictionary);
  NpyHeader header;
  if (!data_offset || !header.parse(dictionary)) {
    return fail(ErrorCode::kCorruption, "{}: not a .npy file: {}", source,
                data_offset ? "its header does not parse" : "no magic, or cut in the header");
  }
  return NpyArray{header.descr, header.fortran_order, std::move(header.shape), file.subspan(*data_offset)};
}

std::string npy_header(std::string_view descr, std::span<const uint64_t> shape) {
  std::string dictionary = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}{}), }}", descr,
                                       fmt::join(shape, ", "), shape.size() == 1 ? "," : "");
  constexpr size_t kBefore = 10;  // magic, version, length of the dictionary
  const size_t whole = (kBefore + dictionary.size() + 1 + kNpyAlignment - 1) / kNpyAlignment * kNpyAlignment;
  dictionary.resize(whole - kBefore - 1, ' ');
  dictionary += '\n';
  std::string header(kNpyMagic);
  header.append({'\x01', '\0', static_cast<char>(dictionary.size() & 255), static_cast<char>(dictionary.size() >> 8)});
  return header + dictionary;
}

std::optional<IdsCoding> ids_coding(std::string_view field) {
  const size_t dot = field.rfind('.');
  const std::string_view name = dot == std::string_view::npos ? field : field.substr(dot + 1);
  if (name == "npy") return IdsCoding::kNpy;
  if (name == "json") return IdsCoding::kJson;
  if (name == "u16") return IdsCoding::kU16;
  if (name == "u32") return IdsCoding::kU32;
  return std::nullopt;
}

Status parse_ids(std::string_view field, std::span<const std::byte> data, std::vector<uint32_t>& ids,
                 std::string_view source) {
  const auto coding = ids_coding(field);
  if (!coding) {
    return fail(ErrorCode::kInvalidArgument, "{}: ids are read from fields .npy, .json, .u16 and .u32, not from {}",
                source, field);
  }
  switch (*coding) {
    case IdsCoding::kNpy:
      return parse_npy_ids(data, ids, source);
    case IdsCoding::kJson:
      return parse_json_ids(as_text(data), ids, source);
    case IdsCoding::kU16:
      return parse_raw_ids(data, 2, ids, source);
    case IdsCoding::kU32:
      return parse_raw_ids(data, 4, ids, source);
  }
  return {};
}

std::optional<std::span<const std::byte>> ids_in_place(std::string_view field, std::span<const std::byte> data) {
  const auto coding = ids_coding(field);
  if (coding == IdsCoding::kU32 && data.size() % sizeof(uint32_t) == 0) return data;
  if (coding != IdsCoding::kNpy) return std::nullopt;
  const auto array = open_ids(data, field);
  if (!array || array->descr != "<u4" || !check_size(*array, sizeof(uint32_t), "ids", field)) return std::nullopt;
  return array->data;
}

void append_raw_ids(std::string& out, std::span<const uint32_t> ids, size_t width) {
  if (width == sizeof(uint32_t)) {
    out.append(as_text(std::as_bytes(ids)));
    return;
  }
  const size_t before = out.size();
  out.resize(before + 2 * ids.size());
  char* at = out.data() + before;
  for (const uint32_t id : ids) {
    const auto narrow = static_cast<uint16_t>(id);
    std::memcpy(at, &narrow, sizeof(narrow));
    at += sizeof(narrow);
  }
}

Status parse_raw_ids(std::span<const std::byte> data, size_t width, std::vector<uint32_t>& ids,
                     std::string_view source) {
  if (data.size() % width != 0) {
    return fail(ErrorCode::kCorruption, "{}: {} bytes are not a whole number of ids of {}", source, data.size(), width);
  }
  const size_t before = ids.size();
  ids.resize(before + data.size() / width);
  if (width == sizeof(uint32_t)) {
    if (!data.empty()) std::memcpy(ids.data() + before, data.data(), data.size());
    return {};
  }
  for (size_t i = 0; i < data.size() / width; ++i) {
    uint16_t id;
    std::memcpy(&id, data.data() + i * width, sizeof(id));
    ids[before + i] = id;
  }
  return {};
}

void append_npy_header(std::string& out, size_t count, size_t width) {
  append_header(out, width == sizeof(uint16_t) ? "<u2" : "<u4", count);
}

void append_npy_u32(std::string& out, std::span<const uint32_t> ids) {
  append_npy_header(out, ids.size(), sizeof(uint32_t));
  append_raw_ids(out, ids, sizeof(uint32_t));
}

void append_npy_u8(std::string& out, std::span<const uint8_t> values) {
  append_header(out, "|u1", values.size());
  out.append(as_text(std::as_bytes(values)));
}

Status parse_npy_ids(std::span<const std::byte> file, std::vector<uint32_t>& ids, std::string_view source) {
  ASSIGN_OR_RETURN(const NpyArray array, open_ids(file, source));
  for (const IdType& type : kIdTypes) {
    if (type.descr != array.descr) continue;
    RETURN_IF_ERROR(check_size(array, type.size, "ids", source));
    if (const auto bad = type.append(array.data.data(), array.shape[0], ids)) {
      return fail(ErrorCode::kInvalidArgument, "{}: id number {} is negative or does not fit 32 bits", source, *bad);
    }
    return {};
  }
  return fail(ErrorCode::kUnsupported, "{}: ids of dtype {}; little-endian integers are read", source,
              dtype_name(array));
}

Result<std::span<const uint8_t>> npy_u8_view(std::span<const std::byte> file, std::string_view source) {
  ASSIGN_OR_RETURN(const NpyArray array, open_ids(file, source));
  if (array.descr != "|u1" && array.descr != "|b1") {
    return fail(ErrorCode::kUnsupported, "{}: dtype {}; uint8 or bool is read", source, dtype_name(array));
  }
  RETURN_IF_ERROR(check_size(array, 1, "values", source));
  // SAFETY: uint8_t may look at any byte.
  return std::span(reinterpret_cast<const uint8_t*>(array.data.data()), array.data.size());
}

Status parse_json_ids(std::string_view json, std::vector<uint32_t>& ids, std::string_view source) {
  const size_t before = ids.size();
  const auto give_up = [&](tl::unexpected<Error> error) {
    ids.resize(before);
    return Status(std::move(error));
  };
  const char* const begin = json.data();
  const char* const end = begin + json.size();
  const char* at = begin;
  const auto skip_space = [&] {
    while (at != end && json_space(*at)) ++at;
    return at == end ? '\0' : *at;
  };
  const auto place = [&] { return static_cast<size_t>(at - begin); };
  if (skip_space() != '[') return give_up(bad_json_ids(source, place(), "'[' is missing"));
  ++at;
  for (bool first = true;; first = false) {
    char c = skip_space();
    if (first && c == ']') break;
    uint64_t id = 0;
    const size_t digits = take_digits({at, static_cast<size_t>(end - at)}, id);
    if (c == '-' || id > UINT32_MAX) {
      return give_up(fail(ErrorCode::kInvalidArgument, "{}: the id at byte {} is negative or does not fit 32 bits",
                          source, place()));
    }
    if (digits == 0 || (c == '0' && digits > 1)) return give_up(bad_json_ids(source, place(), "an integer is missing"));
    at += digits;
    ids.push_back(static_cast<uint32_t>(id));
    c = skip_space();
    if (c == ']') break;
    if (c != ',') return give_up(bad_json_ids(source, place(), at == end ? "it is cut" : "',' or ']' is missing"));
    ++at;
  }
  ++at;
  skip_space();
  if (at != end) return give_up(bad_json_ids(source, place(), "something follows the list"));
  return {};
}

void append_json_ids(std::string& out, std::span<const uint32_t> ids) {
  constexpr size_t kLongest = 12;  // "4294967295, "
  const size_t before = out.size();
  out.resize(before + 2 + ids.size() * kLongest);
  char* at = out.data() + before;
  *at++ = '[';
  for (const uint32_t id : ids) {
    at = std::to_chars(at, at + kLongest, id).ptr;
    *at++ = ',';
    *at++ = ' ';
  }
  if (!ids.empty()) at -= 2;
  *at++ = ']';
  out.resize(static_cast<size_t>(at - out.data()));
}

}  // namespace millrace::formats
