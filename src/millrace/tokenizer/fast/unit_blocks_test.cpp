// SPDX-License-Identifier: Apache-2.0
#include "millrace/tokenizer/fast/unit_blocks.h"

#include <gtest/gtest.h>

#include "millrace/base/text/utf8.h"
#include "millrace/tokenizer/fast/unit_path.h"
#include "millrace/tokenizer/steps/normalizer.h"
#include "millrace/tokenizer/steps/pre_tokenizer.h"
#include "millrace/tokenizer/testing.h"

namespace millrace::tokenizer {
namespace {

Json bert_file(bool clean_text, bool chinese, bool accents, bool lowercase) {
  return {{"version", "1.0"},
          {"added_tokens", Json::array()},
          {"normalizer",
           {{"type", "BertNormalizer"},
            {"clean_text", clean_text},
            {"handle_chinese_chars", chinese},
            {"strip_accents", accents},
            {"lowercase", lowercase}}},
          {"pre_tokenizer", {{"type", "BertPreTokenizer"}}},
          {"post_processor", nullptr},
          {"decoder", nullptr},
          {"model", {{"type", "WordLevel"}, {"vocab", {{"a", 0}}}, {"unk_token", "a"}}}};
}

// The parts of a file that its units come from.
struct UnitFile {
  explicit UnitFile(const Json& json) : content(json.dump()) {
    auto parsed = parse_tokenizer_json(content);
    EXPECT_TRUE(parsed);
    model = std::move(*make_model(parsed->model));
    path = UnitPath::build(*parsed, *model);
    normalizer.emplace(std::move(*Normalizer::build(parsed->normalizers)));
    pre_tokenizer.emplace(std::move(*PreTokenizer::build(parsed->pretokenizers)));
  }

  // What the model sees of `text`, step by step.
  std::vector<std::string> words(std::string_view text) {
    CutText cut;
    Normalizer::Scratch scratch;
    PreTokenizer::Scratch pre_tokenizer_scratch;
    cut.text.assign(text, 0, false);
    EXPECT_TRUE(normalizer->apply(cut.text, scratch));
    if (cut.text.text().empty()) return {};
    cut.words.assign(1, {0, cut.text.text().size()});
    EXPECT_TRUE(pre_tokenizer->apply(cut, pre_tokenizer_scratch));
    std::vector<std::string> result;
    for (const Word& word : cut.words) result.emplace_back(cut.text.text().substr(word.begin, word.end - word.begin));
    return result;
  }

