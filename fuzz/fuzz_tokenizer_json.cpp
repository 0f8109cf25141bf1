// SPDX-License-Identifier: Apache-2.0
// Any bytes as a tokenizer.json: refused, or a tokenizer that works.
#include "invariants.h"

using millrace::tokenizer::Encoder;
using millrace::tokenizer::Tokenizer;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // SAFETY: char may alias any object.
  const std::string_view json(reinterpret_cast<const char*>(data), size);
  // Oniguruma takes minutes for some lookbehinds, and exponentially many steps for repeats of repeats.
  if (json.find("(?<") != json.npos) return -1;
  const auto tokenizer = Tokenizer::from_json(json, "fuzz");
  if (!tokenizer) return -1;
  Encoder encoder(*tokenizer);
  for (const std::string_view text : {"", " the  a\n12", "é\u0301 \u4F60\uFB01<s>ab▁x", "a\xC3 \xF0\x9F\x80\xFF"}) {
    const auto ids = millrace::tokenizer::checked_ids(encoder, text);
    if (!ids) continue;
    for (const bool skip : {true, false}) static_cast<void>((*tokenizer)->decode(*ids, skip));
    for (const uint32_t id : *ids) static_cast<void>((*tokenizer)->id_to_token(id));
  }
  const uint32_t limit = static_cast<uint32_t>((*tokenizer)->id_limit());
  const uint32_t ids[] = {0, 1, limit / 2, limit, limit + 1, ~0u};
  static_cast<void>((*tokenizer)->decode(ids));
  return 0;
}
