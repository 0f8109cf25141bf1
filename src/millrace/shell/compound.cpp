// SPDX-License-Identifier: Apache-2.0
// Statements that hold others or are written between keywords: if, while, for, case, functions, { }, ( ), [[ ]], (( )).
#include <array>
#include <utility>

#include "millrace/shell/parser.h"

namespace millrace::shell {

namespace {

using Kind = Statement::Kind;

}  // namespace

void Parser::read_compound(Statement& statement, std::string_view word) {
  const Place opened = here();
  if (word == "[[") return read_test(statement);
  if (word == "((" && matching_arithmetic_end() != std::string_view::npos) return read_arithmetic_command(statement);
  if (peek() == '(') {
    advance();
    statement.kind = Kind::kSubshell;
    statement.body = read_block(")");
    expect(")", opened, "(");
    return;
  }
  if (word == "if") return read_if(statement);
  if (word == "for" || word == "select") return read_for(statement);
  if (word == "case") return read_case(statement);
  if (word == "function") return read_function(statement);
  advance(word.size());
  if (word == "{") {
    statement.kind = Kind::kGroup;
    statement.body = read_block("|}|");
    expect("}", opened, "{");
    return;
  }
  statement.kind = word == "while" ? Kind::kWhile : Kind::kUntil;
  statement.condition = read_block("|do|");
  if (!expect("do", opened, word)) return;
  statement.body = read_block("|done|");
  expect("done", opened, word);
}

// Also an elif, which closes with the fi of its if.
void Parser::read_if(Statement& statement) {
  const Place opened = here();
  statement.kind = Kind::kIf;
  advance(keyword().size());
  statement.condition = read_block("|then|");
  if (!expect("then", opened, "if")) return;
  statement.body = read_block("|elif|else|fi|");
  skip_newlines();
  if (keyword() == "elif") {
    Statement nested;
    nested.place = here();
    const Nested deeper(depth_);
    if (depth_ > kDeepest) {
      problem(here(), "this is nested too deep to be followed");
      return advance(text_.size());
    }
    read_if(nested);
    nested.last_line = last_line_;
    statement.otherwise.push_back(std::move(nested));
    return;
  }
  if (keyword() == "else") {
    advance(4);
    statement.otherwise = read_block("|fi|");
  }
  expect("fi", opened, "if");
}

void Parser::read_for(Statement& statement) {
  const Place opened = here();
  const std::string_view word = keyword();
  statement.kind = Kind::kFor;
  advance(word.size());
  skip_blanks();
  if (looking_at("((")) {
    const size_t begin = pos_;
    const Place place = here();
    skip_balanced('(', ')');
    statement.words.push_back({since(begin), place, {{Part::Kind::kArithmetic, since(begin), false, place}}});
  } else {
    statement.words.push_back(read_word());
    skip_newlines();
    if (keyword() == "in") {
      advance(2);
      for (skip_blanks(); !at_word_end(); skip_blanks()) statement.words.push_back(read_word());
    }
  }
  skip_blanks();
  if (peek() == ';') advance();
  if (!expect("do", opened, word)) return;
  statement.body = read_block("|done|");
  expect("done", opened, word);
}

void Parser::read_case(Statement& statement) {
  const Place opened = here();
  statement.kind = Kind::kCase;
  advance(4);
  skip_blanks();
  statement.words.push_back(read_word());
  if (!expect("in", opened, "case")) return;
  for (skip_newlines(); !at_end() && keyword() != "esac"; skip_newlines()) {
    const size_t before = pos_;
    if (peek() == '(') advance();
    while (!at_end() && peek() != ')' && !at_line_end()) {  // the patterns
      skip_blanks();
      if (peek() == '|') advance();
      skip_blanks();
      if (at_word_end()) break;
      read_word();
      skip_blanks();
      if (peek() != '|') break;
    }
    if (peek() == ')') advance();
    Block arm = read_block("|;;|esac|");
    for (Statement& each : arm) statement.body.push_back(std::move(each));
    skip_newlines();
    while (peek() == ';' || peek() == '&') advance();
    if (pos_ == before) break;
  }
  expect("esac", opened, "case");
}

void Parser::read_function(Statement& statement) {
  statement.kind = Kind::kFunction;
  advance(8);
  skip_blanks();
  statement.words.push_back(read_word());
  skip_blanks();
  if (looking_at("()")) advance(2);
  skip_newlines();
  statement.body.push_back(read_statement());
}

// [[ ... ]]: operators and operands alike become words.
void Parser::read_test(Statement& statement) {
  const Place opened = here();
  statement.kind = Kind::kTest;
  statement.words.push_back({"[[", opened, {{Part::Kind::kText, "[[", false, opened}}});
  advance(2);
  while (!at_end()) {
    while (at_line_end() && !at_end()) take_newline();
    skip_blanks();
    if (at_line_end()) continue;
    if (looking_at("]]")) return advance(2);
    const size_t begin = pos_;
    const Place place = here();
    if (at_word_end()) {
      if (at_end() || peek() == ';') break;
      advance(looking_at("&&") || looking_at("||") ? 2 : 1);
      statement.words.push_back({since(begin), place, {{Part::Kind::kText, since(begin), false, place}}});
    } else {
      statement.words.push_back(read_word());
    }
  }
  problem(opened, "this '[[' has no ']]'");
}

void Parser::read_arithmetic_command(Statement& statement) {
  const Place place = here();
  const size_t begin = pos_ + 2, end = matching_arithmetic_end();
  statement.kind = Kind::kArithmetic;
  const std::string expression(text_.substr(begin, end - begin));
  statement.words.push_back({expression, place, {{Part::Kind::kArithmetic, expression, false, place}}});
  advance(end + 2 - pos_);
}

}  // namespace millrace::shell
