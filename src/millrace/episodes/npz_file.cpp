// SPDX-License-Identifier: Apache-2.0
#include "millrace/episodes/npz_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>

#include "millrace/base/text/utf8.h"
#include "millrace/formats/npy.h"
#include "millrace/formats/npz.h"

namespace millrace::episodes {
namespace {

constexpr std::string_view kCommentHead = "millrace episodes 1 ";
constexpr std::string_view kTextHead = "text/";

// NumPy's '<U': every string as long as the longest, in UTF-32, with zeros behind it.
struct Utf32Strings {
  std::string descr;
  std::vector<char32_t> characters;
};

// REQUIRES: `text` is valid UTF-8.
void append_code_points(std::string_view text, std::vector<char32_t>& out) {
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x80) {
      out.push_back(byte);
    } else if (byte < 0xC0) {
      out.back() = out.back() << 6 | (byte & 0x3F);
    } else {
      out.push_back(byte & (byte < 0xE0 ? 0x1F : byte < 0xF0 ? 0x0F : 0x07));
    }
  }
}

size_t count_code_points(std::string_view text) {
  return static_cast<size_t>(std::ranges::count_if(text, [](char c) { return (c & 0xC0) != 0x80; }));
}

template <class At>
Utf32Strings to_utf32(size_t count, const At& at) {
  size_t longest = 1;
  for (size_t i = 0; i < count; ++i) longest = std::max(longest, count_code_points(at(i)));
  Utf32Strings strings{fmt::format("<U{}", longest), {}};
  strings.characters.reserve(count * longest);
  for (size_t i = 0; i < count; ++i) {
    append_code_points(at(i), strings.characters);
    strings.characters.resize((i + 1) * longest, U'\0');
  }
  return strings;
}

// The strings of a '<U' array of one dimension; nullopt when it is none.
std::optional<formats::CsvTexts> from_utf32(const formats::NpyArray& array) {
  if (!array.descr.starts_with("<U") || array.shape.size() != 1) return std::nullopt;
  uint64_t width = 0;
  const char* const end = array.descr.data() + array.descr.size();
  if (std::from_chars(array.descr.data() + 2, end, width).ptr != end) return std::nullopt;
  const uint64_t count = array.shape[0], characters = array.data.size() / 4;
  if (width == 0 || count > characters || count * width != characters || array.data.size() % 4 != 0) {
    return count == 0 && array.data.empty() ? std::optional(formats::CsvTexts()) : std::nullopt;
  }
  formats::CsvTexts texts;
  for (uint64_t i = 0; i < count; ++i) {
    for (uint64_t j = 0; j < width; ++j) {
      char32_t character;
      std::memcpy(&character, array.data.data() + 4 * (i * width + j), sizeof character);
      if (character == 0) break;
      if (character > 0x10FFFF || (character >= 0xD800 && character < 0xE000)) return std::nullopt;
      append_utf8(character, texts.bytes);
    }
    texts.ends.push_back(texts.bytes.size());
  }
  return texts;
}

tl::unexpected<Error> not_ours(std::string_view source, std::string_view why) {
  return fail(ErrorCode::kUnsupported, "{}: {}, so it is no NPZ file of `millrace episodes convert`", source, why);
}

Result<formats::CsvTexts> read_strings(const formats::NpzMember& member, std::string_view source) {
  ASSIGN_OR_RETURN(const std::string npy, formats::unpack_npz_member(member, source));
  ASSIGN_OR_RETURN(const formats::NpyArray array, formats::parse_npy(as_bytes(npy), source));
  auto strings = from_utf32(array);
  if (!strings) return not_ours(source, fmt::format("member {} is no list of texts", member.name));
  return *std::move(strings);
}