  std::string content;
  std::unique_ptr<const Model> model;
  std::optional<UnitPath> path;
  std::optional<Normalizer> normalizer;
  std::optional<PreTokenizer> pre_tokenizer;
};

std::vector<std::pair<uint32_t, uint32_t>> all_units(const UnitScanner& scanner, std::string_view text, size_t batch) {
  std::vector<CachedWords::Bounds> places(batch);
  std::vector<std::pair<uint32_t, uint32_t>> result;
  size_t begin = 0;
  while (const size_t count = scanner.next_units(text, begin, places)) {
    for (size_t i = 0; i < count; ++i) {
      // White space at the end is in no unit, or is one.
      const std::string_view unit = text.substr(places[i].begin, places[i].end - places[i].begin);
      if (unit.find_first_not_of(" \t\n\r") != std::string_view::npos)
        result.emplace_back(places[i].begin, places[i].end);
    }
    begin = places[count - 1].end;
  }
  return result;
}

std::string random_blocks(std::mt19937_64& random) {
  static const std::vector<std::string> kSome = {
      " ",  "\n", "a",  "b", "Z", "0", ",", ".",  "'",      "\x01",   "\t", "é",  "ж",          "中",    "国",
      "。", "、", "한", "ไ", "म", "ि", "́",  "　", "\u00a0", "\u200b", "😀", "𠀀", "\U000110bd", "\u0600"};
  std::string text;
  const size_t pieces = random() % 300;
  for (size_t i = 0; i < pieces; ++i) {
    const uint64_t kind = random() % 16;
    if (kind == 0) {
      text.append(random() % 100, 'x');
    } else if (kind == 1) {
      uint32_t c = static_cast<uint32_t>(random() % 0x30000);
      append_utf8(c >= 0xD800 && c < 0xE000 ? c - 0x1000 : c, text);
    } else if (kind == 2) {
      text.append(random() % 70, ' ');
    } else {
      text += kSome[random() % (kind < 8 ? 10 : kSome.size())];
    }
  }
  return text;
}

TEST(UnitBlocks, FindWhatIsFoundOneByOne) {
  if (find_unit_block_scan() == nullptr) GTEST_SKIP() << "this processor has no fast scan";
  SCOPED_TRACE("MILLRACE_TEST_SEED=" + std::to_string(test_seed()));
  UnitFile file(bert_file(true, true, false, false));
  ASSERT_TRUE(file.path);
  UnitScanner& scanner = file.path->scanner;
  std::mt19937_64 random(test_seed());
  for (const UnitBlockScan scan : all_unit_block_scans()) {
    scanner.use_blocks(kWordKinds, scan);
    ASSERT_TRUE(scanner.uses_blocks());
    for (int i = 0; i < 3000; ++i) {
      std::string text = random_blocks(random);
      // What is no UTF-8 is cut somewhere, without a look behind its end.
      if (i % 4 == 0 && !text.empty()) text.resize(random() % text.size());
      if (i % 8 == 0 && !text.empty()) text[random() % text.size()] = static_cast<char>(random());
      const auto in_blocks = all_units(scanner, text, 64 + i % 200);
      if (is_utf8(text)) {
        ASSERT_EQ(in_blocks, all_units(scanner, text, 1)) << text;
      }
    }
  }
}

TEST(UnitBlocks, AreForFilesThatCutAroundCharacters) {
  if (find_unit_block_scan() == nullptr) GTEST_SKIP() << "this processor has no fast scan";
  Json json = bert_file(true, true, true, true);
  EXPECT_TRUE(UnitFile(json).path->scanner.uses_blocks());
  json["normalizer"] = nullptr;
  EXPECT_TRUE(UnitFile(json).path->scanner.uses_blocks());
  json["normalizer"] = {{"type", "NFC"}};
  EXPECT_FALSE(UnitFile(json).path->scanner.uses_blocks());
}

// What the proof in unit_path.cpp says of single characters.
TEST(UnitBlocks, CharactersApartAreWordsApart) {
  for (int flags = 0; flags < 16; ++flags) {
    UnitFile file(bert_file(flags & 1, flags & 2, flags & 4, flags & 8));
    const UnitScanner& scanner = file.path->scanner;
    size_t alone = 0;
    for (uint32_t c = 1; c < 0x10000; ++c) {
      if (c >= 0xD800 && c < 0xE000) continue;
      if (c > 0x3400 && c < 0xF900 && c % 64 != 0) continue;  // ideographs and syllables, which are all alike
      const uint8_t found = scanner.classes().of_kind[c < 128 ? c : scanner.kind_of(c)];
      if (found == 0) continue;
      std::string character;
      append_utf8(c, character);
      for (const std::string neighbour : {"a", "\u0301\u0316", "中", "\u00bd"}) {
        std::vector<std::string> expected;
        for (const std::string& part : {neighbour, character, neighbour})
          for (const std::string& word : file.words(part)) expected.push_back(word);
        ASSERT_EQ(file.words(neighbour + character + neighbour), expected) << c << " flags " << flags;
      }
      ASSERT_EQ(file.words(character).size(), found == UnitClasses::kWhite ? 0u : 1u) << c << " flags " << flags;
      alone += found == UnitClasses::kAlone;
    }
    EXPECT_GT(alone, 500u);
  }
}

}  // namespace
}  // namespace millrace::tokenizer
