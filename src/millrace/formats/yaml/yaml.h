// SPDX-License-Identifier: Apache-2.0
#pragma once

// YAML files that people write by hand, read with the place of every key and value, as YAML 1.1 and PyYAML have them:
// anchors, aliases and merge keys are followed, a key that is given twice keeps its last value. What is wrong with the
// file itself (tabs, letters that are not UTF-8, text that went through a wrong encoding) is listed, and reading goes
// on where it can. No I/O. Documents are values; thread-safe.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::yaml {

// Both from 1, the column in characters. 0: no place.
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
  bool plain = true;           // of a scalar: written without quotes, so that its type follows from its letters
  std::string text;            // of a scalar
  std::vector<Node> items;     // of a sequence
  std::vector<Entry> entries;  // of a mapping: in the file's order, each key once; merged keys behind its own

  bool is_null() const { return kind == Kind::kNull; }
  bool is_scalar() const { return kind == Kind::kScalar; }
  bool is_sequence() const { return kind == Kind::kSequence; }
  bool is_mapping() const { return kind == Kind::kMapping; }
  // Null where this is not a mapping or has no such key.
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
    kSyntax,        // reading stopped there: the document's root is null
    kDuplicateKey,  // the last value counts
    kEncoding,      // ill-formed letters, which are read as U+FFFD, or text read once with a wrong encoding
  };
  Kind kind;
  Place at;
  std::string message;
};

// The text of a line from the '#' that starts a comment.
struct Comment {
  Place at;  // of the '#'
  std::string text;
  bool alone = false;  // it has the line to itself
};

struct Document {
  Node root;
  std::vector<Problem> problems;  // by place
  std::vector<Comment> comments;  // by place
};

// A file of more bytes, a deeper one, or one whose aliases stand for more nodes than this is refused as kSyntax.
inline constexpr size_t kMaxBytes = 4 << 20;
inline constexpr int kMaxDepth = 64;
inline constexpr int64_t kMaxNodes = 200'000;

// The first document of `text`; that there are more is a kSyntax problem.
Document parse(std::string_view text);

// The type of a plain scalar in YAML 1.1.
enum class Type { kNull, kText, kBool, kInt, kFloat, kDate };
Type type_of(const Node& scalar);
std::string_view type_name(Type type);  // "a text", "a yes/no value", "a whole number", ...

// The value where the scalar, plain or quoted, can be read as one; a bool also as 0 or 1.
std::optional<bool> as_bool(const Node& node);
std::optional<int64_t> as_int(const Node& node);
std::optional<double> as_number(const Node& node);

// `text` in quotes where YAML would otherwise read something else.
std::string scalar(std::string_view text);

// Repairs text that was read as cp1254 or cp1252 and stored as UTF-8 again ("Ã¼" for "ü"). nullopt when `text` is not
// such text, or its bytes are ambiguous.
std::optional<std::string> repaired_mojibake(std::string_view text);

}  // namespace millrace::yaml
