// SPDX-License-Identifier: Apache-2.0
// Writes the Unicode classes of a regular expression out as ranges, so that any version of Oniguruma reads them alike.
#include <algorithm>
#include <cctype>
#include <charconv>
#include <span>

#include "millrace/tokenizer/text/unicode_tables.h"
#include "millrace/tokenizer/words/pattern.h"

namespace millrace::tokenizer {
namespace {

// Letters that have had a partner in the other case only since Unicode 12; older tables do not fold them.
struct YoungPairs {
  uint32_t first, last, distance;
};
constexpr YoungPairs kYoungPairs[] = {
    {0x19B, 0x19B, 0xA641},   {0x264, 0x264, 0xA567},   {0x1C89, 0x1C89, 1},      {0x2C2F, 0x2C2F, 0x30},
    {0xA7C0, 0xA7C0, 1},      {0xA7C7, 0xA7C7, 1},      {0xA7C9, 0xA7C9, 1},      {0xA7CC, 0xA7CC, 1},
    {0xA7D0, 0xA7D0, 1},      {0xA7D6, 0xA7D6, 1},      {0xA7D8, 0xA7D8, 1},      {0xA7DA, 0xA7DA, 1},
    {0xA7F5, 0xA7F5, 1},      {0x10570, 0x1057A, 0x27}, {0x1057C, 0x1058A, 0x27}, {0x1058C, 0x10592, 0x27},
    {0x10594, 0x10595, 0x27}, {0x10D50, 0x10D65, 0x20},
};

bool has_young_partner(uint32_t c) {
  return std::any_of(std::begin(kYoungPairs), std::end(kYoungPairs), [&](const YoungPairs& pairs) {
    return (c >= pairs.first && c <= pairs.last) ||
           (c >= pairs.first + pairs.distance && c <= pairs.last + pairs.distance);
  });
}

class ClassExpander {
 public:
  explicit ClassExpander(std::string_view pattern) : rest_(pattern), pattern_(pattern) {}

  Result<ExpandedPattern> run() {
    while (!rest_.empty()) RETURN_IF_ERROR(!sets_.empty() ? in_set() : outside());
    return std::move(result_);
  }

 private:
  // A class that no text has. It stands between a '-' and what is written out, so that the engine refuses what it would
  // have refused.
  static constexpr std::string_view kNothing = "\\p{Cs}";

  // What holds from here to the end of a group.
  struct Scope {
    bool ignore_case = false, extended = false, ascii_word = false, ascii_digit = false, ascii_space = false;
    bool behind = false;  // in a lookbehind
  };

  tl::unexpected<Error> unsupported(std::string_view what) const {
    return fail(ErrorCode::kUnsupported, "{} in the regular expression {}", what, pattern_);
  }
  Scope& scope() { return scopes_.back(); }
  std::string& out() { return result_.text; }
  void copy(size_t count) {
    count = std::min(count, rest_.size());
    out() += rest_.substr(0, count);
    rest_.remove_prefix(count);
  }
  // The character at `at`; its size is 0 at the end.
  CodePoint character(size_t at) const {
    // SAFETY: uint8_t may alias any object.
    const auto begin = reinterpret_cast<const uint8_t*>(rest_.data());
    return at < rest_.size() ? decode_code_point(begin + at, begin + rest_.size()) : CodePoint{0, 0};
  }

  Status outside() {
    switch (rest_[0]) {
      case '\\':
        return escape();
      case '[':
        open_set();
        return {};
      case '(':
        return group();
      case ')':
        if (scopes_.size() > 1) scopes_.pop_back();
        break;
      case '#':
        if (!scope().extended) break;
        copy(std::min(rest_.find('\n'), rest_.size() - 1) + 1);
        return {};
      default: {
        const CodePoint c = character(0);
        RETURN_IF_ERROR(check_case(c.value));
        copy(c.size);
        return {};
      }
    }
    copy(1);
    return {};
  }

  Status check_case(uint32_t c) {
    if (!scope().ignore_case || !sets_.empty() || !has_young_partner(c)) return {};
    return unsupported(fmt::format("U+{:04X} under (?i)", c));
  }

  // ---- sets

  // A ']' that comes first is one of the characters.
  void open_set() {
    sets_.push_back(out().size());
    copy(rest_.starts_with("[^") ? 2 : 1);
    if (rest_.starts_with(']')) copy(1);
  }

  Status in_set() {
    if (rest_[0] == '\\') return escape();
    if (rest_.starts_with("[:")) return unsupported("a POSIX bracket");
    if (rest_[0] == '[') {
      open_set();
      return {};
    }
    if (rest_[0] == '-' && class_end_ == out().size()) out() += kNothing;
    const bool closes = rest_[0] == ']';
    copy(1);
    if (closes) close_set();
    return {};
  }

