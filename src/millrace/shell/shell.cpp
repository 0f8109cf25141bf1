// SPDX-License-Identifier: Apache-2.0
#include "millrace/shell/shell.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

#include "millrace/base/text/ascii.h"
#include "millrace/shell/parser.h"

namespace millrace::shell {

namespace {

using Kind = Statement::Kind;

bool is_continuation_byte(char c) {
  return (static_cast<unsigned char>(c) & 0xC0) == 0x80;
}

// `words` is "|then|fi|": whether `word` is one of them.
bool is_one_of(std::string_view words, std::string_view word) {
  for (size_t at = words.find(word); at != std::string_view::npos && !word.empty(); at = words.find(word, at + 1)) {
    if (at > 0 && words[at - 1] == '|' && words[at + word.size()] == '|') return true;
  }
  return false;
}

constexpr std::string_view kClosers = "|then|fi|do|done|else|elif|esac|}|";
constexpr std::string_view kCompounds = "|if|while|until|for|select|case|function|{|[[|((|";
constexpr std::string_view kDeclarations = "|export|declare|local|readonly|typeset|";
// Longest first.
constexpr std::array<std::string_view, 12> kRedirects = {"&>>", "<<<", "<<-", "<<", ">>", "<&",
                                                         ">&",  ">|",  "<>",  "&>", "<",  ">"};

}  // namespace

std::vector<std::string> split_lines(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    if (line.ends_with('\r')) line.remove_suffix(1);
    lines.emplace_back(line);
    text.remove_prefix(std::min(text.size(), end + 1));
  }
  return lines;
}

std::string Statement::name() const {
  return words.empty() ? std::string() : words.front().literal().value_or("");
}

Script parse(std::string_view text, Place start) {
  Script script = Parser(text, start).run();
  script.lines = split_lines(text);
  return script;
}

Script Parser::run() {
  script_.statements = read_block("");
  for (const Pending& pending : pending_)
    problem(here(), "the here-document that ends in " + pending.end + " never begins");
  return std::move(script_);
}

void Parser::problem(Place place, std::string message) {
  constexpr size_t kEnough = 20;  // later problems follow from the first ones
  if (script_.problems.size() < kEnough) script_.problems.push_back({place, std::move(message)});
}

void Parser::advance(size_t count) {
  for (; count > 0 && !at_end(); --count) {
    const char c = text_[pos_++];
    if (c == '\n') {
      ++line_;
      column_ = 1;
      continue;
    }
    if (!is_continuation_byte(c)) ++column_;
    if (c != ' ' && c != '\t' && c != '\r') last_line_ = line_;
  }
}

void Parser::skip_blanks() {
  for (;;) {
    if (peek() == ' ' || peek() == '\t') {
      advance();
    } else if (peek() == '\\' && peek(1) == '\n') {
      advance(2);
    } else if (peek() == '\\' && peek(1) == '\r' && peek(2) == '\n') {
      if (!script_.carriage_return) script_.carriage_return = here();
      advance(3);
    } else if (peek() == '#') {
      read_comment();
    } else {
      return;
    }
  }
}

void Parser::read_comment() {
  const Place place = here();
  const size_t begin = pos_;
  const int64_t kept = last_line_;
  size_t line_begin = begin;
  while (line_begin > 0 && text_[line_begin - 1] != '\n') --line_begin;
  while (!at_end() && !at_line_end()) advance();
  last_line_ = kept;
  const bool alone = text_.substr(line_begin, begin - line_begin).find_first_not_of(" \t") == std::string_view::npos;
  script_.comments.push_back({since(begin), place, alone});
}

void Parser::take_newline() {
  if (peek() == '\r') {
    if (!script_.carriage_return) script_.carriage_return = here();
    advance();
  }
  advance();
  read_here_documents();
}

void Parser::skip_newlines() {
  for (skip_blanks(); !at_end() && at_line_end(); skip_blanks()) take_newline();
}

void Parser::read_here_documents() {
  for (; !pending_.empty(); pending_.pop_front()) {
    const Pending pending = pending_.front();
    HereDocument& document = script_.here_documents[pending.index];
    const Place opened = document.place;
    document.place = here();
    bool closed = false;
    while (!at_end() && !closed) {
      const size_t end = std::min(text_.find('\n', pos_), text_.size());
      std::string_view line = text_.substr(pos_, end - pos_);
      std::string_view stripped = line;
      if (pending.strip_tabs) stripped.remove_prefix(std::min(stripped.find_first_not_of('\t'), stripped.size()));
      if (stripped.ends_with('\r')) stripped.remove_suffix(1);
      closed = stripped == pending.end;
      if (!closed) document.body += std::string(line) + "\n";
      advance(line.size() + 1);
    }
    if (!closed) problem(opened, "the here-document has no line that is only " + pending.end);
  }
}

