// SPDX-License-Identifier: Apache-2.0
#pragma once

// Selects the files of a copy, a listing or a removal: --include and --exclude as rsync reads them. The first rule
// that matches decides. A file that no rule matches passes. A file in an excluded folder does not pass, even if a
// later rule includes it.
//
//  - "/x" matches from the top only, "x" at any depth; "x/" matches folders only.
//  - '*' matches any run of bytes without '/', '**' any run of bytes, '?' one byte except '/', and "[a-z]", "[!a]",
//    "[[:digit:]]" one byte of a set. "x/***" matches the folder x and everything in it. In a pattern with one of
//    "*?[", a '\' makes the next byte literal.
//  - A pattern with a '/' inside or with "**" is compared with the whole path (or with as many of its last components
//    as the pattern has). Any other pattern is compared with the last component.
//
// Many threads may use a Filter once it is complete; a FilterWalk belongs to one thread.

#include <bitset>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/status.h"

namespace millrace::sync {

// One pattern, compiled. A value.
class Pattern {
 public:
  // Compiles a pattern. Errors: invalid_argument (empty, a '[' that no ']' closes, a '\' at the end, an unknown
  // class).
  [[nodiscard]] static Result<Pattern> compile(std::string_view text);
  // Whether `path` matches. It is relative, without '/' at its ends. For any pattern, the time is proportional to the
  // product of both lengths at most.
  bool matches(std::string_view path, bool is_folder) const;

 private:
  struct Token {
    enum class Kind { kByte, kAny, kSet, kStar, kDeepStar } kind;
    char byte = 0;
    uint32_t set = 0;  // index in sets_
  };
  [[nodiscard]] Status add_set(std::string_view text, size_t& at);
  bool matches_all(std::string_view text) const;

  std::vector<Token> tokens_;
  std::vector<std::bitset<256>> sets_;
  size_t slashes_ = 0;         // number of '/' in the text, without the one at the end
  bool anchored_ = false;      // the text began with '/'
  bool folders_only_ = false;  // the text ended in '/'
  bool deep_ = false;          // the text has "**"
  bool deep_start_ = false;    // the text begins with "**"
  bool deepest_end_ = false;   // the text ends in "***"
};

class Filter {
 public:
  // Errors: those of Pattern::compile.
  [[nodiscard]] Status include(std::string_view pattern) { return add(pattern, true); }
  [[nodiscard]] Status exclude(std::string_view pattern) { return add(pattern, false); }
  // Adds lines "+ PATTERN" and "- PATTERN". Ignores empty lines and lines that begin with '#' or ';'. `name` is for
  // messages. Errors: invalid_argument naming the line.
  [[nodiscard]] Status add_lines(std::string_view lines, std::string_view name);

  bool empty() const { return rules_.empty(); }
  // Whether the rules allow this path by itself, without the folders above it.
  bool allows(std::string_view path, bool is_folder) const;
  // Whether a file passes: it and every folder above it are allowed.
  bool passes(std::string_view path) const;

 private:
  struct Rule {
    Pattern pattern;
    bool include = false;
  };
  [[nodiscard]] Status add(std::string_view pattern, bool include);
  std::vector<Rule> rules_;
};

// Filter::passes for paths in byte order: a folder is not checked again for the next path in it.
class FilterWalk {
 public:
  // `filter` must outlive this.
  explicit FilterWalk(const Filter& filter) : filter_(filter) {}
  bool passes(std::string_view path);
  // Whether the folders of a path pass. The path of a folder ends in '/'.
  bool passes_folders(std::string_view path);

 private:
  const Filter& filter_;
  std::string allowed_;   // the last folder that passed, ends in '/' or is empty
  std::string excluded_;  // the last folder that did not pass, ends in '/' or is empty
};

}  // namespace millrace::sync
