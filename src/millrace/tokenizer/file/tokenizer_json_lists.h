// SPDX-License-Identifier: Apache-2.0
#pragma once

// Reads the vocabulary and the merges of a tokenizer.json, which make up most of a large one, straight from its text.
// This takes a third of the time and a quarter of the memory of a JSON document. Two threads share the work for a
// large file. Thread-safe.

#include <deque>
#include <optional>
#include <string>
#include <string_view>

#include "millrace/tokenizer/file/tokenizer_json.h"

namespace millrace::tokenizer {

struct LongLists {
  VocabularySpec vocab;
  MergesSpec merges;
  std::deque<std::string> unescaped, unescaped_merges;  // tokens that the file writes with escapes, unescaped
  std::string rest;                                     // the file with {} and [] in place of the two lists
};

// Returns nullopt if the file is not formatted as tools write it; the caller then reads all of it as JSON. If `rest`
// is JSON, so was the file, and both lists were valid. `json` and the result must outlive the string_views.
std::optional<LongLists> read_long_lists(std::string_view json);

}  // namespace millrace::tokenizer