  void close_set() {
    std::string set = out().substr(sets_.back());
    sets_.pop_back();
    if (!sets_.empty() && set.starts_with("[^"))
      result_.negated_sets.push_back(std::move(set));
    else if (sets_.empty() && scope().ignore_case)
      result_.folded_sets.push_back(std::move(set));
  }

  // ---- groups

  Status group() {
    if (rest_.starts_with("(*") || rest_.starts_with("(?{")) return unsupported("a callout");
    if (rest_.starts_with("(?~|")) return unsupported("(?~|");
    if (rest_.starts_with("(?#")) {
      size_t end = 3;
      while (end < rest_.size() && rest_[end] != ')') end += rest_[end] == '\\' ? 2 : 1;
      copy(end + 1);
      return {};
    }
    // Others lose matches in 6.9.8.
    const bool known_condition = rest_.size() > 3 && std::string_view("0123456789+-<'").find(rest_[3]) != rest_.npos;
    if (rest_.starts_with("(?(") && !known_condition) return unsupported("a condition that is no group");
    const bool has_options = rest_.starts_with("(?") && rest_.size() > 2 &&
                             (rest_[2] == '-' || std::isalpha(static_cast<unsigned char>(rest_[2])));
    if (has_options) return options();
    const bool behind = rest_.starts_with("(?<=") || rest_.starts_with("(?<!");
    scopes_.push_back(scope());
    scope().behind |= behind;
    // The '(' of a condition opens a group of its own.
    copy(!rest_.starts_with("(?") ? 1 : rest_.starts_with("(?(") ? 2 : behind ? 4 : 3);
    return {};
  }

  // (?i-x) holds to the end of the group that it is in, (?i-x:..) is one.
  Status options() {
    Scope scope = this->scope();
    bool on = true;
    size_t at = 2;
    for (; at < rest_.size() && rest_[at] != ')' && rest_[at] != ':'; ++at) {
      const char c = rest_[at];
      if (c == '-')
        on = false;
      else if (c == 'i')
        scope.ignore_case = on;
      else if (c == 'x')
        scope.extended = on;
      else if (c == 'W')
        scope.ascii_word = on;
      else if (c == 'D')
        scope.ascii_digit = on;
      else if (c == 'S')
        scope.ascii_space = on;
      else if (c != 'm')
        return unsupported(fmt::format("the option {} of (?..)", c));
    }
    if (at < rest_.size() && rest_[at] == ':')
      scopes_.push_back(scope);
    else
      this->scope() = scope;
    copy(at + 1);
    return {};
  }

  // ---- escapes

  Status escape() {
    const char c = rest_.size() > 1 ? rest_[1] : '\0';
    switch (c) {
      case 'p':
      case 'P':
        return property();
      case 's':
      case 'S':
        return shorthand("s", c == 'S', scope().ascii_space);
      case 'w':
      case 'W':
        return shorthand("w", c == 'W', scope().ascii_word);
      case 'd':
      case 'D':
        return shorthand("d", c == 'D', scope().ascii_digit);
      case 'c':
      case 'C':
      case 'M':
        return control();
      case 'x':
      case 'u':
      case 'o':
        RETURN_IF_ERROR(check_case(escaped_code_point()));
        break;
      default:
        if (sets_.empty()) return escape_outside(c);
        break;
    }
    copy(1 + character(1).size);
    return {};
  }

  Status escape_outside(char c) {
    if (c == 'b' || c == 'B') return boundary(c == 'B');
    if (c == 'R' && scope().behind) return unsupported("\\R in a lookbehind");
    if (c == 'R') {  // 6.9.8 loses matches of what stands before its own
      out() += "(?>\\x0D\\x0A|[\\x0A-\\x0D\\x{85}\\x{2028}\\x{2029}])";
      rest_.remove_prefix(2);
      return {};
    }
    if (c == 'X' || c == 'y' || c == 'Y') return unsupported(rest_.substr(0, 2));
    if (scope().ignore_case && (c == 'k' || (c >= '1' && c <= '9'))) return unsupported("a back reference under (?i)");
    copy(1 + character(1).size);
    return {};
  }

  // \cx, \C-x, \M-x: the x means nothing else.
  Status control() {
    const size_t at = rest_[1] == 'c' ? 2 : 3;
    if (at < rest_.size() && rest_[at] == '\\') return unsupported("a control character of an escape");
    copy(at + character(at).size);
    return {};
  }

  // Of \xHH, \x{H..}, \uHHHH and \o{O..}.
  uint32_t escaped_code_point() const {
    const bool braces = rest_.size() > 2 && rest_[2] == '{';
    const size_t begin = braces ? 3 : 2;
    const std::string_view digits = rest_.substr(begin, braces ? 11 : rest_[1] == 'x' ? 2 : 4);
    uint32_t c = 0;
    std::from_chars(digits.data(), digits.data() + digits.size(), c, rest_[1] == 'o' ? 8 : 16);
    return c;
  }

