// SPDX-License-Identifier: Apache-2.0
#pragma once

// Writes canonical JSON, in which equal content gives equal text. It is compact, and the caller gives the keys of each
// object in the order of their bytes. Values; for one thread.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace millrace {

class JsonWriter {
 public:
  JsonWriter& key(std::string_view name);       // for names without characters that JSON escapes
  JsonWriter& text_key(std::string_view name);  // for names with any characters
  void open(char bracket);
  void close(char bracket);
  void boolean(bool value);
  void number(int64_t value);
  void numbers(std::span<const int64_t> values);
  void text(std::string_view value);           // keeps bytes that are no UTF-8
  void repaired_text(std::string_view value);  // replaces bytes that are no UTF-8 by U+FFFD
  std::string take();

 private:
  void separate();
  void escape(char c);

  std::string out_;
  bool fresh_ = true;  // the next value needs no comma before it
};

// Spreads canonical JSON over several lines, indented by two spaces. An empty list or object stays on one line.
// REQUIRES: JsonWriter wrote `compact`.
std::string indented(std::string_view compact);
// Removes white space outside of strings. A text that is no JSON gives another text that is no JSON.
std::string compact(std::string_view text);

}  // namespace millrace
