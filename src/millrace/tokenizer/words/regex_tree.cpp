// SPDX-License-Identifier: Apache-2.0
#include "millrace/tokenizer/words/regex_tree.h"

#include <algorithm>
#include <array>
#include <string>

#include "millrace/base/text/utf8.h"

namespace millrace::tokenizer {
namespace {

using Kind = RegexTree::Kind;

constexpr uint32_t kLastCodePoint = 0x10FFFF;
constexpr int kMostRepetitions = 1000;
constexpr int kDeepestNesting = 32;

void normalize(CodePointRanges& ranges) {
  std::ranges::sort(ranges, {}, &CodePointRange::first);
  CodePointRanges joined;
  for (const CodePointRange& range : ranges) {
    if (!joined.empty() && range.first <= joined.back().last + 1)
      joined.back().last = std::max(joined.back().last, range.last);
    else
      joined.push_back(range);
  }
  ranges = std::move(joined);
}

CodePointRanges complement(const CodePointRanges& ranges) {
  CodePointRanges others;
  uint32_t begin = 0;
  for (const CodePointRange& range : ranges) {
    if (begin < range.first) others.push_back({begin, range.first - 1});
    begin = range.last + 1;
  }
  if (begin <= kLastCodePoint) others.push_back({begin, kLastCodePoint});
  return others;
}

CodePointRanges without(const CodePointRanges& ranges, const CodePointRanges& others) {
  CodePointRanges both = complement(ranges);
  both.insert(both.end(), others.begin(), others.end());
  normalize(both);
  return complement(both);
}

bool is_letter(uint32_t c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

// The characters that match ASCII `c` under (?i): the other case, and U+017F and U+212A, which fold to s and k.
CodePointRanges folded(uint32_t c) {
  if (!is_letter(c)) return {{c, c}};
  const uint32_t lower = c | 0x20;
  CodePointRanges set = {{lower & ~uint32_t{0x20}, lower & ~uint32_t{0x20}}, {lower, lower}};
  if (lower == 's') set.push_back({0x17F, 0x17F});
  if (lower == 'k') set.push_back({0x212A, 0x212A});
  return set;
}

// Some characters that no other one folds to, alone or with others.
bool has_no_case(uint32_t c) {
  return c < 0x80 ? !is_letter(c) : c >= 0x2010 && c <= 0x2027;
}

// Two letters that one character folds to: U+00DF is ss, U+FB01 is fi.
bool fold_together(uint32_t first, uint32_t second) {
  constexpr std::array<std::string_view, 5> kPairs = {"ss", "st", "ff", "fi", "fl"};
  const std::string pair = {static_cast<char>(first | 0x20), static_cast<char>(second | 0x20)};
  return std::ranges::find(kPairs, pair) != kPairs.end();
}

RegexTree set_node(CodePointRanges set) {
  RegexTree node;
  node.kind = Kind::kSet;
  node.set = std::move(set);
  return node;
}

RegexTree condition(Kind kind, CodePointRanges set = {}) {
  RegexTree node = set_node(std::move(set));
  node.kind = kind;
  return node;
}

RegexTree parent(Kind kind, std::vector<RegexTree> parts) {
  if (parts.size() == 1) return std::move(parts.front());
  RegexTree node;
  node.kind = kind;
  node.parts = std::move(parts);
  return node;
}

CodePointRanges any_character() {
  return {{0, kLastCodePoint}};
}

bool looks_far(const RegexTree& tree) {
  return tree.kind == Kind::kAhead || tree.kind == Kind::kAheadNot || tree.kind == Kind::kSearchBegins ||
         std::ranges::any_of(tree.parts, looks_far);
}

// Whether it matches in one way at most, wherever that is.
bool gives_nothing_back(const RegexTree& tree) {
  if (tree.kind == Kind::kChoice || (tree.kind == Kind::kRepeat && tree.least != tree.most)) return false;
  return std::ranges::all_of(tree.parts, gives_nothing_back);
}

// The negation of conditions. nullopt where there is none.
std::optional<RegexTree> opposite(RegexTree tree) {
  constexpr std::array<std::array<Kind, 2>, 4> kPairs = {{{Kind::kNextIs, Kind::kNextIsNot},
                                                          {Kind::kPreviousIs, Kind::kPreviousIsNot},
                                                          {Kind::kAhead, Kind::kAheadNot},
                                                          {Kind::kSequence, Kind::kChoice}}};
  for (const auto& [one, other] : kPairs) {
    if (tree.kind != one && tree.kind != other) continue;
    tree.kind = tree.kind == one ? other : one;
    if (one != Kind::kSequence) return tree;
    for (RegexTree& part : tree.parts) {
      auto negated = opposite(std::move(part));
      if (!negated) return std::nullopt;
      part = std::move(*negated);
    }
    return tree.parts.empty() ? std::nullopt : std::optional(std::move(tree));
  }
  return std::nullopt;
}

class Parser {
 public:
  explicit Parser(std::string_view text) : rest_(text) {}

  std::optional<RegexTree> run() {
    RegexTree tree = choice(false, 0);
    if (!rest_.empty()) fails_ = true;
    return fails_ ? std::nullopt : std::optional(std::move(tree));
  }

 private:
  bool take(std::string_view text) {
    if (!rest_.starts_with(text)) return false;
    rest_.remove_prefix(text.size());
    return true;
  }
  uint32_t take_character() {
    // SAFETY: uint8_t may alias any object.
    const auto begin = reinterpret_cast<const uint8_t*>(rest_.data());
    const CodePoint c = decode_code_point(begin, begin + rest_.size());
    rest_.remove_prefix(c.size);
    return c.value;
  }

  // An item under (?i). Neighbours are checked for letters that one character folds to.
  struct Folded {
    uint32_t letter = 0;
    bool is_group = false;
  };

  RegexTree choice(bool ignores_case, int depth) {
    if (depth > kDeepestNesting) fails_ = true;
    std::vector<RegexTree> alternatives;
    do {
      alternatives.push_back(sequence(ignores_case, depth));
    } while (!fails_ && take("|"));
    return parent(Kind::kChoice, std::move(alternatives));
  }

  RegexTree sequence(bool ignores_case, int depth) {
    std::vector<RegexTree> items;
    Folded before;  // what ends the text that is read
    while (!fails_ && !rest_.empty() && rest_[0] != '|' && rest_[0] != ')') {
      Folded folded;
      items.push_back(item(ignores_case, depth, folded));
      // A group may begin or end with a letter.
      if (folded.is_group && (before.is_group || before.letter != 0)) fails_ = true;
      if (ignores_case && before.is_group && folded.letter != 0) fails_ = true;
      if (before.letter != 0 && folded.letter != 0 && fold_together(before.letter, folded.letter)) fails_ = true;
      before = folded;
      if ((folded.letter != 0 && is_quantifier()) || (folded.is_group && rest_.starts_with('{')))
        fails_ = true;  // the engine may write out s{2} as ss
      if (!fails_) quantifier(items.back());
    }
    return parent(Kind::kSequence, std::move(items));
  }

  RegexTree item(bool ignores_case, int depth, Folded& folded_item) {
    if (rest_[0] == '(') {
      folded_item.is_group = ignores_case || rest_.starts_with("(?i:");
      return group(ignores_case, depth);
    }
    if (rest_[0] == '[') {
      const CodePointRanges members = set(depth, SetContext::kAlone);
      return set_node(ignores_case ? folded_set(members) : members);
    }
    if (rest_[0] == '.') {  // any but a newline
      rest_.remove_prefix(1);
      return set_node(complement({{'\n', '\n'}}));
    }
    if (auto anchor = this->anchor()) return std::move(*anchor);
    if (take("\\h")) return set_node({{'0', '9'}, {'A', 'F'}, {'a', 'f'}});
    if (std::string_view("*+?{}^)").find(rest_[0]) != std::string_view::npos) fails_ = true;
    const uint32_t c = character(false);
    if (!ignores_case) return set_node({{c, c}});
    if (c >= 0x80) fails_ = true;
    if (is_letter(c)) folded_item.letter = c;
    return set_node(folded(c));
  }

  std::optional<RegexTree> anchor() {
    const auto newline = [] { return CodePointRanges{{'\n', '\n'}}; };
    const auto text_ends = [] { return condition(Kind::kNextIsNot, any_character()); };
    const auto text_begins = [] { return condition(Kind::kPreviousIsNot, any_character()); };
    if (is_behind_ && rest_.starts_with('$')) fails_ = true;
    if (take("$")) return condition(Kind::kNextIsNot, complement(newline()));  // a line or the text ends
    if (take("^"))  // no line begins behind a newline that ends the text
      return parent(Kind::kChoice,
                    {text_begins(), parent(Kind::kSequence, {condition(Kind::kPreviousIs, newline()),
                                                             condition(Kind::kNextIs, any_character())})});
    if (take("\\A")) return text_begins();
    if (is_behind_) return std::nullopt;
    if (take("\\z")) return text_ends();
    if (take("\\G")) return condition(Kind::kSearchBegins);
    if (!take("\\Z")) return std::nullopt;
    RegexTree last_newline = condition(Kind::kAhead);
    last_newline.parts.push_back(parent(Kind::kSequence, {set_node(newline()), text_ends()}));
    return parent(Kind::kChoice, {text_ends(), std::move(last_newline)});
  }

  void open_group(bool& ignores_case) {
    if (take("(?i:"))
      ignores_case = true;
    else if (take("(?-i:"))
      ignores_case = false;
    else if (!take("(?:") && (rest_.starts_with("(?") || !take("(")))
      fails_ = true;
  }

  RegexTree group(bool ignores_case, int depth) {
    if (is_behind_) fails_ = true;  // the engine takes some groups in a look-behind and refuses others
    const bool negated = take("(?!");
    if (negated || take("(?=")) return look_ahead(negated, depth);
    const bool is_not_behind = take("(?<!");
    if (is_not_behind || take("(?<=")) return look_behind(is_not_behind, depth);
    const bool is_atomic = take("(?>");
    if (!is_atomic) open_group(ignores_case);
    if (fails_) return {};
    RegexTree tree = choice(ignores_case, depth + 1);
    if (!take(")") || (is_atomic && !gives_nothing_back(tree))) fails_ = true;
    return tree;
  }

  RegexTree look_ahead(bool negated, int depth) {
    RegexTree inner = choice(false, depth + 1);
    if (!take(")")) fails_ = true;
    if (fails_) return {};
    if (inner.kind == Kind::kSet) return condition(negated ? Kind::kNextIsNot : Kind::kNextIs, inner.set);
    if (takes_nothing(inner)) return negated ? not_if(std::move(inner)) : inner;
    if (looks_far(inner)) fails_ = true;
    RegexTree ahead = condition(negated ? Kind::kAheadNot : Kind::kAhead);
    ahead.parts.push_back(std::move(inner));
    return ahead;
  }

  // One character or a condition, or several of which one must hold.
  RegexTree look_behind(bool negated, int depth) {
    is_behind_ = true;
    RegexTree inner = choice(false, depth + 1);
    is_behind_ = false;
    if (!take(")")) fails_ = true;
    const auto turn = [&](RegexTree& tree) {
      if (tree.kind == Kind::kSet)
        tree.kind = Kind::kPreviousIs;
      else if (!takes_nothing(tree) || (tree.kind == Kind::kSequence && tree.parts.empty()) || looks_far(tree))
        fails_ = true;
    };
    if (inner.kind == Kind::kChoice)
      std::ranges::for_each(inner.parts, turn);
    else
      turn(inner);
    return negated ? not_if(std::move(inner)) : inner;
  }

  RegexTree not_if(RegexTree tree) {
    auto negated = opposite(std::move(tree));
    if (!negated) fails_ = true;
    return negated ? std::move(*negated) : RegexTree{};
  }

  bool is_quantifier() const {
    return !rest_.empty() && std::string_view("*+?{").find(rest_[0]) != std::string_view::npos;
  }

  // Wraps `node` in the quantifier that follows it.
  void quantifier(RegexTree& node) {
    int least = 0, most = RegexTree::kNoLimit;
    const bool braces = rest_.starts_with('{');
    if (take("?"))
      most = 1;
    else if (take("+"))
      least = 1;
    else if (!take("*") && !(braces && counts(least, most)))
      return;
    // An empty round ends a loop in a way of the engine's.
    if (may_be_empty(node)) fails_ = true;
    const bool is_possessive = !braces && take("+");
    const bool is_lazy = !braces && !is_possessive && take("?");
    if (is_possessive) {
      give_nothing_back(node, least, most);
    } else {
      node = repeat(std::move(node), least, most, is_lazy);
      // A + behind {n,m} repeats all of it.
      if (braces && least > 0 && take("+")) node = repeat(std::move(node), 1, RegexTree::kNoLimit, false);
    }
    if (is_quantifier()) fails_ = true;
  }

  static RegexTree repeat(RegexTree node, int least, int most, bool is_lazy) {
    RegexTree repeated;
    repeated.kind = Kind::kRepeat;
    repeated.least = least;
    repeated.most = most;
    repeated.is_lazy = is_lazy;
    repeated.parts.push_back(std::move(node));
    return repeated;
  }

  // A possessive quantifier takes all that it can. So does a greedy one that must not end before one more: X++ is
  // X+(?!X), and X?+ is (?:X|(?!X)).
  void give_nothing_back(RegexTree& node, int least, int most) {
    if (node.kind != Kind::kSet) {
      fails_ = true;
      return;
    }
    RegexTree no_more = condition(Kind::kNextIsNot, node.set);
    const bool is_loop = most == RegexTree::kNoLimit;
    std::vector<RegexTree> parts;
    parts.push_back(is_loop ? repeat(std::move(node), least, most, false) : std::move(node));
    parts.push_back(std::move(no_more));
    node = parent(is_loop ? Kind::kSequence : Kind::kChoice, std::move(parts));
  }

  // {n}, {n,} and {n,m}. Others are text, or mean something of their own.
  bool counts(int& least, int& most) {
    rest_.remove_prefix(1);
    const auto number = [&] {
      if (rest_.empty() || rest_[0] < '0' || rest_[0] > '9') fails_ = true;
      int value = 0;
      for (; !rest_.empty() && rest_[0] >= '0' && rest_[0] <= '9' && value <= kMostRepetitions; rest_.remove_prefix(1))
        value = 10 * value + (rest_[0] - '0');
      if (value > kMostRepetitions) fails_ = true;
      return value;
    };
    least = most = number();
    if (take(",")) most = rest_.starts_with('}') ? RegexTree::kNoLimit : number();
    if (!take("}") || most == 0 || (most != RegexTree::kNoLimit && most < least)) fails_ = true;
    return !fails_;
  }

  // One character, plain or escaped.
  uint32_t character(bool is_in_set) {
    if (rest_.empty()) {
      fails_ = true;
      return 0;
    }
    if (!take("\\")) return take_character();
    if (rest_.empty()) {
      fails_ = true;
      return 0;
    }
    const uint32_t c = take_character();
    switch (c) {
      case 'r':
        return '\r';
      case 'n':
        return '\n';
      case 't':
        return '\t';
      case 'f':
        return '\f';
      case 'v':
        return '\v';
      case 'x':
        return hexadecimal();
      case 'u':
        return four_digits();
      default:
        break;
    }
    // Escaped, a letter or digit has another meaning, and so may these.
    if (is_letter(c) || (c >= '0' && c <= '9') || c >= 0x80 ||
        (!is_in_set && std::string_view("<>`'").find(static_cast<char>(c)) != std::string_view::npos))
      fails_ = true;
    return c;
  }

  uint32_t hexadecimal_digit() {
    const int c = rest_.empty() ? 0 : std::toupper(static_cast<unsigned char>(rest_[0]));
    const size_t digit = std::string_view("0123456789ABCDEF").find(static_cast<char>(c));
    if (digit == std::string_view::npos) fails_ = true;
    if (!fails_) rest_.remove_prefix(1);
    return static_cast<uint32_t>(digit & 15);
  }

  // \uHHHH
  uint32_t four_digits() {
    uint32_t value = 0;
    for (int digits = 0; digits < 4 && !fails_; ++digits) value = value << 4 | hexadecimal_digit();
    if (value >= 0xD800 && value < 0xE000) fails_ = true;
    return value;
  }

  // \x{H..}, as expand_classes() writes it.
  uint32_t hexadecimal() {
    if (!take("{")) fails_ = true;
    uint32_t value = 0;
    size_t digits = 0;
    for (; !fails_ && !rest_.empty() && rest_[0] != '}'; ++digits) {
      value = value << 4 | hexadecimal_digit();
      if (digits == 6) fails_ = true;
    }
    if (!take("}") || digits == 0 || value > kLastCodePoint) fails_ = true;
    return value;
  }

  // Folds a set under (?i): ASCII letters and characters without case, more than one. None of them folds to several
  // characters.
  CodePointRanges folded_set(const CodePointRanges& members) {
    CodePointRanges all;
    size_t count = 0;
    for (const CodePointRange& range : members)
      for (uint32_t c = range.first; !fails_ && c <= range.last; ++c, ++count) {
        if (!is_letter(c) && !has_no_case(c)) fails_ = true;
        const CodePointRanges both = folded(c);
        all.insert(all.end(), both.begin(), both.end());
      }
    if (count < 2) fails_ = true;  // the engine may take it for text
    normalize(all);
    return all;
  }

  // Where a set stands: [..], in another one, behind its &&.
  enum class SetContext : uint8_t { kAlone, kInSet, kBehindAnd };

  CodePointRanges set(int depth, SetContext context) {
    if (depth > kDeepestNesting) fails_ = true;
    rest_.remove_prefix(1);
    const bool negated = take("^");
    CodePointRanges ranges;
    if (rest_.starts_with(']')) fails_ = true;  // may be one of the characters
    while (!fails_ && !take("]")) {
      // [..&&[..]]
      if (!negated && !ranges.empty() && rest_.starts_with("&&[")) {
        rest_.remove_prefix(2);
        const CodePointRanges limits = complement(set(depth + 1, SetContext::kBehindAnd));
        if (!take("]")) fails_ = true;
        normalize(ranges);
        return without(ranges, limits);
      }
      if (rest_.empty() || rest_.starts_with("&&")) {
        fails_ = true;
        break;
      }
      if (rest_[0] == '[') {
        const CodePointRanges inner = set(depth + 1, SetContext::kInSet);
        ranges.insert(ranges.end(), inner.begin(), inner.end());
        continue;
      }
      if (take("\\P{Any}")) continue;  // has no members
      const bool is_dash = rest_[0] == '-';
      const uint32_t first = character(true);
      // A '-' that is no range: first or last.
      if (is_dash && !ranges.empty() && !rest_.starts_with(']')) fails_ = true;
      uint32_t last = first;
      if (!is_dash && rest_.starts_with('-') && !rest_.starts_with("-]")) {
        rest_.remove_prefix(1);
        if (rest_.starts_with('[') || rest_.starts_with("\\p") || rest_.starts_with("\\P")) fails_ = true;
        last = character(true);
      }
      if (last < first) fails_ = true;
      ranges.push_back({first, last});
    }
    normalize(ranges);
    if (!negated) return ranges;
    ranges = complement(ranges);
    // Inside another set the engine may make all or nothing of it, but not behind && where it has more than ASCII.
    if (context == SetContext::kInSet ||
        (context == SetContext::kBehindAnd && (ranges.empty() || ranges.back().last < 0x80)))
      fails_ = true;
    return ranges;
  }

  std::string_view rest_;
  bool is_behind_ = false;  // in a look-behind
  bool fails_ = false;
};

}  // namespace

bool may_be_empty(const RegexTree& tree) {
  switch (tree.kind) {
    case Kind::kSet:
      return false;
    case Kind::kSequence:
      return std::ranges::all_of(tree.parts, may_be_empty);
    case Kind::kChoice:
      return std::ranges::any_of(tree.parts, may_be_empty);
    case Kind::kRepeat:
      return tree.least == 0 || may_be_empty(tree.parts[0]);
    default:
      return true;
  }
}

bool takes_nothing(const RegexTree& tree) {
  if (tree.kind == Kind::kSequence || tree.kind == Kind::kChoice) return std::ranges::all_of(tree.parts, takes_nothing);
  return tree.kind != Kind::kSet && tree.kind != Kind::kRepeat;
}

namespace {

bool is_all(const CodePointRanges& set) {
  return set.size() == 1 && set[0].first == 0 && set[0].last == kLastCodePoint;
}
bool is_newline(const CodePointRanges& set) {
  return set.size() == 1 && set[0].first == '\n' && set[0].last == '\n';
}

// `.`, with or without newlines.
bool is_any_character(const RegexTree& tree) {
  return tree.kind == Kind::kSet && (is_all(tree.set) || is_newline(complement(tree.set)));
}

// The conditions of `^` and `\A`.
bool is_of_line_begin(const RegexTree& tree) {
  return (tree.kind == Kind::kPreviousIsNot && is_all(tree.set)) ||
         (tree.kind == Kind::kPreviousIs && is_newline(tree.set)) || (tree.kind == Kind::kNextIs && is_all(tree.set));
}

// Whether a match of `tree` may begin with conditions and then `.*` or `.+`. `behind_condition`: one stands before it,
// and becomes whether one stands before what follows. `^` and
// `\A` do not count.
bool begins_with_guarded_run(const RegexTree& tree, bool& behind_condition) {
  const auto any_of = [&](const RegexTree& part) { return begins_with_guarded_run(part, behind_condition); };
  switch (tree.kind) {
    case Kind::kSet:
      return false;
    case Kind::kSequence:
      for (const RegexTree& part : tree.parts) {
        if (any_of(part)) return true;
        if (!may_be_empty(part)) return false;
      }
      return false;
    case Kind::kChoice: {
      bool behind_any = behind_condition;
      for (const RegexTree& part : tree.parts) {
        bool behind = behind_condition;
        if (begins_with_guarded_run(part, behind)) return true;
        behind_any = behind_any || behind;
      }
      behind_condition = behind_any;
      return false;
    }
    case Kind::kRepeat:
      if (behind_condition && tree.most == RegexTree::kNoLimit && !tree.is_lazy && is_any_character(tree.parts[0]))
        return true;
      return any_of(tree.parts[0]);
    default:
      behind_condition = behind_condition || !is_of_line_begin(tree);
      return false;
  }
}

}  // namespace

// Oniguruma takes `(?=\w).*` for an expression that matches at the begin of a line if it matches in the line at all,
// and tries no other place, unless it finds a better way to search: what holds for `.*` alone.
std::optional<RegexTree> parse_regex(std::string_view expanded) {
  if (!is_utf8(expanded)) return std::nullopt;
  auto tree = Parser(expanded).run();
  bool behind_condition = false;
  if (tree && begins_with_guarded_run(*tree, behind_condition)) return std::nullopt;
  return tree;
}

}  // namespace millrace::tokenizer
