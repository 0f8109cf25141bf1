// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cctype>
#include <map>
#include <string>
#include <vector>

#include "millrace/tokenizer/text/unicode_data.h"

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
  std::vector<uint32_t> lower(kPropertyData.lower.back().last + 1);
  for (uint32_t c = 0; c < lower.size(); ++c) lower[c] = c;
  for (const LowerRun& run : kPropertyData.lower)
    for (uint32_t c = run.first; c <= run.last; c += run.step) lower[c] = c + static_cast<uint32_t>(run.distance);
  return lower;
}

std::vector<uint8_t> build_labels(Runs runs) {
  std::vector<uint8_t> labels(kCodePointTableSize);
  for_each_run(runs, [&](uint32_t first, uint32_t last, uint8_t label) {
    std::fill(labels.begin() + first, labels.begin() + last + 1, label);
  });
  return labels;
}

std::vector<uint8_t> build_cluster_classes() {
  auto classes = build_labels(kPropertyData.clusters);
  constexpr uint32_t kFirst = 0xAC00, kLast = 0xD7A3, kPeriod = 28;
  for (uint32_t c = kFirst; c <= kLast; ++c)
    classes[c] = static_cast<uint8_t>((c - kFirst) % kPeriod == 0 ? ClusterClass::kLeadVowel : ClusterClass::kSyllable);
  return classes;
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

// A class of code_point_classes() as ranges.
std::vector<CodePointRange> ranges_of_class(uint8_t value) {
  std::vector<CodePointRange> ranges;
  const uint8_t* const classes = code_point_classes();
  for (uint32_t c = 0; c < 0x110000; ++c)
    if ((classes[c] & kClassMask) == value) append_range(ranges, {c, c});
  return ranges;
}

// The code points that are in an odd number of the sorted range lists: toggled at each start and behind each end.
std::vector<CodePointRange> in_odd_number(std::span<const Ranges> lists) {
  std::vector<uint32_t> toggles;
  for (const Ranges& list : lists)
    for (const CodePointRange& range : list) toggles.insert(toggles.end(), {range.first, range.last + 1});
  std::sort(toggles.begin(), toggles.end());
  std::vector<CodePointRange> ranges;
  for (size_t i = 0; i + 1 < toggles.size(); i += 2)
    if (toggles[i] < toggles[i + 1]) append_range(ranges, {toggles[i], toggles[i + 1] - 1});
  return ranges;
}

void add_categories(Properties& properties) {
  for_each_run(kPropertyData.categories, [&](uint32_t first, uint32_t last, uint8_t label) {
    if (label == kNoLabel) return;
    const CategoryName& names = kPropertyData.category_names[label];
    const std::string name = folded(names.name);
    append_range(properties[name], {first, last});
    append_range(properties[folded(names.long_name)], {first, last});
    append_range(properties[name.substr(0, 1)], {first, last});
    if (name == "lu" || name == "ll" || name == "lt") append_range(properties["lc"], {first, last});
  });
  constexpr std::pair<std::string_view, std::string_view> kLongNames[] = {
      {"letter", "l"},      {"casedletter", "lc"}, {"mark", "m"},      {"combiningmark", "m"}, {"number", "n"},
      {"punctuation", "p"}, {"symbol", "s"},       {"separator", "z"}, {"other", "c"}};
  for (const auto& [name, category] : kLongNames) properties[std::string(name)] = properties.find(category)->second;
}

void add_scripts(Properties& properties) {
  for_each_run(kPropertyData.regex_scripts, [&](uint32_t first, uint32_t last, uint8_t label) {
    if (label == kNoLabel) return;
    const std::string_view names = kPropertyData.script_names[label];
    const size_t slash = names.find('/');
    append_range(properties[folded(names.substr(0, slash))], {first, last});
    if (slash != names.npos) append_range(properties[folded(names.substr(slash + 1))], {first, last});
  });
}

void add_derived(Properties& properties) {
  for (const DerivedProperty& derived : kPropertyData.derived) {
    std::vector<Ranges> lists = {derived.differing};
    for (std::string_view rest = derived.categories; !rest.empty();) {
      const size_t end = std::min(rest.find(' '), rest.size());
      lists.emplace_back(properties.find(folded(rest.substr(0, end)))->second);
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
    const bool shorthand = derived.name.size() == 1;
    properties[shorthand ? '\\' + std::string(derived.name) : folded(derived.name)] = in_odd_number(lists);
  }
}

Properties build_properties() {
  Properties properties;
  add_categories(properties);
  add_scripts(properties);
  add_derived(properties);
  properties["\\s"] = ranges_of_class(kSpaceClass);
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
int to_lower(uint32_t c, uint32_t out[2]) {
  static const std::vector<uint32_t> lower = build_lower();
  out[0] = c < lower.size() ? lower[c] : c;
  if (c != kDottedCapitalI) return 1;
  out[0] = 'i';
  out[1] = 0x307;
  return 2;
}

uint8_t script_of(uint32_t c) {
  static const std::vector<uint8_t> scripts = build_labels(kPropertyData.script_numbers);
  return scripts[c];
}

ClusterClass cluster_class(uint32_t c) {
  static const std::vector<uint8_t> classes = build_cluster_classes();
  return static_cast<ClusterClass>(classes[c]);
}

bool extends_cluster(uint32_t c) {
  switch (cluster_class(c)) {
    case ClusterClass::kExtend:
    case ClusterClass::kExtendOnly:
    case ClusterClass::kLinker:
    case ClusterClass::kSpacingMark:
    case ClusterClass::kJoiner:
      return true;
    default:
      return false;
  }
}

std::span<const CodePointRange> property_ranges(std::string_view name) {
  static const Properties properties = build_properties();
  const bool shorthand = name == "s" || name == "w" || name == "d" || name == "h";
  const auto found = properties.find(shorthand ? '\\' + std::string(name) : folded(name));
  return found == properties.end() ? std::span<const CodePointRange>() : std::span(found->second);
}

std::span<const CodePointRange> word_ranges_in_set() {
  static constexpr CodePointRange kAlone[] = {{0xB2, 0xB3}, {0xB9, 0xB9}, {0xBC, 0xBE}};
  static const std::vector<CodePointRange> ranges = [] {
    const Ranges lists[] = {property_ranges("w"), kAlone};
    return in_odd_number(lists);
  }();
  return ranges;
}

}  // namespace millrace::tokenizer
