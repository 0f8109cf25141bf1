// SPDX-License-Identifier: Apache-2.0
// The first byte chooses options or a reader, the others are the file. Whatever the bytes, a CSV file is refused with a
// place, or gives rows that read the same when they are written plainly again; NPZ and packed files are refused or read
// within their bounds.
#include <fmt/format.h>

#include <array>
#include <cmath>

#include "invariants.h"
#include "millrace/episodes/npz_file.h"
#include "millrace/formats/csv.h"
#include "millrace/formats/episode_pack.h"
#include "millrace/formats/npz.h"

namespace {

using namespace millrace;
using namespace millrace::formats;
using tokenizer::require;

struct ReadFile {
  CsvHead head;
  std::vector<CsvType> types;
  CsvTable<double> table;
};

Result<ReadFile> read_file(std::string_view text, const CsvOptions& options) {
  ReadFile file;
  ASSIGN_OR_RETURN(file.head, read_csv_head(text, "a.csv", options));
  file.types.resize(file.head.names.size());
  RETURN_IF_ERROR(infer_csv_types(text, "a.csv", file.head, options, file.types));
  ASSIGN_OR_RETURN(file.table, read_csv<double>(text, "a.csv", file.head, file.types, options));
  return file;
}

std::string quoted(std::string_view cell) {
  std::string out = "\"";
  for (const char c : cell) out += c == '"' ? std::string("\"\"") : std::string(1, c);
  return out + "\"";
}

// Every name and text in quotes, every number with 17 digits.
std::string written(const ReadFile& file) {
  std::string out;
  for (const std::string& name : file.head.names) out += quoted(name) + ",";
  out.back() = '\n';
  size_t number = 0;
  for (size_t row = 0; row < static_cast<size_t>(file.table.rows); ++row) {
    size_t text = 0;
    for (const CsvType type : file.types) {
      out += type == CsvType::kNumber ? fmt::format("{:.17g}", file.table.numbers[number++])
                                      : quoted(file.table.texts[text++][row]);
      out += ',';
    }
    out.back() = '\n';
  }
  return out;
}

bool is_equal(double a, double b) {
  return a == b || (std::isnan(a) && std::isnan(b));
}

bool csv(std::string_view text, CsvOptions options) {
  const auto file = read_file(text, options);
  if (!file) {
    require(file.error().message().starts_with("a.csv:"), "an error names the file");
    return false;
  }
  const CsvTable<double>& table = file->table;
  for (const CsvTexts& texts : table.texts) {
    require(static_cast<int64_t>(texts.ends.size()) == table.rows, "a text column has a cell for each row");
  }
  CsvOptions plain{.delimiter = ',', .header = CsvHeader::kYes};
  for (size_t i = 0; i < file->types.size(); ++i) {
    if (file->types[i] != CsvType::kNumber) plain.text_columns.push_back(file->head.names[i]);
  }
  const auto again = read_file(written(*file), plain);
  require(again && again->head.names == file->head.names && again->table.rows == table.rows, "rows read as written");
  require(std::ranges::equal(again->table.numbers, table.numbers, is_equal), "numbers read as written");
  for (size_t i = 0; i < table.texts.size(); ++i) {
    require(again->table.texts[i].bytes == table.texts[i].bytes, "texts read as written");
  }
  return true;
}

bool npz(std::string_view file) {
  return episodes::parse_npz_episode(as_bytes(file), "a.npz").has_value();
}

// Behind checksums that are right, which would keep nearly every change of an index from being looked at.
bool pack(std::string_view file) {
  static_cast<void>(EpisodePack::parse(as_bytes(file), "a"));
  if (file.size() < 128) return false;
  std::string sealed(file);
  const auto put_at = [&](size_t at, uint64_t value) {
    sealed.replace(at, 8, as_text(std::as_bytes(std::span(&value, 1))));
  };
  const size_t foot = sealed.size() - 64;
  uint64_t index = 0;
  std::memcpy(&index, sealed.data() + foot, sizeof index);
  index = 64 + index % (foot - 63);
  const Hash128 hash = xxh3_128(std::string_view(sealed).substr(index, foot - index));
  put_at(foot, index);
  put_at(foot + 8, foot - index);
  put_at(foot + 16, hash.high);
  put_at(foot + 24, hash.low);
  put_at(foot + 48, xxh3_64(std::string_view(sealed).substr(foot, 48)));
  sealed.replace(foot + 56, 8, "MLREPEND");
  sealed.replace(0, 12, std::string_view("MLREPISO\x01\0\0\0", 12));
  for (size_t at = 0, block = 0; at < index && index + 8 * block + 8 <= foot; at += 65536, ++block) {
    put_at(index + 8 * block, xxh3_64(std::string_view(sealed).substr(at, std::min<size_t>(65536, index - at))));
  }
  const Hash128 again = xxh3_128(std::string_view(sealed).substr(index, foot - index));
  put_at(foot + 16, again.high);
  put_at(foot + 24, again.low);
  put_at(foot + 48, xxh3_64(std::string_view(sealed).substr(foot, 48)));
  const auto read = EpisodePack::parse(as_bytes(sealed), "a");
  if (!read) return false;
  require((*read)->check_rows(0, (*read)->rows()).has_value(), "blocks match their new hashes");
  for (size_t i = 0; i < (*read)->columns().texts.size(); ++i) static_cast<void>((*read)->texts(i, 0, (*read)->rows()));
  return true;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return -1;
  // SAFETY: char may alias any object.
  const std::string_view file(reinterpret_cast<const char*>(data) + 1, size - 1);
  const unsigned choice = data[0] % 8;
  if (choice == 6) return npz(file) ? 0 : -1;
  if (choice == 7) return pack(file) ? 0 : -1;
  const std::array<CsvOptions, 6> options{CsvOptions{},
                                          CsvOptions{.decimal = ','},
                                          CsvOptions{.header = CsvHeader::kNo},
                                          CsvOptions{.header = CsvHeader::kYes, .empty_is_nan = true},
                                          CsvOptions{.delimiter = ' '},
                                          CsvOptions{.text_columns = {"a", "c0"}}};
  return csv(file, options[choice]) ? 0 : -1;
}
