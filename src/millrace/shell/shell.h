// SPDX-License-Identifier: Apache-2.0
#pragma once

// A bash script as a tree: statements, words with their quotes and expansions, here-documents, comments, each with its
// place. The parser reads what linters need and never fails: it reports what it cannot follow in Script::problems, and
// continues. Values and pure functions; thread-safe.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::shell {

// From 1; columns count code points.
struct Place {
  int64_t line = 0, column = 0;
  bool operator==(const Place&) const = default;
};

struct Statement;
using Block = std::vector<Statement>;

// A piece of a word.
struct Part {
  enum class Kind {
    kText,        // `text` as bash sees it, without quotes and backslashes
    kVariable,    // $text or ${text...}; `text` may also be "?", "!", "@", "1"
    kCommand,     // $(...), `...`, <(...): `commands`
    kArithmetic,  // $((text))
  };
  Kind kind = Kind::kText;
  std::string text;
  bool quoted = false;
  Place place;
  std::string operation = {};  // of ${name:-x}: ":-x"; of ${name[0]}: "[0]"; of ${#name}: "#"
  Block commands;
};

struct Word {
  std::string source;  // as it is written
  Place place;
  std::vector<Part> parts;

  // Its value, if it needs no expansion. Tildes, globs and braces stay as they are.
  std::optional<std::string> literal() const;
  // literal(), or `source` without one.
  std::string text() const { return literal().value_or(source); }
};

struct Assignment {
  std::string name;
  Place place;
  bool append = false;
  Word value;                    // empty for an array
  std::vector<Word> items = {};  // of name=(...)
  bool is_array = false;
};

struct Redirect {
  std::string op;                            // "<", ">>", "2>" is ">" with fd 2
  int fd = -1;                               // -1: the operator's own
  Word target;                               // of a here-document, its end
  std::optional<size_t> here_document = {};  // into Script::here_documents
};

struct HereDocument {
  std::string body;
  Place place;           // of its first line
  bool expands = false;  // its end was not quoted
};

struct Statement {
  enum class Kind { kCommand, kIf, kWhile, kUntil, kFor, kCase, kFunction, kSubshell, kGroup, kTest, kArithmetic };
  // The separator behind it: `;`, a line's end or `&`; `&&`; `||`; `|`.
  enum class Then { kEnd, kAnd, kOr, kPipe };

  Kind kind = Kind::kCommand;
  Place place;
  int64_t last_line = 0;
  bool negated = false;
  bool background = false;  // its whole list ends in `&`
  Then then = Then::kEnd;
  std::vector<Assignment> assignments = {};  // before a command, or arguments of export, declare, local, readonly
  std::vector<Word> words = {};  // command and arguments; for: name, then items; case: subject; function: name
  std::vector<Redirect> redirects = {};
  Block condition = {};  // if, while, until
  Block body = {};       // of all kinds with a body; case: its arms one after another
  Block otherwise = {};  // else; an elif is an if in here

  // The command's name where it is plain, else "".
  std::string name() const;
};

struct Comment {
  std::string text;  // with its '#'
  Place place;
  bool alone = false;  // first on its line
};

struct Problem {
  Place place;
  std::string message;
};

struct Script {
  std::vector<std::string> lines;  // without their ends
  Block statements;
  std::vector<HereDocument> here_documents;
  std::vector<Comment> comments;
  std::vector<Problem> problems;
  // A backslash before blanks, or before blanks and a comment: it looks like a continuation and is none.
  std::vector<Place> broken_continuations;
  std::optional<Place> carriage_return;  // the first line that ends in \r\n
};

// `start`: the place of the text in its file.
Script parse(std::string_view text, Place start = {1, 1});

// Without their ends, \n or \r\n.
std::vector<std::string> split_lines(std::string_view text);

// The context of a statement.
struct Scope {
  const Statement* function = nullptr;  // the innermost that defines it
  const Statement* loop = nullptr;      // the innermost loop around it
  bool condition = false;               // of an if, while or until
  bool substitution = false;            // inside $(...), `...` or <(...)
  bool subshell = false;                // inside ( ... )
  const Statement* before = nullptr;    // the one before it in the same block
};

// Visits every statement in the order of the text, including those inside words.
void visit(const Block& block, const std::function<void(const Statement&, const Scope&)>& see);
// Visits every word of one statement, of its assignments and redirections too.
void visit_words(const Statement& statement, const std::function<void(const Word&)>& see);

bool is_name(std::string_view text);  // [A-Za-z_][A-Za-z0-9_]*

}  // namespace millrace::shell
