// SPDX-License-Identifier: Apache-2.0
#pragma once

// The precompiled_charsmap of SentencePiece, applied as the Precompiled normalizer of `tokenizers` does: to a grapheme
// cluster as a whole if it is shorter than 6 bytes, otherwise to each character. If the map has several prefixes, the
// shortest is used. Layout: little-endian u32 size of the trie in bytes; the trie, a double array of u32 units
// (Darts); then zero-terminated strings. The trie's values are offsets into the strings. Immutable, thread-safe.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/status.h"
#include "millrace/tokenizer/text/normal_forms.h"

namespace millrace::tokenizer {

class PrecompiledMap {
 public:
  // Parses the map. Errors: invalid_argument (a damaged map).
  [[nodiscard]] static Result<PrecompiledMap> parse(std::string_view bytes);

  // Appends the normalized characters of `text`.
  void normalize(std::string_view text, std::vector<NormalizedChar>& out) const;
  // Returns true if normalize() certainly leaves `text` unchanged.
  bool is_surely_normal(std::string_view text) const;

 private:
  PrecompiledMap(std::vector<uint32_t> units, std::string strings);
  // Returns the replacement of the shortest prefix of `chunk` that is in the map.
  std::optional<std::string_view> find(std::string_view chunk) const;
  void append_cluster(std::string_view cluster, std::vector<NormalizedChar>& out) const;

  std::vector<uint32_t> units_;
  std::string strings_;
  bool ascii_stays_[128];  // the map has no entry for the cluster of this character; for CR, none for CR LF either
};

// Decodes base64. Errors: invalid_argument.
[[nodiscard]] Result<std::string> decode_base64(std::string_view text);

}  // namespace millrace::tokenizer
