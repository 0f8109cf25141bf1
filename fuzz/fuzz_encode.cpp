// SPDX-License-Identifier: Apache-2.0
// The first byte chooses a tokenizer, the others are the text: any bytes, as text is checked before it comes here.
#include "invariants.h"
#include "millrace/base/text/utf8.h"
#include "millrace/tokenizer/testing.h"

namespace {

using namespace millrace::tokenizer;

struct Case {
  Json json;
  bool gives_text_back = false;  // decoding the ids of a text that is UTF-8
  std::shared_ptr<const Tokenizer> tokenizer = nullptr;
  std::optional<Encoder> encoder = std::nullopt;  // keeps its word cache from one input to the next
  int uses = 0;
};

Json words() {
  return {{"type", "BertNormalizer"},
          {"clean_text", true},
          {"handle_chinese_chars", true},
          {"strip_accents", nullptr},
          {"lowercase", true}};
}

Json bytes_and_letters() {
  Json vocab = {{"<unk>", 0}, {"▁", 1}, {"▁a", 2}, {"b", 3}, {"é", 4}, {"a", 5}, {"ab", 6}, {"你", 7}};
  for (int b = 0; b < 256; ++b) vocab[fmt::format("<0x{:02X}>", b)] = vocab.size();
  return {{"type", "BPE"},        {"vocab", vocab},        {"merges", {"▁ a", "a b"}},
          {"unk_token", "<unk>"}, {"byte_fallback", true}, {"fuse_unk", true}};
}

Json pieces() {
  return {{"type", "WordPiece"},
          {"vocab", {{"[UNK]", 0}, {"a", 1}, {"##a", 2}, {"##b", 3}, {"the", 4}, {".", 5}, {"1", 6}, {"##1", 7}}},
          {"unk_token", "[UNK]"},
          {"continuing_subword_prefix", "##"},
          {"max_input_chars_per_word", 100}};
}

Json scored() {
  Json vocab = Json::array({{"<unk>", 0.0}, {"▁", -2.0}, {"a", -1.5}, {"aa", -2.5}, {"▁a", -2.25}, {"é", -4.0}});
  return {{"type", "Unigram"}, {"vocab", vocab}, {"unk_id", 0}, {"byte_fallback", false}};
}

Json every_flag(Json json) {
  json["added_tokens"] = {added_token(300, "<a>", "s"), added_token(301, "<b>", "l"), added_token(302, "tok", "wn"),
                          added_token(303, " ", "r"),   added_token(304, "é", "lr"),  added_token(305, "<a", "n")};
  return json;
}

Json with(Json json, const char* place, Json component) {
  json[place] = std::move(component);
  return json;
}

std::vector<Case> make_cases() {
  const Json metaspace = {{"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", "first"}, {"split", true}};
  const Json clean = {{"type", "Replace"}, {"pattern", {{"Regex", "\\s+|(?i)ſ"}}}, {"content", " "}};
  const Json forms = {{"type", "Sequence"}, {"normalizers", {{{"type", "NFKC"}}, clean, {{"type", "StripAccents"}}}}};
  const Json bert = {{"type", "BertPreTokenizer"}};
  const Json bytes = small_tokenizer(byte_level());
  std::vector<Case> cases;
  cases.push_back({bytes, true});
  cases.push_back({small_tokenizer(split_by(kLlama3Pattern)), true});
  cases.push_back({small_tokenizer(split_by(kQwen2Pattern)), true});
  cases.push_back({small_tokenizer(byte_level(false, false)), true});
  cases.push_back({small_tokenizer(split_by("\\b\\p{Lu}?\\w+|(?<=\\s)(?=\\S+ )|\\S")), true});
  cases.push_back({small_tokenizer(split_by("(\\p{L})\\1|\\w+|\\S")), true});  // by Oniguruma
  cases.push_back({with(every_flag(bytes), "post_processor", byte_level(true))});
  cases.push_back({with(bytes, "normalizer", {{"type", "NFC"}})});
  for (const Json& model : {bytes_and_letters(), pieces(), scored()}) {
    cases.push_back({with(with(bytes, "model", model), "pre_tokenizer", metaspace)});
    cases.push_back(
        {with(with(with(every_flag(bytes), "model", model), "pre_tokenizer", bert), "normalizer", words())});
    cases.push_back({with(with(with(bytes, "model", model), "pre_tokenizer", metaspace), "normalizer", forms)});
  }
  for (Case& one : cases) {
    const auto tokenizer = Tokenizer::from_json(one.json.dump(), "fuzz");
    require(tokenizer.has_value(), "the tokenizers of this file are sound");
    one.tokenizer = *tokenizer;
    one.encoder.emplace(one.tokenizer);
  }
  return cases;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static std::vector<Case> cases = make_cases();
  if (size == 0) return -1;
  Case& chosen = cases[data[0] % cases.size()];
  // SAFETY: char may alias any object.
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const auto ids = checked_ids(*chosen.encoder, text);
  if (!millrace::is_utf8(text)) return -1;
  require(ids.has_value(), "a text can be encoded");
  if (++chosen.uses % 64 == 0) {
    Encoder fresh(chosen.tokenizer);
    require(checked_ids(fresh, text) == ids, "the same ids without a word cache");
  }
  const auto decoded = chosen.tokenizer->decode(*ids, false);
  require(decoded.has_value(), "ids can be decoded");
  require(!chosen.gives_text_back || *decoded == text, "the text comes back");
  return 0;
}
