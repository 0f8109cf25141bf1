// SPDX-License-Identifier: Apache-2.0
#pragma once

// Reads YAML files that people write by hand, with the place of every key and value. Follows YAML 1.1 and PyYAML:
// resolves anchors, aliases and merge keys; a key that is given twice has its last value. Problems of the file itself
// (tabs, bytes that are not UTF-8, text that was read in a wrong encoding) are listed, and reading goes on where
// possible. No I/O. Documents are values; thread-safe.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::yaml {

// A place in the text. Line and column count from 1, the column in characters. 0: no place.
struct Place {
  int64_t line = 0;
  int64_t column = 0;
  bool operator==(const Place&) const = default;
};

struct Entry;

struct Node {
  enum class Kind { kNull, kScalar, kSequence, kMapping };
  Kind kind = Kind::kNull;
  Place at;
  bool plain = true;           // of a scalar: written without quotes, so its text decides its type
  std::string text;            // of a scalar
  std::vector<Node> items;     // of a sequence
  std::vector<Entry> entries;  // of a mapping: in file order, each key once; merged keys last

  bool is_null() const { return kind == Kind::kNull; }
  bool is_scalar() const { return kind == Kind::kScalar; }
  bool is_sequence() const { return kind == Kind::kSequence; }
  bool is_mapping() const { return kind == Kind::kMapping; }
  // Return null if this is not a mapping or has no such key.
  const Entry* entry(std::string_view key) const;
  const Node* find(std::string_view key) const;
};

struct Entry {
  std::string key;
  Place at;
  Node value;
};

struct Problem {
  enum class Kind {
    kSyntax,        // reading stopped there; the document's root is null
    kDuplicateKey,  // the last value counts
    kEncoding,      // ill-formed bytes, read as U+FFFD, or text that was once read in a wrong encoding
  };
  Kind kind;
  Place at;
  std::string message;
};

// The text of a line from the '#' that starts a comment.
struct Comment {
  Place at;  // of the '#'
  std::string text;
  bool alone = false;  // nothing else is on the line
};

struct Document {
  Node root;
  std::vector<Problem> problems;  // by place
  std::vector<Comment> comments;  // by place
};

// Limits. A file with more bytes, deeper nesting, or more nodes after aliases are expanded is refused as kSyntax.
inline constexpr size_t kMaxBytes = 4 << 20;
inline constexpr int kMaxDepth = 64;
inline constexpr int64_t kMaxNodes = 200'000;

// Parses the first document of `text`. Further documents are a kSyntax problem.
Document parse(std::string_view text);

// The type of a plain scalar in YAML 1.1.
enum class Type { kNull, kText, kBool, kInt, kFloat, kDate };
Type type_of(const Node& scalar);
std::string_view type_name(Type type);  // "a text", "a yes/no value", "a whole number", ...

// Return the value if the scalar, plain or quoted, can be read as one. A bool may also be 0 or 1.
std::optional<bool> as_bool(const Node& node);
std::optional<int64_t> as_int(const Node& node);
std::optional<double> as_number(const Node& node);

// Returns `text`, in quotes if YAML would otherwise read something else.
std::string scalar(std::string_view text);

// Repairs text that was read as cp1254 or cp1252 and stored as UTF-8 again ("Ã¼" for "ü"). nullopt when `text` is not
// such text, or its bytes are ambiguous.
std::optional<std::string> repaired_mojibake(std::string_view text);

}  // namespace millrace::yaml
