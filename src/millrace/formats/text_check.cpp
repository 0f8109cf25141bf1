// SPDX-License-Identifier: Apache-2.0
#include "millrace/formats/text_check.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <optional>
#include <string>

#include "millrace/base/text/utf8.h"

namespace millrace::formats {
namespace {

using std::string_view_literals::operator""sv;

struct Magic {
  std::string_view bytes;
  std::string_view format;
  std::string_view way_out;
  size_t offset = 0;
};

constexpr std::string_view kToTable = "write it as Parquet or jsonl";
constexpr std::string_view kToUtf8 = "convert it to UTF-8 (iconv -f UTF-16 -t UTF-8)";
constexpr std::string_view kNoText = "only text, jsonl and Parquet can be read";

// A longer mark comes before one that it begins with.
constexpr std::array kOtherFormats{
    Magic{"\xFD"
          "7zXZ\0"sv,
          "an .xz file", "unpack it (xz -d), or pack it with zstd or gzip"},
    Magic{"BZh"sv, "a .bz2 file", "unpack it (bzip2 -d), or pack it with zstd or gzip"},
    Magic{"PK\x03\x04"sv, "a .zip file", "unpack it (unzip)"},
    Magic{"PK\x05\x06"sv, "a .zip file", "unpack it (unzip)"},
    Magic{"7z\xBC\xAF\x27\x1C"sv, "a .7z file", "unpack it (7z x)"},
    Magic{"Rar!\x1A\x07"sv, "a .rar file", "unpack it (unrar x)"},
    Magic{"\x04\x22\x4D\x18"sv, "an .lz4 file", "unpack it (lz4 -d), or pack it with zstd or gzip"},
    Magic{"\xFF\x06\x00\x00sNaPpY"sv, "a Snappy file", "unpack it, or pack it with zstd or gzip"},
    Magic{"\x1F\x9D"sv, "a .Z file", "unpack it (gzip -d)"},
    Magic{"ustar"sv, "a tar archive", "unpack it (tar -xf)", 257},
    Magic{"\xFF\xFE\x00\x00"sv, "UTF-32 text", "convert it to UTF-8 (iconv -f UTF-32 -t UTF-8)"},
    Magic{"\x00\x00\xFE\xFF"sv, "UTF-32 text", "convert it to UTF-8 (iconv -f UTF-32 -t UTF-8)"},
    Magic{"\xFF\xFE"sv, "UTF-16 text", kToUtf8},
    Magic{"\xFE\xFF"sv, "UTF-16 text", kToUtf8},
    Magic{"ARROW1\0\0"sv, "an Arrow file", kToTable},
    Magic{"FEA1"sv, "a Feather file", kToTable},
    Magic{"ORC\n"sv, "an ORC table", kToTable},
    Magic{"Obj\x01"sv, "an Avro file", kToTable},
    Magic{"SQLite format 3\0"sv, "an SQLite database", kToTable},
    Magic{"\x89HDF\r\n\x1A\n"sv, "an HDF5 file", kToTable},
    Magic{"\x93NUMPY"sv, "a NumPy array", kNoText},
    Magic{"%PDF-"sv, "a PDF document", "extract its text (pdftotext)"},
    Magic{"\x89PNG\r\n"sv, "a PNG image", kNoText},
    Magic{"\xFF\xD8\xFF"sv, "a JPEG image", kNoText},
    Magic{"\x7F"
          "ELF"sv,
          "a program", kNoText},
    Magic{"version https://git-lfs.github.com/spec/"sv, "a Git LFS pointer",
          "fetch the file it stands for (git lfs pull)"},
};

// A bzip2 file has a block's mark (pi), or that of its end, behind the digit of its level: "BZh" alone may begin a
// text.
bool is_bzip2(std::string_view head) {
  if (head.size() < 5 || head[3] < '1' || head[3] > '9') return false;
  return head.substr(4).starts_with("\x31\x41\x59\x26") || head.substr(4).starts_with("\x17\x72\x45\x38");
}

bool is_of(const Magic& magic, std::string_view head) {
  if (head.size() < magic.offset || !head.substr(magic.offset).starts_with(magic.bytes)) return false;
  return magic.bytes != "BZh" || is_bzip2(head);
}

// Half a character at the end of a head belongs to what follows.
std::string_view whole_characters(std::string_view head) {
  for (size_t back = 1; back <= std::min<size_t>(3, head.size()); ++back) {
    const auto byte = static_cast<unsigned char>(head[head.size() - back]);
    if (byte >= 0xC0) return head.substr(0, head.size() - back);
    if (byte < 0x80) break;
  }
  return head;
}

std::string_view past(std::string_view text, std::string_view characters) {
  return text.substr(std::min(text.find_first_not_of(characters), text.size()));
}

constexpr std::string_view kJsonSpace = " \t\r\n";

struct JsonHead {
  bool array = false;
  std::string_view object;  // from its '{' on
};

// The start of a JSON object, or of a list of them: {"name": ...
std::optional<JsonHead> json_head(std::string_view text) {
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  text = past(text, kJsonSpace);
  JsonHead head;
  head.array = text.starts_with('[');
  if (head.array) text = past(text.substr(1), kJsonSpace);
  head.object = text;
  if (!text.starts_with('{')) return std::nullopt;
  text = past(text.substr(1), kJsonSpace);
  if (!text.starts_with('"')) return std::nullopt;
  size_t end = 1;
  while (end < text.size() && text[end] != '"') end += text[end] == '\\' ? 2 : 1;
  if (end >= text.size()) return std::nullopt;
  return past(text.substr(end + 1), kJsonSpace).starts_with(':') ? std::optional(head) : std::nullopt;
}

// " (its fields: id, text)" for a line that can be read; else "".
std::string fields_of(std::string_view object) {
  const std::string line(object.substr(0, object.find('\n')));
  simdjson::dom::parser parser;
  simdjson::dom::object members;
  if (parser.parse(line).get(members) != simdjson::SUCCESS) return {};
  std::string names;
  size_t count = 0;
  for (const auto& [key, value] : members) {
    if (++count > 10) return fmt::format(" (its fields: {}, ...)", names);
    names += (names.empty() ? "" : ", ") + std::string(key);
  }
  return fmt::format(" (its fields: {})", names);
}

Status check_json(std::string_view name, std::string_view head, DocumentMode mode, const TextRules& rules) {
  if (rules.json_as_text || mode == DocumentMode::kFile) return {};
  const std::optional<JsonHead> json = json_head(head);
  if (!json) return {};
  if (json->array) {
    return fail(ErrorCode::kInvalidArgument,
                "{}: it is one JSON array, and JSON is read as an object a line (jsonl): write it so (jq -c '.[]')",
                name);
  }
  if (mode == DocumentMode::kJsonl) return {};
  return fail(
      ErrorCode::kInvalidArgument,
      "{}: it begins with a JSON object{}, whose names and braces would be trained on; take a field of each line "
      "(--documents jsonl --text-field NAME), or say that this is meant (--json-as-text)",
      name, fields_of(json->object));
}

// UTF-16 without a byte order mark has a NUL beside every ASCII character, and is valid UTF-8.
Status check_nuls(std::string_view name, std::string_view head, double max_share) {
  std::array<size_t, 2> nuls{};
  for (size_t i = 0; i < head.size(); ++i) nuls[i % 2] += head[i] == '\0' ? 1 : 0;
  const size_t all = nuls[0] + nuls[1];
  if (static_cast<double>(all) <= max_share * static_cast<double>(head.size())) return {};
  const bool every_other = 4 * std::max(nuls[0], nuls[1]) > head.size() && 4 * std::min(nuls[0], nuls[1]) < all;
  return fail(ErrorCode::kInvalidArgument, "{}: {} of its first {} bytes are NUL, so it is not UTF-8 text; {}", name,
              all, head.size(), every_other ? kToUtf8 : kNoText);
}

}  // namespace

Status refuse_other_format(std::string_view name, std::string_view head) {
  if (head.starts_with("PAR1")) {
    return fail(ErrorCode::kCorruption,
                "{}: it begins as a Parquet table and does not end as one, so it is cut; copy it again", name);
  }
  const auto found = std::ranges::find_if(kOtherFormats, [&](const Magic& magic) { return is_of(magic, head); });
  if (found == kOtherFormats.end()) return {};
  return fail(ErrorCode::kInvalidArgument, "{}: it is {}, no text; {}", name, found->format, found->way_out);
}

Status check_text(std::string_view name, std::string_view head, bool whole, DocumentMode mode, const TextRules& rules) {
  RETURN_IF_ERROR(refuse_other_format(name, head.substr(0, kOtherFormatHead)));
  if (!whole) head = whole_characters(head);
  RETURN_IF_ERROR(check_nuls(name, head, rules.max_invalid_utf8));
  if (!is_utf8(head)) {
    std::string repaired;
    const int64_t invalid = append_utf8_replaced(head, repaired);
    RETURN_IF_ERROR(check_invalid_utf8(name, invalid, static_cast<int64_t>(head.size()), rules.max_invalid_utf8));
  }
  return check_json(name, head, mode, rules);
}

Status check_invalid_utf8(std::string_view name, int64_t invalid, int64_t bytes, double max_share) {
  constexpr int64_t kAFew = 10;
  if (invalid <= kAFew || static_cast<double>(invalid) <= max_share * static_cast<double>(bytes)) return {};
  return fail(
      ErrorCode::kInvalidArgument,
      "{}: {} sequences in {} bytes are not UTF-8, more than a share of {}; convert it (iconv -f WINDOWS-1252 -t "
      "UTF-8, if that is what it is), or take it with U+FFFD for each (--max-invalid 1)",
      name, invalid, bytes, max_share);
}

}  // namespace millrace::formats
