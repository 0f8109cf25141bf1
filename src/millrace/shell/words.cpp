// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cctype>

#include "millrace/base/text/ascii.h"
#include "millrace/shell/parser.h"

namespace millrace::shell {

namespace {

bool is_blank(char c) {
  return c == ' ' || c == '\t';
}

bool is_name_start(char c) {
  return std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_';
}

bool is_name_char(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
}

// Characters that may follow a $, in addition to names: $1, $?, $@ and so on.
bool is_special_parameter(char c) {
  return is_digit(c) || std::string_view("?!@*#$-").find(c) != std::string_view::npos;
}

}  // namespace

bool is_name(std::string_view text) {
  return !text.empty() && is_name_start(text.front()) && std::all_of(text.begin(), text.end(), is_name_char);
}

std::optional<std::string> Word::literal() const {
  std::string value;
  for (const Part& part : parts) {
    if (part.kind != Part::Kind::kText) return std::nullopt;
    value += part.text;
  }
  return value;
}

void Parser::add_text(Word& word, char c, bool quoted, Place place) {
  const bool joins =
      !word.parts.empty() && word.parts.back().kind == Part::Kind::kText && word.parts.back().quoted == quoted;
  if (!joins) word.parts.push_back({Part::Kind::kText, "", quoted, place});
  word.parts.back().text += c;
}

bool Parser::at_word_end() const {
  if (at_end() || at_line_end()) return true;
  const char c = peek();
  return is_blank(c) || std::string_view("\n;&|<>()").find(c) != std::string_view::npos;
}

Word Parser::read_word() {
  Word word{"", here(), {}};
  const size_t begin = pos_;
  if ((peek() == '<' || peek() == '>') && peek(1) == '(') {
    const Place place = here();
    advance();
    read_parentheses(word, false, place, "<(");
  }
  while (!at_word_end()) read_word_piece(word);
  word.source = since(begin);
  return word;
}

void Parser::read_word_piece(Word& word) {
  switch (peek()) {
    case '\\':
      return read_backslash(word);
    case '\'':
      return read_single_quotes(word);
    case '"':
      return read_double_quotes(word);
    case '`':
      return read_backquotes(word, false);
    case '$':
      if (peek(1) == '\'') return read_ansi_quotes(word);
      if (peek(1) == '"') {
        advance();
        return read_double_quotes(word);
      }
      return read_dollar(word, false);
    default:
      break;
  }
  const bool extended_glob = std::string_view("?*+@!").find(peek()) != std::string_view::npos && peek(1) == '(';
  add_text(word, peek(), false, here());
  advance();
  if (extended_glob) read_nested_text(word);
}

// ( ... ) of an extended glob, as text.
void Parser::read_nested_text(Word& word) {
  const size_t begin = pos_;
  const Place place = here();
  skip_balanced('(', ')');
  for (const char c : text_.substr(begin, pos_ - begin)) add_text(word, c, false, place);
}

void Parser::read_backslash(Word& word) {
  const Place place = here();
  advance();
  if (at_end()) return;
  if (at_line_end()) {  // a continuation; its end is taken like one, but ends nothing
    if (peek() == '\r') {
      if (!script_.carriage_return) script_.carriage_return = here();
      advance();
    }
    advance();
    return;
  }
  if (is_blank(peek())) {
    size_t ahead = 0;
    while (is_blank(peek(ahead))) ++ahead;
    const char behind = peek(ahead);
    if (behind == '\n' || behind == '\r' || behind == '#' || behind == '\0')
      script_.broken_continuations.push_back(place);
  }
  add_text(word, peek(), true, place);
  advance();
}

void Parser::read_single_quotes(Word& word) {
  const Place place = here();
  advance();
  word.parts.push_back({Part::Kind::kText, "", true, place});
  while (!at_end() && peek() != '\'') {
    word.parts.back().text += peek();
    advance();
  }
  if (at_end()) return problem(place, "this single quote is never closed");
  advance();
}

void Parser::read_ansi_quotes(Word& word) {
  constexpr std::string_view kLetters = "abefnrtv", kMeaning = "\a\b\x1b\f\n\r\t\v";
  const Place place = here();
  advance(2);
  word.parts.push_back({Part::Kind::kText, "", true, place});
  while (!at_end() && peek() != '\'') {
    char c = peek();
    if (c == '\\' && pos_ + 1 < text_.size()) {
      advance();
      const size_t known = kLetters.find(peek());
      c = known == std::string_view::npos ? peek() : kMeaning[known];
    }
    word.parts.back().text += c;
    advance();
  }
  if (at_end()) return problem(place, "this $' quote is never closed");
  advance();
}

void Parser::read_double_quotes(Word& word) {
  const Place place = here();
  advance();
  word.parts.push_back({Part::Kind::kText, "", true, place});
  while (!at_end() && peek() != '"') {
    if (peek() == '\\' && peek(1) == '\n') {
      advance(2);
    } else if (peek() == '\\' && std::string_view("$`\"\\").find(peek(1)) != std::string_view::npos &&
               peek(1) != '\0') {
      add_text(word, peek(1), true, here());
      advance(2);
    } else if (peek() == '$') {
      read_dollar(word, true);
    } else if (peek() == '`') {
      read_backquotes(word, true);
    } else {
      add_text(word, peek(), true, here());
      advance();
    }
  }
  if (at_end()) return problem(place, "this double quote is never closed");
  advance();
}

void Parser::read_dollar(Word& word, bool quoted) {
  const Place place = here();
  advance();
  if (peek() == '{') return read_braces(word, quoted, place);
  if (peek() == '(') return read_parentheses(word, quoted, place, "$(");
  if (!is_name_start(peek()) && (at_end() || !is_special_parameter(peek()))) return add_text(word, '$', quoted, place);
  Part part{Part::Kind::kVariable, std::string(1, peek()), quoted, place};
  const bool named = is_name_start(peek());
  advance();
  while (named && is_name_char(peek())) {
    part.text += peek();
    advance();
  }
  word.parts.push_back(std::move(part));
}

void Parser::read_braces(Word& word, bool quoted, Place place) {
  const size_t begin = pos_ + 1;
  skip_balanced('{', '}');
  if (text_[pos_ - 1] != '}') problem(place, "this ${ is never closed");
  std::string_view inside = text_.substr(begin, pos_ > begin ? pos_ - begin - 1 : 0);
  Part part{Part::Kind::kVariable, "", quoted, place};
  const bool prefixed = inside.size() > 1 && (inside.front() == '#' || inside.front() == '!');
  if (prefixed) {
    part.operation = inside.front();
    inside.remove_prefix(1);
  }
  size_t size = 0;
  while (size < inside.size() && is_name_char(inside[size])) ++size;
  if (size == 0 && !inside.empty()) size = 1;
  part.text = std::string(inside.substr(0, size));
  part.operation += inside.substr(size);
  word.parts.push_back(std::move(part));
}

// Behind the '{' or '(' that opens, up to and with the one that closes; quotes hide what is in them.
void Parser::skip_balanced(char open, char close) {
  int64_t depth = 0;
  while (!at_end()) {
    const char c = peek();
    if (c == '\\') {
      advance();
    } else if (c == '\'' || c == '"') {
      advance();
      while (!at_end() && peek() != c) {
        if (c == '"' && peek() == '\\') advance();
        if (!at_end()) advance();
      }
    } else if (c == open) {
      ++depth;
    } else if (c == close) {
      --depth;
    }
    if (!at_end()) advance();
    if (c == close && depth == 0) return;
  }
}

// The offset of the "))" that closes the "((" here, or npos when it is a subshell in a subshell.
size_t Parser::matching_arithmetic_end() const {
  constexpr size_t kLongest = 4096;  // of an expression; the bound keeps the search for its end short
  int64_t depth = 0;
  for (size_t at = pos_; at < text_.size(); ++at) {
    if (text_[at] == '(') ++depth;
    if (text_[at] == ')' && --depth == 0) return text_[at - 1] == ')' ? at - 1 : std::string_view::npos;
    if (at - pos_ > kLongest) break;
  }
  return std::string_view::npos;
}

// $( ... ), $(( ... )) and <( ... ); stands at the first parenthesis.
void Parser::read_parentheses(Word& word, bool quoted, Place place, std::string_view opener) {
  if (opener == "$(" && peek(1) == '(') {
    if (const size_t end = matching_arithmetic_end(); end != std::string_view::npos) {
      word.parts.push_back(
          {Part::Kind::kArithmetic, std::string(text_.substr(pos_ + 2, end - pos_ - 2)), quoted, place});
      return advance(end + 2 - pos_);
    }
  }
  advance();
  const size_t begin = pos_;
  Part part{Part::Kind::kCommand, "", quoted, place};
  part.commands = read_block(")");
  part.text = since(begin);
  if (peek() == ')') {
    advance();
  } else {
    problem(place, "this " + std::string(opener) + " is never closed");
  }
  word.parts.push_back(std::move(part));
}

void Parser::read_backquotes(Word& word, bool quoted) {
  const Place place = here();
  advance();
  const Place inside = here();
  Part part{Part::Kind::kCommand, "", quoted, place};
  while (!at_end() && peek() != '`') {
    if (peek() == '\\' && std::string_view("$`\\").find(peek(1)) != std::string_view::npos && peek(1) != '\0')
      advance();
    part.text += peek();
    advance();
  }
  if (at_end()) {
    problem(place, "this ` is never closed");
  } else {
    advance();
  }
  constexpr int kDeepestBackquotes = 8;  // `...` in `...` takes more backslashes than anyone writes
  if (depth_ < kDeepestBackquotes) {
    // Its own backslashes are gone from the copy, so columns behind one are off by as many.
    Script nested = Parser(part.text, inside, depth_ + 1).run();
    part.commands = std::move(nested.statements);
    for (Problem& each : nested.problems) script_.problems.push_back(std::move(each));
  }
  word.parts.push_back(std::move(part));
}

}  // namespace millrace::shell