// The plain word here, if it could be a reserved one.
std::string_view Parser::keyword() const {
  const std::string_view rest = text_.substr(pos_);
  if (rest.starts_with("[[") || rest.starts_with("((")) return rest.substr(0, 2);
  if (!rest.empty() && (rest[0] == '{' || rest[0] == '}' || rest[0] == '!')) {
    return rest.size() == 1 || std::string_view(" \t\n\r;&|)<>").find(rest[1]) != std::string_view::npos
               ? rest.substr(0, 1)
               : std::string_view();
  }
  size_t size = 0;
  while (size < rest.size() && std::isalpha(static_cast<unsigned char>(rest[size])) != 0) ++size;
  if (size < rest.size() && std::string_view(" \t\n\r;&|()<>").find(rest[size]) == std::string_view::npos) return {};
  return rest.substr(0, size);
}

bool Parser::at_terminator(std::string_view terminators) const {
  if (at_end()) return true;
  if (terminators == ")") return peek() == ')';
  if (is_one_of(terminators, ";;") && (looking_at(";;") || looking_at(";&"))) return true;
  return is_one_of(terminators, keyword());
}

Block Parser::read_block(std::string_view terminators) {
  Block block;
  const Nested nested(depth_);
  if (depth_ > kDeepest) {
    problem(here(), "this is nested too deep to be followed");
    advance(text_.size());
    return block;
  }
  for (skip_newlines(); !at_terminator(terminators); skip_newlines()) {
    const size_t before = pos_;
    read_list(block);
    if (pos_ > before) continue;
    problem(here(), "'" + std::string(1, peek()) + "' cannot stand here");
    advance();
  }
  return block;
}

// One list up to its end: `a && b | c &`.
void Parser::read_list(Block& block) {
  const size_t list_begin = block.size();
  do {
    skip_newlines();
    const std::string_view word = keyword();
    if (is_one_of(kClosers, word)) {
      problem(here(), "'" + std::string(word) + "' closes nothing");
      advance(word.size());
      return;
    }
    const size_t before = pos_;
    Statement statement = read_statement();
    if (pos_ == before) return;
    block.push_back(std::move(statement));
    skip_blanks();
  } while (read_separator(block, list_begin));
}

// True when the list continues.
bool Parser::read_separator(Block& block, size_t list_begin) {
  static constexpr std::array<std::pair<std::string_view, Statement::Then>, 4> kJoins = {
      {{"&&", Statement::Then::kAnd},
       {"||", Statement::Then::kOr},
       {"|&", Statement::Then::kPipe},
       {"|", Statement::Then::kPipe}}};
  for (const auto& [sign, then] : kJoins) {
    if (!looking_at(sign)) continue;
    advance(sign.size());
    block.back().then = then;
    return true;
  }
  if (looking_at(";;") || looking_at(";&")) return false;
  if (peek() == '&') {
    for (size_t i = list_begin; i < block.size(); ++i) block[i].background = true;
  }
  if (peek() == '&' || peek() == ';') advance();
  return false;
}

// `coproc NAME compound`, `coproc compound` or `coproc command`: passes over what stands before the statement.
void Parser::skip_coproc() {
  advance(keyword().size());
  skip_blanks();
  const std::string_view rest = text_.substr(pos_);
  size_t size = 0;
  while (size < rest.size() && (std::isalnum(static_cast<unsigned char>(rest[size])) != 0 || rest[size] == '_')) ++size;
  const size_t next = std::min(rest.find_first_not_of(" \t", size), rest.size());
  if (size == 0 || next == size || is_one_of(kCompounds, keyword())) return;
  // A name stands before a compound only.
  const Parser behind(rest.substr(next));
  if (is_one_of(kCompounds, behind.keyword()) || behind.peek() == '(') advance(next);
}

Statement Parser::read_statement() {
  Statement statement;
  statement.place = here();
  statement.last_line = line_;
  while (keyword() == "!") {
    statement.negated = !statement.negated;
    advance();
    skip_blanks();
  }
  if (keyword() == "coproc") {
    skip_coproc();
    statement.background = true;
  }
  const std::string_view word = keyword();
  if (is_one_of(kCompounds, word) || peek() == '(') {
    read_compound(statement, word);
    for (skip_blanks(); read_redirect(statement); skip_blanks()) {
    }
  } else {
    read_command(statement);
  }
  statement.last_line = std::max(statement.place.line, last_line_);
  return statement;
}

