// SPDX-License-Identifier: Apache-2.0
#pragma once

// Which files a copy, a listing or a removal takes: --include and --exclude as rsync reads them. Rules are asked in
// their order and the first that matches decides; what no rule matches passes. A file whose folder is excluded does not
// pass, whatever later rules say of it.
//
//  - "/x" matches from the top only, "x" at any depth; "x/" matches folders only.
//  - '*' is any run without '/', '**' any run at all, '?' one byte but '/', "[a-z]", "[!a]", "[[:digit:]]" a set of
//    bytes. "x/***" is the folder x and everything in it. With one of "*?[" in it, a '\' makes the next byte plain.
//  - A pattern with a '/' inside or with "**" is held against the whole path (or its last components, as many as it
//    has), any other against the last component.
//
// A Filter may be asked from many threads once it is made; a FilterWalk belongs to one.

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
  // Errors: invalid_argument: empty, a '[' that no ']' closes, a '\' at the end, an unknown class.
  [[nodiscard]] static Result<Pattern> compile(std::string_view text);
  // `path` is relative, without '/' at its ends. Takes time in proportion to both lengths, whatever the pattern.
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
  size_t slashes_ = 0;         // in the text, without the one at the end
  bool anchored_ = false;      // began with '/'
  bool folders_only_ = false;  // ended in '/'
  bool deep_ = false;          // has "**"
  bool deep_start_ = false;    // begins with it
  bool deepest_end_ = false;   // ends in "***"
};

class Filter {
 public:
  // Errors: those of Pattern::compile.
  [[nodiscard]] Status include(std::string_view pattern) { return add(pattern, true); }
  [[nodiscard]] Status exclude(std::string_view pattern) { return add(pattern, false); }
  // Lines "+ PATTERN" and "- PATTERN"; empty ones and those that begin with '#' or ';' are passed over. `name` is for
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

// Filter::passes for paths that come in byte order: folders that stay the same are not asked again.
class FilterWalk {
 public:
  // `filter` must outlive this.
  explicit FilterWalk(const Filter& filter) : filter_(filter) {}
  bool passes(std::string_view path);
  // Whether the folders of a path pass; that of a folder ends in '/'.
  bool passes_folders(std::string_view path);

 private:
  const Filter& filter_;
  std::string allowed_;   // the last folder that passed, ends in '/' or is empty
  std::string excluded_;  // the last folder that did not, ends in '/' or is empty
};

}  // namespace millrace::sync