Status read_numbers(const formats::NpzMember& member, std::string_view source, NpzEpisode& episode) {
  std::span<const std::byte> npy = member.data;
  // SAFETY: only the address is looked at. Other programs do not align members.
  const bool aligned = reinterpret_cast<uintptr_t>(npy.data()) % sizeof(double) == 0;
  if (member.compressed || !aligned) {
    ASSIGN_OR_RETURN(std::string unpacked, formats::unpack_npz_member(member, source));
    episode.unpacked = std::make_shared<const std::string>(std::move(unpacked));
    npy = as_bytes(*episode.unpacked);
  } else {
    RETURN_IF_ERROR(formats::check_npz_member(member, source));
  }
  ASSIGN_OR_RETURN(const formats::NpyArray array, formats::parse_npy(npy, source));
  episode.columns.is_float64 = array.descr == "<f8";
  if (array.shape.size() != 2 || array.fortran_order || (array.descr != "<f4" && array.descr != "<f8")) {
    return not_ours(source, "its data is no matrix of floats");
  }
  const size_t row_bytes = episode.columns.row_bytes();
  const bool fits =
      array.shape[1] == episode.columns.numbers.size() &&
      (row_bytes == 0 ? array.data.empty()
                      : array.data.size() % row_bytes == 0 && array.data.size() / row_bytes == array.shape[0]);
  if (!fits || array.shape[0] > INT64_MAX) return fail(ErrorCode::kCorruption, "{}: its data is cut", source);
  episode.rows = static_cast<int64_t>(array.shape[0]);
  episode.numbers = array.data;
  return {};
}

}  // namespace

Result<std::string> npz_of_episode(const CsvEpisode& episode, const formats::EpisodeColumns& columns, Hash128 identity,
                                   bool compress) {
  const Utf32Strings names = to_utf32(columns.numbers.size(), [&](size_t i) { return columns.numbers[i]; });
  const auto rows = static_cast<uint64_t>(episode.rows);
  std::vector<formats::NpzArray> arrays{
      {"data", columns.is_float64 ? "<f8" : "<f4", {rows, columns.numbers.size()}, episode.numbers},
      {"columns", names.descr, {columns.numbers.size()}, std::as_bytes(std::span(names.characters))}};
  std::vector<Utf32Strings> texts;
  texts.reserve(columns.texts.size());  // arrays point into them
  for (size_t i = 0; i < columns.texts.size(); ++i) {
    if (columns.texts[i].find('/') != std::string::npos) {
      return fail(ErrorCode::kUnsupported,
                  "text column {}: a name with '/' cannot be a member: rename it, or use --to "
                  "packed",
                  columns.texts[i]);
    }
    texts.push_back(to_utf32(rows, [&](size_t row) { return episode.texts[i][row]; }));
    arrays.push_back({std::string(kTextHead) + columns.texts[i],
                      texts.back().descr,
                      {rows},
                      std::as_bytes(std::span(texts.back().characters))});
  }
  return formats::write_npz(arrays, std::string(kCommentHead) + to_hex(identity), compress);
}

std::optional<Hash128> npz_identity(std::string_view tail) {
  const std::string_view comment = formats::npz_comment(tail);
  if (!comment.starts_with(kCommentHead)) return std::nullopt;
  return hash128_from_hex(comment.substr(kCommentHead.size()));
}

Result<NpzEpisode> parse_npz_episode(std::span<const std::byte> file, std::string_view source) {
  ASSIGN_OR_RETURN(const formats::NpzFile npz, formats::parse_npz(file, source));
  NpzEpisode episode;
  const formats::NpzMember* const data = npz.find("data.npy");
  const formats::NpzMember* const names = npz.find("columns.npy");
  if (data == nullptr || names == nullptr) return not_ours(source, "it has no members \"data\" and \"columns\"");
  ASSIGN_OR_RETURN(const formats::CsvTexts columns, read_strings(*names, source));
  for (size_t i = 0; i < columns.ends.size(); ++i) episode.columns.numbers.emplace_back(columns[i]);
  RETURN_IF_ERROR(read_numbers(*data, source, episode));
  for (const formats::NpzMember& member : npz.members) {
    if (!member.name.starts_with(kTextHead) || !member.name.ends_with(".npy")) continue;
    const std::string_view name = member.name.substr(kTextHead.size());
    episode.columns.texts.emplace_back(name.substr(0, name.size() - 4));
    ASSIGN_OR_RETURN(formats::CsvTexts texts, read_strings(member, source));
    if (texts.ends.size() != static_cast<size_t>(episode.rows)) {
      return fail(ErrorCode::kCorruption, "{}: {} has another length than the data", source, member.name);
    }
    episode.texts.push_back(std::move(texts));
  }
  return episode;
}

}  // namespace millrace::episodes
