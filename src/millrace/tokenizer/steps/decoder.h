// SPDX-License-Identifier: Apache-2.0
#pragma once

// The decoders of a tokenizer.json, one after another: spelled tokens become text. Immutable, thread-safe.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "millrace/base/status.h"
#include "millrace/tokenizer/file/tokenizer_json.h"

namespace millrace::tokenizer {

class Decoder {
 public:
  // Without decoders, tokens are joined with spaces. Errors: those of Pattern::build.
  [[nodiscard]] static Result<Decoder> build(const std::optional<std::vector<DecoderSpec>>& specs);
  Decoder(Decoder&&) noexcept;
  Decoder& operator=(Decoder&&) noexcept;
  ~Decoder();

  // Errors: those of Pattern::find_all.
  [[nodiscard]] Result<std::string> decode(std::vector<std::string> tokens) const;

 private:
  class Step;
  struct Steps;
  Decoder();
  std::vector<std::unique_ptr<const Step>> steps_;
  bool joins_with_spaces_ = false;
};

}  // namespace millrace::tokenizer
