// SPDX-License-Identifier: Apache-2.0
// Whatever the bytes, a YAML file is read to the end or its problem is named, and every place lies in the file.
#include <algorithm>

#include "invariants.h"
#include "millrace/formats/yaml/yaml.h"

namespace {

using namespace millrace::yaml;
using millrace::tokenizer::require;

void check_places(const Node& node, int64_t lines) {
  require(node.at.line >= 1 && node.at.line <= lines && node.at.column >= 1, "a value has a place in the file");
  for (const Node& item : node.items) check_places(item, lines);
  for (const Entry& entry : node.entries) {
    require(entry.at.line >= 1 && entry.at.line <= lines, "a key has a place in the file");
    require(node.find(entry.key) == &entry.value, "a key is found, and is there once");
    check_places(entry.value, lines);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // SAFETY: char may alias any object.
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const Document document = parse(text);
  const bool syntax = std::any_of(document.problems.begin(), document.problems.end(),
                                  [](const Problem& problem) { return problem.kind == Problem::Kind::kSyntax; });
  require(!syntax || document.root.is_null(), "nothing is taken of a file that cannot be read");
  const int64_t lines = 1 + std::count_if(text.begin(), text.end(), [](char c) { return c == '\n' || c == '\r'; });
  if (!document.root.is_null()) check_places(document.root, lines + 1);
  for (const Comment& comment : document.comments) require(comment.at.line <= lines, "a comment lies in the file");
  static_cast<void>(repaired_mojibake(text));
  return document.problems.empty() ? 0 : -1;
}
