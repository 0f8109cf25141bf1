// SPDX-License-Identifier: Apache-2.0
#pragma once

// Parses a bash script into a tree: statements, words with their quotes and expansions, here-documents and comments,
// each with its place. The parser reads what linters need and never fails: it reports text that it cannot follow in
// Script::problems, and continues. Values and pure functions; thread-safe.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::shell {

// A place in a file. Lines and columns count from 1; columns count code points.
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
  std::string operation = {};  // for ${name:-x}: ":-x"; for ${name[0]}: "[0]"; for ${#name}: "#"
  Block commands;
};

struct Word {
  std::string source;  // as written in the script
  Place place;
  std::vector<Part> parts;

  // Returns the word's value if it needs no expansion. Tildes, globs and braces stay as they are.
  std::optional<std::string> literal() const;
  // Returns literal(), or `source` if there is none.
  std::string text() const { return literal().value_or(source); }
};

struct Assignment {
  std::string name;
  Place place;
  bool append = false;
  Word value;                    // empty for an array
  std::vector<Word> items = {};  // the values in name=(...)
  bool is_array = false;
};

struct Redirect {
  std::string op;                            // "<", ">>"; "2>" is ">" with fd 2
  int fd = -1;                               // -1: the operator's default
  Word target;                               // for a here-document: the word that ends it
  std::optional<size_t> here_document = {};  // index in Script::here_documents
};

struct HereDocument {
  std::string body;
  Place place;           // of its first line
  bool expands = false;  // the word that ends it is not quoted
};

struct Statement {
  enum class Kind { kCommand, kIf, kWhile, kUntil, kFor, kCase, kFunction, kSubshell, kGroup, kTest, kArithmetic };
  // The separator after the statement: `;`, a line end or `&`; `&&`; `||`; `|`.
  enum class Then { kEnd, kAnd, kOr, kPipe };

  Kind kind = Kind::kCommand;
  Place place;
  int64_t last_line = 0;
  bool negated = false;
  bool background = false;  // the list that it belongs to ends in `&`
  Then then = Then::kEnd;
  std::vector<Assignment> assignments = {};  // before a command, or arguments of export, declare, local, readonly
  std::vector<Word> words = {};  // command and arguments; for: name, then items; case: subject; function: name
  std::vector<Redirect> redirects = {};
  Block condition = {};  // if, while, until
  Block body = {};       // for all kinds with a body; case: its arms one after another
  Block otherwise = {};  // else branch; an elif is an if statement in here

  // Returns the command's name if it is plain text, else "".
  std::string name() const;
};

struct Comment {
  std::string text;  // including its '#'
  Place place;
  bool alone = false;  // first on its line
};

struct Problem {
  Place place;
  std::string message;
};

struct Script {
  std::vector<std::string> lines;  // without line ends
  Block statements;
  std::vector<HereDocument> here_documents;
  std::vector<Comment> comments;
  std::vector<Problem> problems;
  // Backslashes before blanks, or before blanks and a comment: they look like continuations but are not.
  std::vector<Place> broken_continuations;
  std::optional<Place> carriage_return;  // the first line that ends in \r\n
};

// Parses a script. `start`: the place of the text in its file.
Script parse(std::string_view text, Place start = {1, 1});

// Splits text into lines, without their ends \n or \r\n.
std::vector<std::string> split_lines(std::string_view text);

// The context of a statement.
struct Scope {
  const Statement* function = nullptr;  // the innermost function that contains it
  const Statement* loop = nullptr;      // the innermost loop around it
  bool condition = false;               // in the condition of an if, while or until
  bool substitution = false;            // inside $(...), `...` or <(...)
  bool subshell = false;                // inside ( ... )
  const Statement* before = nullptr;    // the previous statement in the same block
};

// Visits every statement in the order of the text, including statements inside words.
void visit(const Block& block, const std::function<void(const Statement&, const Scope&)>& see);
// Visits every word of one statement, including its assignments and redirections.
void visit_words(const Statement& statement, const std::function<void(const Word&)>& see);

bool is_name(std::string_view text);  // [A-Za-z_][A-Za-z0-9_]*

}  // namespace millrace::shell
