// SPDX-License-Identifier: Apache-2.0
#pragma once

// Runs the decoders of a tokenizer.json, one after another, to turn spelled tokens into text. Immutable, thread-safe.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "millrace/base/status.h"
#include "millrace/tokenizer/file/tokenizer_json.h"

namespace millrace::tokenizer {

class Decoder {
 public:
  // Builds the decoders. Without any, tokens are joined with spaces. Errors: those of Pattern::build.
  [[nodiscard]] static Result<Decoder> build(const std::optional<std::vector<DecoderSpec>>& specs);
  Decoder(Decoder&&) noexcept;
  Decoder& operator=(Decoder&&) noexcept;
  ~Decoder();

  // Returns the text of the tokens. Errors: those of Pattern::find_all.
  [[nodiscard]] Result<std::string> decode(std::vector<std::string> tokens) const;

 private:
  class Step;
  struct Steps;
  Decoder();
  std::vector<std::unique_ptr<const Step>> steps_;
  bool joins_with_spaces_ = false;
};

}  // namespace millrace::tokenizer
