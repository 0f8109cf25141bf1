// SPDX-License-Identifier: Apache-2.0
#include "millrace/tokenizer/fast/character_words.h"

#include <gtest/gtest.h>

#include "millrace/tokenizer/testing.h"

namespace millrace::tokenizer {
namespace {

Json file_of(const std::vector<std::string>& tokens, const Json& normalizer) {
  Json vocab = Json::object();
  for (const std::string& token : tokens) vocab[token] = vocab.size();
  return {{"version", "1.0"},
          {"added_tokens", Json::array()},
          {"normalizer", normalizer},
          {"pre_tokenizer", {{"type", "BertPreTokenizer"}}},
          {"post_processor", nullptr},
          {"decoder", nullptr},
          {"model",
           {{"type", "WordPiece"},
            {"vocab", vocab},
            {"unk_token", "[UNK]"},
            {"continuing_subword_prefix", "##"},
            {"max_input_chars_per_word", 100}}}};
}

Json bert(bool strip_accents, bool lowercase) {
  return {{"type", "BertNormalizer"},
          {"clean_text", true},
          {"handle_chinese_chars", true},
          {"strip_accents", strip_accents},
          {"lowercase", lowercase}};
}

class CharacterWordsTest : public testing::Test {
 protected:
  void load(const std::vector<std::string>& tokens, const Json& normalizer) {
    const std::string content = file_of(tokens, normalizer).dump();
    spec_ = *parse_tokenizer_json(content);
    model_ = *make_model(spec_.model);
    normalizer_.emplace(*Normalizer::build(spec_.normalizers));
    plain_ = PlainWords::build(spec_, *normalizer_);
    const auto* pieces = dynamic_cast<const WordPiece*>(model_.get());
    ASSERT_TRUE(pieces != nullptr && plain_);
    words_.emplace(*pieces, *plain_, *normalizer_);
  }

  // What encode writes, nothing where it leaves the word to others.
  std::vector<uint32_t> direct(std::string_view word) {
    std::vector<uint32_t> ids(DirectWords::kMostIds);
    ids.resize(words_->encode(word, ids.data()));
    return ids;
  }

  std::vector<uint32_t> expected(std::string_view word) {
    Model::Scratch scratch;
    std::vector<ModelToken> tokens;
    EXPECT_TRUE(model_->encode_word(word, scratch, tokens));
    std::vector<uint32_t> ids;
    for (const ModelToken& token : tokens) ids.push_back(token.id);
    return ids;
  }

 private:
  TokenizerSpec spec_;
  std::unique_ptr<const Model> model_;
  std::optional<Normalizer> normalizer_;
  std::optional<PlainWords> plain_;
  std::optional<CharacterWords> words_;
};

TEST_F(CharacterWordsTest, AreTheTokensOfTheModel) {
  load({"[UNK]", "о", "в", "и", "ч", "中", "##о", "##в", "##и", "##ч", "##ов", "жи", "##ови", "##ль", "##中", "##вич",
        "##a", "##中国"},
       bert(false, false));
  const std::vector<std::string> letters = {"о", "в", "и", "ч", "ж", "л", "ь", "国", "ῶ"};
  size_t taken = 0, unknown = 0, several = 0;
  std::vector<std::string> words = {""};
  for (size_t i = 0; words.size() < 60000; ++i) {
    const std::string shorter = words[i];
    for (const std::string& letter : letters) {
      const std::string word = shorter + letter;
      words.push_back(word);
      const auto ids = direct(word);
      if (ids.empty()) continue;
      ASSERT_EQ(ids, expected(word)) << word;
      ++taken;
      unknown += ids[0] == 0;
      several += ids.size() * 2 < word.size();
    }
  }
  EXPECT_GT(taken, 10000u);
  EXPECT_GT(unknown, 1000u);
  EXPECT_GT(several, 1000u);
}

TEST_F(CharacterWordsTest, AreOfCharactersThatStayWhatTheyAre) {
  load({"[UNK]", "о", "##о", "##O", "##е", "é", "##é"}, bert(true, true));
  EXPECT_EQ(direct("ооооо"), expected("ооооо"));
  EXPECT_EQ(direct("ооооо"), (std::vector<uint32_t>{1, 2, 2, 2, 2}));
  for (const char* word : {"ооОоо", "оооéо", "ооооё", "оо中оо", "ооооo", "оо\u0301оо", "оо\u00ADоо", "оо…оо",
                           "оо\u3000оо", "о\U0001F600оо", "\xD0\xBE\xD0\xBE\xD0", "\xED\xA0\x80\xD0\xBE"})
    EXPECT_EQ(direct(word), std::vector<uint32_t>()) << word;
}

TEST_F(CharacterWordsTest, AreOfLimitedSize) {
  load({"[UNK]", "о", "##о"}, bert(false, false));
  std::string word;
  for (size_t i = 0; i < DirectWords::kMostIds; ++i) word += "о";
  EXPECT_EQ(direct(word).size(), DirectWords::kMostIds);
  EXPECT_EQ(direct(word), expected(word));
  EXPECT_TRUE(direct(word + "о").empty());
}

}  // namespace
}  // namespace millrace::tokenizer