  // An ASCII one says so to the engine by an option that stands in the expression.
  Status shorthand(std::string_view name, bool negated, bool ascii) {
    if (ascii) {
      copy(2);
      return {};
    }
    write_class(property_ranges(name), negated);
    rest_.remove_prefix(2);
    return {};
  }

  Status property() {
    bool negated = rest_[1] == 'P';
    const size_t close = rest_.find('}');
    if (rest_.size() < 4 || rest_[2] != '{' || close == std::string_view::npos) return unsupported("\\p without {}");
    std::string_view name = rest_.substr(3, close - 3);
    if (name.starts_with('^')) {
      negated = !negated;
      name.remove_prefix(1);
    }
    // As a small letter it would be the shorthand of that name.
    const std::string letter(name.size() == 1, static_cast<char>(std::toupper(static_cast<unsigned char>(name[0]))));
    const auto ranges = property_ranges(letter.empty() ? name : std::string_view(letter));
    const auto is = [&](std::string_view other) { return ranges.data() == property_ranges(other).data(); };
    if (ranges.empty() || (scope().ascii_word && is("Word")) || (scope().ascii_digit && is("Digit")) ||
        (scope().ascii_space && is("Space")))
      return unsupported(rest_.substr(0, close + 1));
    if (is("Any")) {  // the same in every version, and in a negated set not the same as its ranges
      copy(close + 1);
      return {};
    }
    write_class(ranges, negated);
    rest_.remove_prefix(close + 1);
    return {};
  }

  // \b: word and no word meet. \B: they do not. As a lookahead it cannot be repeated, like the original.
  Status boundary(bool negated) {
    if (scope().ascii_word) {
      copy(2);
      return {};
    }
    if (scope().behind) return unsupported("\\b in a lookbehind");
    const std::string word = '[' + range_text(property_ranges("w")) + ']';
    out() += scope().ignore_case ? "(?=(?-i:" : "(?=(?:";
    out() += negated ? fmt::format("(?<={0})(?={0})|(?<!{0})(?!{0})))", word)
                     : fmt::format("(?<={0})(?!{0})|(?<!{0})(?={0})))", word);
    rest_.remove_prefix(2);
    return {};
  }

  // ---- writing

  static void write_range(std::string& text, uint32_t first, uint32_t last) {
    // Old engines forget a part of a range that is partly ASCII.
    if (first < 0x80 && last >= 0x80) {
      write_range(text, first, 0x7F);
      first = 0x80;
    }
    fmt::format_to(std::back_inserter(text), "\\x{{{:X}}}", first);
    if (first != last) fmt::format_to(std::back_inserter(text), "-\\x{{{:X}}}", last);
  }
  static std::string range_text(std::span<const CodePointRange> ranges) {
    std::string text;
    for (const CodePointRange& range : ranges) write_range(text, range.first, range.last);
    return text;
  }
  static std::string other_text(std::span<const CodePointRange> ranges) {
    std::string text;
    uint32_t begin = 0;
    for (const CodePointRange& range : ranges) {
      if (begin < range.first) write_range(text, begin, range.first - 1);
      begin = range.last + 1;
    }
    if (begin <= 0x10FFFF) write_range(text, begin, 0x10FFFF);
    return text + "\\P{Any}";  // with what is no code point, as in a class that is not written out
  }

  void write_class(std::span<const CodePointRange> ranges, bool negated) {
    if (sets_.empty()) {
      const std::string set = fmt::format("[{}{}]", negated ? "^" : "", range_text(ranges));
      // Alone a class knows no case; in a set it does.
      out() += scope().ignore_case ? "(?-i:" + set + ')' : set;
      return;
    }
    const bool is_word =
        ranges.data() == property_ranges("w").data() || ranges.data() == property_ranges("Word").data();
    const auto members = is_word ? word_ranges_in_set() : ranges;
    if (out().ends_with('-')) out() += kNothing;
    out() += negated ? other_text(members) : range_text(members);
    class_end_ = out().size();
  }

  std::string_view rest_, pattern_;
  ExpandedPattern result_;
  std::vector<Scope> scopes_{1};
  std::vector<size_t> sets_;  // where each open one begins in the text
  size_t class_end_ = 0;      // behind the last class in a set
};

}  // namespace

Result<ExpandedPattern> expand_classes(std::string_view pattern) {
  return ClassExpander(pattern).run();
}

std::optional<uint32_t> lone_young_letter(const std::function<bool(uint32_t)>& contains) {
  for (const YoungPairs& pairs : kYoungPairs)
    for (uint32_t c = pairs.first; c <= pairs.last; ++c)
      if (contains(c) != contains(c + pairs.distance)) return c;
  return std::nullopt;
}

}  // namespace millrace::tokenizer
