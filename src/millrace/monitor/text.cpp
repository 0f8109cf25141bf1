// SPDX-License-Identifier: Apache-2.0
#include "millrace/monitor/text.h"

#include <algorithm>
#include <cstdlib>

#include "millrace/base/io/file_text.h"

namespace millrace::monitor {

namespace {

std::vector<std::string_view> split(std::string_view text, std::string_view separators) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const size_t end = std::min(text.find_first_of(separators), text.size());
    if (end > 0) parts.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

}  // namespace

std::optional<double> to_number(std::string_view text) {
  const std::string word(text.substr(0, text.find_first_of(" \n\t:")));
  char* end = nullptr;
  const double value = std::strtod(word.c_str(), &end);
  if (word.empty() || *end != '\0' || word.find_first_not_of("0123456789.-") != std::string::npos) return std::nullopt;
  return value;
}

std::optional<double> read_number(const std::filesystem::path& path) {
  const auto text = read_text(path);
  return text ? to_number(*text) : std::nullopt;
}

std::vector<std::string_view> lines_of(std::string_view text) {
  return split(text, "\n");
}
std::vector<std::string_view> words_of(std::string_view line) {
  return split(line, " \t");
}

std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    names.push_back(at->path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace millrace::monitor
