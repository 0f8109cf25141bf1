// SPDX-License-Identifier: Apache-2.0
#pragma once

// The precompiled_charsmap of SentencePiece, as the Precompiled normalizer of `tokenizers` applies it: to each grapheme
// cluster shorter than 6 bytes as a whole, else to each character; if the map has several prefixes, the shortest is
// used. Layout: little-endian u32 size of the trie in bytes; the trie, a double array of u32 units (Darts); then
// zero-terminated strings; the trie's values are offsets into them. Immutable, thread-safe.

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
  // Errors: invalid_argument (a damaged map).
  [[nodiscard]] static Result<PrecompiledMap> parse(std::string_view bytes);

  // Appends the normalized characters of `text`.
  void normalize(std::string_view text, std::vector<NormalizedChar>& out) const;
  // True when normalize() certainly leaves `text` unchanged.
  bool is_surely_normal(std::string_view text) const;

 private:
  PrecompiledMap(std::vector<uint32_t> units, std::string strings);
  // The replacement of the shortest prefix of `chunk` that the map has.
  std::optional<std::string_view> find(std::string_view chunk) const;
  void append_cluster(std::string_view cluster, std::vector<NormalizedChar>& out) const;

  std::vector<uint32_t> units_;
  std::string strings_;
  bool ascii_stays_[128];  // the map has no entry for the cluster of this character; for CR, also none for CR LF
};

// Errors: invalid_argument.
[[nodiscard]] Result<std::string> decode_base64(std::string_view text);

}  // namespace millrace::tokenizer
