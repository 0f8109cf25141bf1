// SPDX-License-Identifier: Apache-2.0
#pragma once

// Writes canonical JSON: compact, and the caller gives the keys of each object in the order of their bytes, so that
// equal content gives equal text. Values; for one thread.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace millrace {

class JsonWriter {
 public:
  JsonWriter& key(std::string_view name);       // without characters that JSON escapes
  JsonWriter& text_key(std::string_view name);  // with any characters
  void open(char bracket);
  void close(char bracket);
  void boolean(bool value);
  void number(int64_t value);
  void numbers(std::span<const int64_t> values);
  void text(std::string_view value);           // bytes that are no UTF-8 stay as they are
  void repaired_text(std::string_view value);  // they become U+FFFD
  std::string take();

 private:
  void separate();
  void escape(char c);

  std::string out_;
  bool fresh_ = true;  // at the first value of a list or object, or at the value of a key
};

// Canonical JSON on lines of their own, indented by two spaces. An empty list or object stays on one line.
// REQUIRES: JsonWriter wrote `compact`.
std::string indented(std::string_view compact);
// `text` without white space outside of strings. What is no JSON gives some text that is none either.
std::string compact(std::string_view text);

}  // namespace millrace
