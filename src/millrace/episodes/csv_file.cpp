// SPDX-License-Identifier: Apache-2.0
#include "millrace/episodes/csv_file.h"

#include <algorithm>

#include "millrace/storage/url.h"

namespace millrace::episodes {
namespace {

template <class T>
Result<CsvEpisode> parse_as(std::string_view text, std::string_view name, const formats::CsvHead& head,
                            const CsvSchema& schema, const formats::CsvOptions& options) {
  ASSIGN_OR_RETURN(formats::CsvTable<T> table, formats::read_csv<T>(text, name, head, schema.types, options));
  CsvEpisode episode{.rows = table.rows, .texts = std::move(table.texts), .rounded = std::move(table.rounded)};
  const auto numbers = std::make_shared<const std::vector<T>>(std::move(table.numbers));
  episode.numbers = std::as_bytes(std::span(*numbers));
  episode.owner = numbers;
  return episode;
}

constexpr int64_t kMostCsvBytes = int64_t{16} << 30;
// What each thread keeps.
constexpr size_t kReusedBytes = size_t{4} << 20;

std::span<char> reused_memory(size_t bytes) {
  thread_local std::unique_ptr<char[]> memory;
  thread_local size_t size = 0;
  if (size < bytes) {
    size = std::min(kReusedBytes, 2 * bytes);
    memory = std::make_unique_for_overwrite<char[]>(size);
  }
  return {memory.get(), bytes};
}

}  // namespace

Result<CsvText> CsvText::read(const std::string& url) {
  ASSIGN_OR_RETURN(const Location at, open_url(url));
  ASSIGN_OR_RETURN(const auto file, at.storage->open_read(at.key));
  RETURN_IF_ERROR(check_size(*file, kMostCsvBytes));
  const auto bytes = static_cast<size_t>(file->size());
  CsvText text;
  if (bytes > kReusedBytes) text.own_ = std::make_unique_for_overwrite<char[]>(bytes);
  const std::span<char> memory = text.own_ ? std::span(text.own_.get(), bytes) : reused_memory(bytes);
  RETURN_IF_ERROR(file->read_at(0, std::as_writable_bytes(memory)));
  text.text_ = {memory.data(), memory.size()};
  return text;
}

bool CsvSchema::is_decided() const {
  return std::ranges::find(types, formats::CsvType::kUnknown) == types.end();
}

formats::EpisodeColumns CsvSchema::columns(bool is_float64) const {
  formats::EpisodeColumns columns{.is_float64 = is_float64};
  for (size_t i = 0; i < names.size(); ++i) {
    (types[i] == formats::CsvType::kNumber ? columns.numbers : columns.texts).push_back(names[i]);
  }
  return columns;
}

Result<CsvEpisode> parse_csv_episode(std::string_view text, std::string_view name, const formats::CsvHead& head,
                                     const CsvSchema& schema, bool is_float64, const formats::CsvOptions& options) {
  return is_float64 ? parse_as<double>(text, name, head, schema, options)
                    : parse_as<float>(text, name, head, schema, options);
}

}  // namespace millrace::episodes
