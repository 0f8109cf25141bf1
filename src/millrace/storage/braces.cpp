// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

#include "millrace/storage/url.h"

namespace millrace {
namespace {

using Names = std::vector<std::string>;

constexpr int kDeepestNesting = 100;  // bounds the recursion; no name of shards nests more than a few
// The order in which the package counts letters: {Z..b} is Z, a, b.
constexpr std::string_view kBraceAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

// "left..right" or "left..right..step", cut at the dots; the step without its sign, as the package reads it.
struct RangeText {
  std::string_view left, right, step;
};
std::optional<RangeText> split_range(std::string_view text) {
  const size_t first = text.find("..");
  if (first == text.npos) return std::nullopt;
  RangeText range{text.substr(0, first), text.substr(first + 2), {}};
  const size_t second = range.right.find("..");
  if (second == range.right.npos) return range;
  range.step = range.right.substr(second + 2);
  range.right = range.right.substr(0, second);
  if (range.step.starts_with('-')) range.step.remove_prefix(1);
  if (range.step.empty()) return std::nullopt;
  return range;
}

bool is_digits(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}
bool is_integer(std::string_view text) {
  return is_digits(text.substr(text.starts_with('-') ? 1 : 0));
}
bool is_letter(std::string_view text) {
  return text.size() == 1 && kBraceAlphabet.find(text[0]) != text.npos;
}
bool is_padded(std::string_view text) {
  return text.size() > 1 && (text.starts_with('0') || text.starts_with("-0")) && text != "-0";
}

class BraceExpander {
 public:
  BraceExpander(std::string_view pattern, size_t limit) : whole_(pattern), limit_(limit) {}

  // A product of literals and brace expressions.
  Result<Names> pattern(std::string_view text, int depth) const {
    if (depth > kDeepestNesting) return refuse("is nested too deeply");
    Names names{""};
    size_t start = 0;
    int64_t open = 0;
    for (size_t at = 0; at < text.size(); ++at) {
      if (text[at] == '\\') {
        ++at;
      } else if (text[at] == '{') {
        if (open++ == 0) {
          RETURN_IF_ERROR(multiply(names, {std::string(text.substr(start, at - start))}));
          start = at;
        }
      } else if (text[at] == '}' && --open == 0) {
        ASSIGN_OR_RETURN(Names inner, expression(text.substr(start + 1, at - start - 1), depth));
        RETURN_IF_ERROR(multiply(names, inner));
        start = at + 1;
      }
    }
    if (open != 0) return refuse("has unbalanced braces");
    RETURN_IF_ERROR(multiply(names, {std::string(text.substr(start))}));
    return names;
  }

 private:
  tl::unexpected<Error> refuse(std::string_view why) const {
    return fail(ErrorCode::kInvalidArgument, "\"{}\" {}", whole_.substr(0, 300), why);
  }
  tl::unexpected<Error> too_many() const { return refuse(fmt::format("stands for more than {} names", limit_)); }

  Status multiply(Names& names, const Names& endings) const {
    if (endings.size() > limit_ / names.size()) return too_many();
    Names product;
    product.reserve(names.size() * endings.size());
    for (const auto& name : names) {
      for (const auto& ending : endings) product.push_back(name + ending);
    }
    names = std::move(product);
    return {};
  }

  // The text between two braces.
  Result<Names> expression(std::string_view text, int depth) const {
    if (const auto range = split_range(text); range && (range->step.empty() || is_digits(range->step))) {
      if (is_integer(range->left) && is_integer(range->right)) return numbers(*range);
      if (is_letter(range->left) && is_letter(range->right)) return letters(*range);
    }
    return sequence(text, depth);
  }

  // "a,b,{c,d}"; without a comma the braces stand for themselves.
  Result<Names> sequence(std::string_view text, int depth) const {
    Names names;
    size_t start = 0;
    int64_t open = 0;
    bool has_comma = false;
    const auto take = [&](std::string_view item) -> Status {
      ASSIGN_OR_RETURN(Names more, pattern(item, depth + 1));
      if (more.size() > limit_ - names.size()) return too_many();
      std::move(more.begin(), more.end(), std::back_inserter(names));
      return {};
    };
    for (size_t at = 0; at < text.size(); ++at) {
      if (text[at] == '\\') {
        ++at;
      } else if (text[at] == '{') {
        ++open;
      } else if (text[at] == '}') {
        --open;
      } else if (text[at] == ',' && open == 0) {
        RETURN_IF_ERROR(take(text.substr(start, at - start)));
        start = at + 1;
        has_comma = true;
      }
    }
    RETURN_IF_ERROR(take(text.substr(start)));
    if (has_comma) return names;
    for (auto& name : names) name = "{" + name + "}";
    return names;
  }

  Result<int64_t> number(std::string_view digits) const {
    int64_t value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    // Half the range keeps differences inside it.
    if (error != std::errc() || value > INT64_MAX / 2 || value < INT64_MIN / 2) return refuse("has too large a number");
    return value;
  }

  // begin, begin ± step, ... as long as `end` is not passed.
  Result<std::vector<int64_t>> steps(int64_t begin, int64_t end, std::string_view step_text) const {
    int64_t step = 1;
    if (!step_text.empty()) {
      ASSIGN_OR_RETURN(const int64_t given, number(step_text));
      step = std::max<int64_t>(given, 1);
    }
    const int64_t last = std::abs(end - begin) / step;
    if (static_cast<uint64_t>(last) >= limit_) return too_many();
    std::vector<int64_t> values;
    for (int64_t i = 0; i <= last; ++i) values.push_back(begin < end ? begin + i * step : begin - i * step);
    return values;
  }

  Result<Names> numbers(const RangeText& range) const {
    const bool padded = is_padded(range.left) || is_padded(range.right);
    const size_t width = padded ? std::max(range.left.size(), range.right.size()) : 0;
    ASSIGN_OR_RETURN(const int64_t begin, number(range.left));
    ASSIGN_OR_RETURN(const int64_t end, number(range.right));
    ASSIGN_OR_RETURN(const auto values, steps(begin, end, range.step));
    Names names;
    for (const int64_t value : values) names.push_back(fmt::format("{:0{}}", value, width));
    return names;
  }

  Result<Names> letters(const RangeText& range) const {
    const auto index = [](std::string_view letter) { return static_cast<int64_t>(kBraceAlphabet.find(letter[0])); };
    ASSIGN_OR_RETURN(const auto values, steps(index(range.left), index(range.right), range.step));
    Names names;
    for (const int64_t value : values) names.emplace_back(1, kBraceAlphabet[static_cast<size_t>(value)]);
    return names;
  }

  const std::string_view whole_;
  const size_t limit_;
};

std::string without_escapes(std::string_view name) {
  std::string plain;
  for (size_t at = 0; at < name.size(); ++at) {
    if (name[at] == '\\' && at + 1 < name.size()) ++at;
    plain += name[at];
  }
  return plain;
}

}  // namespace

Result<std::vector<std::string>> expand_braces(std::string_view pattern, size_t limit) {
  if (pattern.find_first_of("{}") == pattern.npos) return Names{std::string(pattern)};
  ASSIGN_OR_RETURN(Names names, BraceExpander(pattern, limit).pattern(pattern, 0));
  for (auto& name : names) name = without_escapes(name);
  return names;
}

}  // namespace millrace
