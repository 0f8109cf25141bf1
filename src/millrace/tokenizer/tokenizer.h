// SPDX-License-Identifier: Apache-2.0
#pragma once

// Runs a Hugging Face tokenizer.json: turns text into exactly the ids that the `tokenizers` package gives, and back.
// No I/O. A Tokenizer is immutable and thread-safe. An Encoder holds the scratch memory and word cache of one thread
// and keeps its Tokenizer alive. Loading refuses a file that asks for an unsupported feature; nothing is approximated.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/hash/hash.h"
#include "millrace/base/io/io.h"
#include "millrace/base/status.h"
#include "millrace/tokenizer/text/offset.h"

namespace millrace::tokenizer {

struct EncodeOptions {
  // Whether to add the tokens of the file's post-processor (a BOS token, say).
  bool add_special_tokens = true;
};

class Tokenizer;
struct Inspection;  // inspect.h

// Encodes text for one thread. Not thread-safe.
class Encoder {
 public:
  explicit Encoder(std::shared_ptr<const Tokenizer> tokenizer);
  ~Encoder();
  Encoder(Encoder&&) noexcept;
  Encoder& operator=(Encoder&&) noexcept;

  // Appends the ids of `text` to `ids` and, if `offsets` is given, one Offset for each id. Errors: invalid_argument (a
  // part of the text has no token, and the file has no unknown token), resource_exhausted (a regular expression that
  // gave up). REQUIRES: `text` is valid UTF-8 (base/text/utf8.h); other bytes give unspecified ids, never undefined
  // behaviour.
  [[nodiscard]] Status encode(std::string_view text, const EncodeOptions& options, std::vector<uint32_t>& ids,
                              std::vector<Offset>* offsets = nullptr);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

class Tokenizer {
 public:
  // Loads a tokenizer. `json` is the content of a tokenizer.json, `name` is for messages. Errors: invalid_argument
  // (not a tokenizer.json; the place), unsupported (the component's name).
  [[nodiscard]] static Result<std::shared_ptr<const Tokenizer>> from_json(std::string_view json, std::string name);
  // Loads a tokenizer from all of `file`. Errors: those of RandomReader::read_at too; resource_exhausted above 1 GiB.
  [[nodiscard]] static Result<std::shared_ptr<const Tokenizer>> from_file(const RandomReader& file, std::string name);
  // Describes the file and the path that it takes. Errors: those of from_json.
  [[nodiscard]] static Result<Inspection> inspect(std::string_view json, std::string_view name);
  ~Tokenizer();

  // Returns the text of `ids`; skips ids without a token. Errors: resource_exhausted (a regular expression that gave
  // up).
  [[nodiscard]] Result<std::string> decode(std::span<const uint32_t> ids, bool skip_special_tokens = true) const;

  std::optional<uint32_t> token_to_id(std::string_view token) const;
  // Returns the token as the file spells it ("Ġthe"); nullopt if the id has none.
  std::optional<std::string> id_to_token(uint32_t id) const;
  // Returns the number of distinct tokens, including added ones: `get_vocab_size(with_added_tokens=True)`.
  int64_t vocab_size() const;
  // Returns 1 + the largest id.
  int64_t id_limit() const;
  // Return the ids that EncodeOptions::add_special_tokens puts before and after a text.
  std::span<const uint32_t> ids_before() const;
  std::span<const uint32_t> ids_behind() const;
  // Returns XXH3-128 of the file's bytes, which shards and states store.
  Hash128 hash() const;

 private:
  friend class Encoder;
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace millrace::tokenizer
