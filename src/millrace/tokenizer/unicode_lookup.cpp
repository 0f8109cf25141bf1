// SPDX-License-Identifier: Apache-2.0
#include <cctype>
#include <map>
#include <string>
#include <vector>

#include "millrace/tokenizer/unicode_data.h"

namespace millrace::tokenizer {
namespace {

constexpr uint32_t kDottedCapitalI = 0x130;

// A bit for each code point, 160 KiB. Built on first use.
class CodePointSet {
 public:
  explicit CodePointSet(Ranges ranges) : words_(kCodePointTableSize / 64) {
    for (const CodePointRange& range : ranges)
      for (uint32_t c = range.first; c <= range.last; ++c) words_[c / 64] |= uint64_t{1} << (c % 64);
  }
  bool contains(uint32_t c) const { return words_[c / 64] >> (c % 64) & 1; }

 private:
  std::vector<uint64_t> words_;
};

std::vector<uint32_t> build_lower() {
  std::vector<uint32_t> lower(kPropertyData.lower.back().c + 1);
  for (uint32_t c = 0; c < lower.size(); ++c) lower[c] = c;
  for (const Lower& pair : kPropertyData.lower) lower[pair.c] = pair.lower;
  return lower;
}

std::vector<uint8_t> build_scripts() {
  std::vector<uint8_t> scripts(kCodePointTableSize, kAnyScript);
  for (const LabelledRange& range : kPropertyData.script_numbers)
    for (uint32_t c = range.first; c <= range.last; ++c) scripts[c] = range.label;
  return scripts;
}

std::string folded(std::string_view name) {
  std::string result;
  for (const char c : name)
    if (c != ' ' && c != '-' && c != '_') result += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return result;
}

using Properties = std::map<std::string, std::vector<CodePointRange>, std::less<>>;

void append_range(std::vector<CodePointRange>& ranges, CodePointRange range) {
  if (!ranges.empty() && ranges.back().last + 1 == range.first)
    ranges.back().last = range.last;
  else
    ranges.push_back(range);
}

// A bit of code_point_classes(), or a class of it, as ranges.
std::vector<CodePointRange> ranges_of_class(uint8_t mask, uint8_t value) {
  std::vector<CodePointRange> ranges;
  const uint8_t* const classes = code_point_classes();
  for (uint32_t c = 0; c < 0x110000; ++c)
    if ((classes[c] & mask) == value) append_range(ranges, {c, c});
  return ranges;
}

Properties build_properties() {
  Properties properties;
  for (const LabelledRange& range : kPropertyData.categories) {
    const std::string name = folded(kPropertyData.category_names[range.label]);
    append_range(properties[name], {range.first, range.last});
    append_range(properties[name.substr(0, 1)], {range.first, range.last});
  }
  for (const NamedRanges& script : kPropertyData.scripts)
    properties[folded(script.name)].assign(script.ranges.begin(), script.ranges.end());
  constexpr std::pair<std::string_view, std::string_view> kLongNames[] = {
      {"letter", "l"}, {"mark", "m"}, {"number", "n"}, {"punctuation", "p"}, {"symbol", "s"}, {"separator", "z"}};
  for (const auto& [name, category] : kLongNames) properties[std::string(name)] = properties.find(category)->second;
  return properties;
}

}  // namespace

bool is_numeric(uint32_t c) {
  static const CodePointSet set(kPropertyData.numeric);
  return set.contains(c);
}
bool is_punctuation(uint32_t c) {
  static const CodePointSet set(kPropertyData.punctuation);
  return set.contains(c);
}
bool is_white_space(uint32_t c) {
  static const CodePointSet set(kPropertyData.white_space);
  return set.contains(c);
}
bool is_bert_removed(uint32_t c) {
  static const CodePointSet set(kPropertyData.bert_removed);
  return set.contains(c);
}
bool is_bert_white_space(uint32_t c) {
  static const CodePointSet set(kPropertyData.bert_space);
  return set.contains(c);
}
bool is_bert_chinese(uint32_t c) {
  static const CodePointSet set(kPropertyData.bert_chinese);
  return set.contains(c);
}
bool is_nonspacing_mark(uint32_t c) {
  static const CodePointSet set(kPropertyData.nonspacing);
  return set.contains(c);
}
bool is_combining_mark(uint32_t c) {
  static const CodePointSet set(kPropertyData.combining);
  return set.contains(c);
}
bool is_cluster_control(uint32_t c) {
  static const CodePointSet set(kPropertyData.control);
  return set.contains(c);
}
bool extends_cluster(uint32_t c) {
  static const CodePointSet set(kPropertyData.extend);
  return set.contains(c);
}
bool prepends_cluster(uint32_t c) {
  static const CodePointSet set(kPropertyData.prepend);
  return set.contains(c);
}
bool is_pictographic(uint32_t c) {
  static const CodePointSet set(kPropertyData.pictographic);
  return set.contains(c);
}

int to_lower(uint32_t c, uint32_t out[2]) {
  static const std::vector<uint32_t> lower = build_lower();
  out[0] = c < lower.size() ? lower[c] : c;
  if (c != kDottedCapitalI) return 1;
  out[0] = 'i';
  out[1] = 0x307;
  return 2;
}

uint8_t script_of(uint32_t c) {
  static const std::vector<uint8_t> scripts = build_scripts();
  return scripts[c];
}

std::span<const CodePointRange> property_ranges(std::string_view name) {
  if (name == "w") return kPropertyData.regex_word;
  if (name == "d") return kPropertyData.regex_digit;
  static const std::vector<CodePointRange> space = ranges_of_class(kClassMask, kSpaceClass);
  if (name == "s") return space;
  static const Properties properties = build_properties();
  const auto found = properties.find(folded(name));
  return found == properties.end() ? std::span<const CodePointRange>() : std::span(found->second);
}

}  // namespace millrace::tokenizer