bool Parser::expect(std::string_view word, Place opened, std::string_view opener) {
  skip_newlines();
  const bool there = word == ")" ? peek() == ')' : keyword() == word;
  if (there) {
    advance(word.size());
  } else {
    problem(opened, "this '" + std::string(opener) + "' has no '" + std::string(word) + "'");
  }
  return there;
}

void Parser::read_command(Statement& statement) {
  for (skip_blanks(); !at_end(); skip_blanks()) {
    if (read_redirect(statement)) continue;
    const bool declares = !statement.words.empty() && is_one_of(kDeclarations, statement.name());
    if ((statement.words.empty() || declares) && read_assignment(statement)) continue;
    if (statement.words.size() == 1 && peek() == '(' && is_name(statement.name().substr(0, 1))) {
      const size_t before = pos_;
      advance();
      skip_blanks();
      if (peek() != ')') return problem(here(), "'(' cannot stand here");
      advance();
      skip_newlines();
      statement.kind = Kind::kFunction;
      if (pos_ > before) statement.body.push_back(read_statement());
      return;
    }
    if (at_word_end() && !((peek() == '<' || peek() == '>') && peek(1) == '(')) return;
    statement.words.push_back(read_word());
  }
}

// The size of `name=`, `name+=` or `name[...]=` here; 0 for anything else.
size_t Parser::array_assignment_size() const {
  size_t at = pos_;
  while (at < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[at])) != 0 || text_[at] == '_')) ++at;
  if (at == pos_ || is_digit(text_[pos_])) return 0;
  if (at < text_.size() && text_[at] == '[') {
    while (at < text_.size() && text_[at] != ']' && text_[at] != '\n') ++at;
    if (at < text_.size() && text_[at] == ']') ++at;
  }
  if (at < text_.size() && text_[at] == '+') ++at;
  return at < text_.size() && text_[at] == '=' ? at + 1 - pos_ : 0;
}

bool Parser::read_assignment(Statement& statement) {
  const size_t size = array_assignment_size();
  if (size == 0) return false;
  const std::string_view left = text_.substr(pos_, size);
  Assignment assignment{std::string(left.substr(0, left.find_first_of("[+="))), here(), left.ends_with("+="), {}};
  advance(size);
  if (peek() == '(') {
    const Place opened = here();
    assignment.is_array = true;
    assignment.value.place = opened;
    advance();
    for (skip_newlines(); !at_end() && peek() != ')'; skip_newlines()) {
      if (at_word_end()) {
        problem(here(), "'" + std::string(1, peek()) + "' cannot stand in an array");
        advance();
      } else {
        assignment.items.push_back(read_word());
      }
    }
    if (at_end()) problem(opened, "this '(' has no ')'");
    advance();
  } else {
    assignment.value = read_word();
  }
  statement.assignments.push_back(std::move(assignment));
  return true;
}

bool Parser::read_redirect(Statement& statement) {
  size_t digits = 0;
  while (is_digit(peek(digits))) ++digits;
  const std::string_view rest = text_.substr(std::min(pos_ + digits, text_.size()));
  const auto* op =
      std::find_if(kRedirects.begin(), kRedirects.end(), [&](std::string_view each) { return rest.starts_with(each); });
  if (op == kRedirects.end()) return false;
  const bool substitution = digits == 0 && op->size() == 1 && rest.size() > 1 && rest[1] == '(';
  if (substitution || digits > 4) return false;
  Redirect redirect{std::string(*op), -1, {}};
  if (digits > 0) redirect.fd = std::stoi(std::string(text_.substr(pos_, digits)));
  advance(digits + op->size());
  skip_blanks();
  redirect.target = read_word();
  if (*op == "<<" || *op == "<<-") {
    const bool quoted = std::any_of(redirect.target.parts.begin(), redirect.target.parts.end(),
                                    [](const Part& part) { return part.quoted; });
    redirect.here_document = script_.here_documents.size();
    pending_.push_back({script_.here_documents.size(), redirect.target.text(), *op == "<<-"});
    script_.here_documents.push_back({"", redirect.target.place, !quoted});
  }
  statement.redirects.push_back(std::move(redirect));
  return true;
}

}  // namespace millrace::shell
