// SPDX-License-Identifier: Apache-2.0
#pragma once

// The recursive descent behind parse(): statements in shell.cpp, words in words.cpp. Every loop advances in the text
// or ends, and nesting is bounded, so the time is linear in the text.

#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/shell/shell.h"

namespace millrace::shell {

class Parser {
 public:
  explicit Parser(std::string_view text, Place start = {1, 1}, int depth = 0)
      : text_(text), line_(start.line), column_(start.column), depth_(depth) {}

  Script run();

 private:
  // Deeper than any real script, and shallow enough for any stack.
  static constexpr int kDeepest = 100;
  // Counts how deeply statements are nested.
  struct Nested {
    explicit Nested(int& count) : depth(count) { ++depth; }
    ~Nested() { --depth; }
    int& depth;
  };

  // --- text
  bool at_end() const { return pos_ >= text_.size(); }
  char peek(size_t ahead = 0) const { return pos_ + ahead < text_.size() ? text_[pos_ + ahead] : '\0'; }
  bool looking_at(std::string_view what) const { return text_.substr(pos_).starts_with(what); }
  Place here() const { return {line_, column_}; }
  void advance(size_t count = 1);
  std::string since(size_t begin) const { return std::string(text_.substr(begin, pos_ - begin)); }
  bool at_line_end() const { return peek() == '\n' || (peek() == '\r' && peek(1) == '\n'); }
  void problem(Place place, std::string message);

  // --- between words
  void skip_blanks();    // including continuations and comments
  void skip_newlines();  // including blanks
  void take_newline();
  void read_comment();
  void read_here_documents();

  // --- statements (shell.cpp, compound.cpp)
  Block read_block(std::string_view terminators);
  bool at_terminator(std::string_view terminators) const;
  void read_list(Block& block);
  bool read_separator(Block& block, size_t list_begin);
  Statement read_statement();
  void skip_coproc();
  void read_compound(Statement& statement, std::string_view keyword);
  void read_if(Statement& statement);
  void read_for(Statement& statement);
  void read_case(Statement& statement);
  void read_function(Statement& statement);
  void read_test(Statement& statement);
  void read_arithmetic_command(Statement& statement);
  void read_command(Statement& statement);
  bool read_assignment(Statement& statement);
  bool read_redirect(Statement& statement);
  std::string_view keyword() const;
  bool expect(std::string_view word, Place opened, std::string_view opener);
  size_t array_assignment_size() const;

  // --- words (words.cpp)
  Word read_word();
  bool at_word_end() const;
  void read_word_piece(Word& word);
  void read_single_quotes(Word& word);
  void read_double_quotes(Word& word);
  void read_ansi_quotes(Word& word);
  void read_dollar(Word& word, bool quoted);
  void read_braces(Word& word, bool quoted, Place place);
  void read_parentheses(Word& word, bool quoted, Place place, std::string_view opener);
  void read_backquotes(Word& word, bool quoted);
  void read_backslash(Word& word);
  void read_nested_text(Word& word);
  size_t matching_arithmetic_end() const;
  void skip_balanced(char open, char close);
  static void add_text(Word& word, char c, bool quoted, Place place);

  std::string_view text_;
  size_t pos_ = 0;
  int64_t line_;
  int64_t column_;
  int depth_;
  int64_t last_line_ = 1;  // line of the last token that is neither blank nor a line end
  struct Pending {
    size_t index;
    std::string end;
    bool strip_tabs;
  };
  std::deque<Pending> pending_;
  Script script_;
};

}  // namespace millrace::shell
