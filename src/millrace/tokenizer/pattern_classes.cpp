// SPDX-License-Identifier: Apache-2.0
// Writes the Unicode classes of a regular expression out as ranges, so that any version of Oniguruma reads them alike.
#include <cctype>
#include <span>

#include "millrace/tokenizer/pattern.h"
#include "millrace/tokenizer/unicode_tables.h"

namespace millrace::tokenizer {
namespace {

class ClassExpander {
 public:
  explicit ClassExpander(std::string_view pattern) : rest_(pattern), pattern_(pattern) {}

  Result<std::string> run() {
    while (!rest_.empty()) {
      const char c = rest_[0];
      if (c == '\\' && rest_.size() > 1) {
        RETURN_IF_ERROR(escape());
        continue;
      }
      if (rest_.starts_with("[:") && depth_ > 0) return unsupported("a POSIX bracket");
      if (c == '[') ++depth_;
      if (c == ']' && depth_ > 0) --depth_;
      copy(1);
    }
    return std::move(out_);
  }

 private:
  tl::unexpected<Error> unsupported(std::string_view what) const {
    return fail(ErrorCode::kUnsupported, "{} in the regular expression {}", what, pattern_);
  }
  void copy(size_t count) {
    out_ += rest_.substr(0, count);
    rest_.remove_prefix(count);
  }

  Status escape() {
    const char c = rest_[1];
    switch (c) {
      case 'p':
      case 'P':
        return property();
      case 's':
      case 'w':
      case 'd':
        return shorthand(std::string_view(&rest_[1], 1), false);
      case 'S':
        return shorthand("s", true);
      case 'W':
        return shorthand("w", true);
      case 'D':
        return shorthand("d", true);
      case 'b':
      case 'B':
        if (depth_ == 0) return boundary(c == 'B');
        break;
      case 'X':
      case 'y':
      case 'Y':
        return unsupported(rest_.substr(0, 2));
      default:
        break;
    }
    copy(2);
    return {};
  }

  Status shorthand(std::string_view name, bool negated) {
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
    const std::string one_letter(name.size() == 1,
                                 static_cast<char>(std::toupper(static_cast<unsigned char>(name[0]))));
    const auto ranges = property_ranges(name.size() == 1 ? std::string_view(one_letter) : name);
    if (ranges.empty()) return unsupported(rest_.substr(0, close + 1));
    write_class(ranges, negated);
    rest_.remove_prefix(close + 1);
    return {};
  }

  // \b: word and no word meet. \B: they do not.
  Status boundary(bool negated) {
    std::string word;
    std::swap(word, out_);
    write_class(property_ranges("w"), false);
    std::swap(word, out_);
    out_ += negated ? fmt::format("(?:(?<={0})(?={0})|(?<!{0})(?!{0}))", word)
                    : fmt::format("(?:(?<={0})(?!{0})|(?<!{0})(?={0}))", word);
    rest_.remove_prefix(2);
    return {};
  }

  // A set of its own, which inside a set adds to it.
  void write_class(std::span<const CodePointRange> ranges, bool negated) {
    out_ += negated ? "[^" : "[";
    for (const CodePointRange& range : ranges) {
      fmt::format_to(std::back_inserter(out_), "\\x{{{:X}}}", range.first);
      if (range.last != range.first) fmt::format_to(std::back_inserter(out_), "-\\x{{{:X}}}", range.last);
    }
    out_ += ']';
  }

  std::string_view rest_, pattern_;
  std::string out_;
  int depth_ = 0;  // of brackets
};

}  // namespace

Result<std::string> expand_classes(std::string_view pattern) {
  return ClassExpander(pattern).run();
}

}  // namespace millrace::tokenizer
