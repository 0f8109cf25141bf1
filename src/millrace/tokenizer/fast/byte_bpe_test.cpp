// SPDX-License-Identifier: Apache-2.0
#include "millrace/tokenizer/fast/byte_bpe.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <map>

#include "millrace/tokenizer/fast/long_words.h"
#include "millrace/tokenizer/fast/word_cache.h"
#include "millrace/tokenizer/models/byte_trie.h"
#include "millrace/tokenizer/testing.h"

namespace millrace::tokenizer {
namespace {

// A random merge list over a few letters, and the plainest way to apply it.
struct RandomBpe {
  std::vector<std::string> tokens;
  std::vector<std::pair<std::string, std::string>> merges;
  BpeSpec spec;

  explicit RandomBpe(std::mt19937_64& random) {
    for (char c = 'a'; c < 'e'; ++c) tokens.emplace_back(1, c);
    for (int i = 0; i < 60; ++i) {
      const std::string left = tokens[random() % tokens.size()], right = tokens[random() % tokens.size()];
      if (left.size() + right.size() > 12) continue;
      merges.emplace_back(left, right);
      if (std::ranges::find(tokens, left + right) == tokens.end()) tokens.push_back(left + right);
    }
    for (size_t i = 0; i < tokens.size(); ++i) spec.vocab.emplace_back(tokens[i], static_cast<uint32_t>(i));
    for (const auto& [left, right] : merges) spec.merges.emplace_back(left, right);
  }

  std::vector<uint32_t> encode(const std::string& word) const {
    std::map<std::pair<std::string, std::string>, size_t> ranks;
    for (size_t i = 0; i < merges.size(); ++i) ranks[merges[i]] = i;  // the last of equal pairs counts
    std::vector<std::string> parts;
    for (const char c : word)
      if (c < 'e') parts.emplace_back(1, c);
    for (;;) {
      size_t best = 0, best_rank = SIZE_MAX;
      for (size_t i = 0; i + 1 < parts.size(); ++i) {
        const auto rank = ranks.find({parts[i], parts[i + 1]});
        if (rank != ranks.end() && rank->second < best_rank) best = i, best_rank = rank->second;
      }
      if (best_rank == SIZE_MAX) break;
      parts[best] += parts[best + 1];
      parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    }
    std::vector<uint32_t> ids;
    for (const std::string& part : parts)
      ids.push_back(static_cast<uint32_t>(std::ranges::find(tokens, part) - tokens.begin()));
    return ids;
  }
};

TEST(ByteBpe, ShortAndLongWordsMergeAsThePlainestWayDoes) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE(fmt::format("MILLRACE_TEST_SEED={}", seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < 30; ++round) {
    const RandomBpe reference(random);
    const auto model = CharBpe::build(reference.spec);
    ASSERT_TRUE(model) << model.error().to_string();
    const auto bpe = ByteBpe::build(**model);
    ASSERT_TRUE(bpe);
    MergeScratch scratch;
    Model::Scratch model_scratch;
    for (int i = 0; i < 60; ++i) {
      std::string word(1 + random() % (i % 2 == 0 ? ByteBpe::kShortWord : 200), ' ');
      for (char& c : word) c = static_cast<char>('a' + random() % (i % 5 == 0 ? 6 : 4));  // 'e' and 'f' are no tokens
      std::vector<uint32_t> ids;
      bpe->encode_word(word, WordKey::of(word, word.data() + word.size()), scratch, ids);
      ASSERT_EQ(ids, reference.encode(word)) << word;
      std::vector<ModelToken> tokens;
      ASSERT_TRUE((*model)->encode_word(word, model_scratch, tokens));
      ASSERT_TRUE(std::ranges::equal(tokens, ids, {}, &ModelToken::id)) << word;
    }
  }
}

// What is joined from the start must not depend on who trained the merges: here they come in any order, also before
// those that make their parts, and all words are tried.
TEST(ByteBpe, MergesInAnyOrderGiveWhatThePlainestWayGives) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE(fmt::format("MILLRACE_TEST_SEED={}", seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < 25; ++round) {
    RandomBpe reference(random);
    std::ranges::shuffle(reference.merges, random);
    reference.merges.resize(reference.merges.size() / (1 + random() % 4));
    reference.spec.merges.assign(reference.merges.begin(), reference.merges.end());
    const auto model = CharBpe::build(reference.spec).value();
    const auto bpe = ByteBpe::build(*model);
    ASSERT_TRUE(bpe);
    MergeScratch scratch;
    for (uint32_t number = 0; number < 1024; ++number) {  // five letters of four
      std::string word(5, ' ');
      for (size_t i = 0; i < word.size(); ++i) word[i] = static_cast<char>('a' + (number >> 2 * i & 3));
      std::vector<uint32_t> ids;
      bpe->encode_word(word, WordKey::of(word, word.data() + word.size()), scratch, ids);
      ASSERT_EQ(ids, reference.encode(word)) << word;
    }
  }
}

// Words that are merged in windows against the queue over the whole word.
TEST(ByteBpe, WindowsMeetWhereTheWholeWordHasThem) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE(fmt::format("MILLRACE_TEST_SEED={}", seed));
  std::mt19937_64 random(seed);
  int in_windows = 0;
  for (int round = 0; round < 60; ++round) {
    RandomBpe reference(random);
    if (round % 2 == 0) {
      std::ranges::shuffle(reference.merges, random);
      reference.spec.merges.assign(reference.merges.begin(), reference.merges.end());
    }
    const auto model = CharBpe::build(reference.spec).value();
    const MergeTable& table = model->merges();
    const auto bpe = ByteBpe::build(*model);
    ASSERT_TRUE(bpe);
    MergeScratch scratch, whole;
    for (int i = 0; i < 60; ++i) {
      std::string word(65 + random() % 1500, 'a');
      const uint64_t letters = 1 + random() % 4;
      for (char& c : word)
        if (random() % 4 != 0 || i % 3 != 0) c = static_cast<char>('a' + random() % letters);
      std::vector<uint32_t> ids;
      bpe->encode_word(word, WordKey::of(word, word.data() + word.size()), scratch, ids);
      whole.symbols.clear();
      for (const char c : word) whole.symbols.push_back(static_cast<uint32_t>(c - 'a'));
      const std::vector<uint32_t> symbols = whole.symbols;
      merge_symbols(table, whole);
      ASSERT_EQ(ids, whole.symbols) << word;
      std::vector<LongToken> tokens;
      const auto encode = [&](size_t begin, size_t size, MergeWindow& window) {
        MergeScratch part;
        part.symbols.assign(symbols.begin() + static_cast<ptrdiff_t>(begin),
                            symbols.begin() + static_cast<ptrdiff_t>(begin + size));
        part.sizes.assign(size, 1);
        merge_symbols(table, part);
        for (size_t k = 0, end = begin; k < part.symbols.size(); ++k)
          window.add({part.symbols[k], end += part.sizes[k]});
      };
      if (!merge_in_windows(symbols.size(), encode, tokens)) continue;
      ++in_windows;
      ASSERT_TRUE(std::ranges::equal(tokens, whole.symbols, {}, &LongToken::id)) << word;
    }
  }
  EXPECT_GT(in_windows, 1000);
}

TEST(ByteBpe, IgnoreMergesTakesAWholeWord) {
  BpeSpec spec;
  spec.vocab = {{"a", 0}, {"b", 1}, {"ab", 2}, {"abb", 3}};
  spec.merges = {{"a", "b"}};
  MergeScratch scratch;
  for (const bool ignore : {false, true}) {
    spec.ignore_merges = ignore;
    const auto model = CharBpe::build(spec).value();
    std::vector<uint32_t> ids;
    const std::string word = "abb";
    ByteBpe::build(*model)->encode_word(word, WordKey::of(word, word.data() + word.size()), scratch, ids);
    EXPECT_EQ(ids, ignore ? (std::vector<uint32_t>{3}) : (std::vector<uint32_t>{2, 1}));
  }
}

TEST(Vocabulary, FindsTokensBothWays) {
  const VocabularySpec tokens = {{"Ġa", 0}, {"▁a", 2}, {"", 3}};
  const auto vocabulary = Vocabulary::build(tokens);
  ASSERT_TRUE(vocabulary);
  for (const auto& [token, id] : tokens) {
    EXPECT_EQ(vocabulary->find(token), id);
    EXPECT_EQ(vocabulary->token(id), token);
  }
  EXPECT_EQ(vocabulary->find("a"), kNoToken);
  EXPECT_FALSE(vocabulary->contains(1));
  EXPECT_FALSE(vocabulary->contains(4));
  const VocabularySpec repeated = {{"a", 0}, {"b", 1}, {"a", 2}};
  EXPECT_FALSE(Vocabulary::build(repeated));
  EXPECT_EQ(Vocabulary::build(repeated, Vocabulary::Repeats::kLastIsFound)->find("a"), 2u);
}

// Short tokens are told apart by their key alone.
TEST(Vocabulary, TellsSimilarTokensOfAllSizesApart) {
  std::map<std::string, uint32_t> expected;
  const auto add = [&](const std::string& token) {
    expected.try_emplace(token, static_cast<uint32_t>(expected.size()));
  };
  for (size_t size = 0; size <= 20; ++size)
    for (const char fill : {'\0', '\1', 'a', '\xFF'})
      for (size_t at = 0; at < std::max<size_t>(size, 1); ++at)
        for (const char other : {'\0', '\2', '\x80', '\xFF'}) {
          std::string token(size, fill);
          if (size > 0) token[at] = other;
          add(token);
        }
  const VocabularySpec tokens(expected.begin(), expected.end());
  const auto vocabulary = Vocabulary::build(tokens);
  ASSERT_TRUE(vocabulary);
  std::vector<std::string_view> asked;
  for (const auto& [token, id] : expected) {
    ASSERT_EQ(vocabulary->find(token), id);
    ASSERT_EQ(vocabulary->token(id), token);
    ASSERT_EQ(vocabulary->find(token + "b"), kNoToken);
    if (asked.size() < Vocabulary::kMany) asked.push_back(token);
  }
  std::vector<uint32_t> ids(asked.size());
  vocabulary->find_many(asked, ids);
  for (size_t i = 0; i < asked.size(); ++i) ASSERT_EQ(ids[i], expected.at(std::string(asked[i])));
}

TEST(ByteTrie, FindsWhatAMapFinds) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE(fmt::format("MILLRACE_TEST_SEED={}", seed));
  std::mt19937_64 random(seed);
  std::map<std::string, uint32_t> expected;
  for (uint32_t i = 0; i < 5000; ++i) {
    std::string key(1 + random() % 8, ' ');
    for (char& c : key) c = static_cast<char>(random() % (random() % 3 == 0 ? 256 : 4));
    expected[key] = i;
  }
  std::vector<std::pair<std::string_view, uint32_t>> keys(expected.begin(), expected.end());
  std::ranges::shuffle(keys, random);
  const ByteTrie trie(keys);
  const auto find = [&](std::string_view key) {
    uint32_t node = ByteTrie::kRoot;
    for (const char c : key)
      if (node = trie.next(node, static_cast<uint8_t>(c)); node == ByteTrie::kNone) return ByteTrie::kNone;
    return trie.value(node);
  };
  for (const auto& [key, value] : expected) {
    ASSERT_EQ(find(key), value);
    const std::string other = key + static_cast<char>(random() % 256);
    ASSERT_EQ(find(other), expected.contains(other) ? expected[other] : ByteTrie::kNone);
  }
}

TEST(ByteMap, IsABijection) {
  std::map<std::string, int> seen;
  for (int b = 0; b < 256; ++b) {
    const std::string byte(1, static_cast<char>(b));
    std::string spelled, back;
    append_spelling_of(byte, spelled);
    EXPECT_TRUE(seen.emplace(spelled, b).second);
    EXPECT_EQ(static_cast<int64_t>(spelled.size()), spelled_character(static_cast<uint8_t>(b)) < 0x80 ? 1 : 2);
    EXPECT_TRUE(append_bytes_of(spelled, back));
    EXPECT_EQ(back, byte);
  }
  std::string out = "kept";
  for (const char* outside : {" ", "aĠ ", "ń", "▁", "\xC3"}) EXPECT_FALSE(append_bytes_of(outside, out)) << outside;
  EXPECT_EQ(out, "kept");
}

TEST(WordKey, TellsWordsOfAnyBytesApart) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE(fmt::format("MILLRACE_TEST_SEED={}", seed));
  std::mt19937_64 random(seed);
  std::map<uint64_t, std::string> shorts;
  for (int i = 0; i < 100000; ++i) {
    std::string word(1 + random() % 12, '\0');
    for (char& byte : word) byte = static_cast<char>(random() % 4 == 0 ? random() : random() % 10);
    const std::string padded = word + "behind the word.";
    const std::string_view view = std::string_view(padded).substr(0, word.size());
    const char* readable_end = word.data() + word.size();
    const ShortKey key = ShortKey::of(word, readable_end);
    ASSERT_EQ(ShortKey::of(view, padded.data() + padded.size()), key);
    ASSERT_EQ(WordKey::of(view, padded.data() + padded.size()), WordKey::of(word, readable_end));
    ASSERT_EQ(key.bits == 0, word.size() > 8 || (word.size() == 8 && static_cast<uint8_t>(word[7]) < 8));
    if (key.bits != 0) {
      ASSERT_EQ(shorts.emplace(key.bits, word).first->second, word);
    }
  }
}

TEST(WordCache, AnswersRightOrNotAtAll) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE(fmt::format("MILLRACE_TEST_SEED={}", seed));
  std::mt19937_64 random(seed);
  WordCache cache;
  int hits = 0;
  // A word and ids that follow from its number: from 1 to 40 bytes, from none to 9 ids, some of them large.
  const auto make = [&](uint64_t number) {
    std::string word = number % 2 == 0 ? std::to_string(number) : fmt::format("{:x}", number);
    word.append(number % 35, static_cast<char>(number % 7 == 0 ? '\1' : 'a' + number % 2));
    std::vector<uint32_t> ids(number % 10);
    for (size_t k = 0; k < ids.size(); ++k) ids[k] = static_cast<uint32_t>((number + k) << (number % 11 == 0 ? 8 : 0));
    return std::pair(word, ids);
  };
  WordCache::Found found;
  for (int i = 0; i < 3000; ++i) {
    std::vector<std::pair<std::string, std::vector<uint32_t>>> words;
    std::string text;
    std::array<size_t, WordBatch::kMost + 1> bounds{};
    for (size_t k = 0; k < WordBatch::kMost; ++k) {
      words.push_back(make(k % 3 == 0 ? random() % 100 : random() % 1000000));
      text += words.back().first;
      bounds[k + 1] = text.size();
    }
    cache.find({text.data(), bounds.data(), bounds.data() + 1, words.size(), text.data() + text.size()}, found);
    for (size_t k = 0; k < words.size(); ++k) {
      const auto& [word, expected] = words[k];
      if (!found[k].is_known()) continue;
      ++hits;
      std::array<uint32_t, PackedIds::kMost> room;
      const std::span<const uint32_t> ids = found[k].is_inline()
                                                ? std::span<const uint32_t>(room).first(found[k].write(room.data()))
                                                : cache.stored_ids(found[k]);
      ASSERT_TRUE(std::ranges::equal(ids, expected)) << word;
    }
    for (const auto& [word, ids] : words) {
      const WordRequest request{word, WordKey::of(word, word.data() + word.size())};
      if (!cache.contains(request)) cache.insert(request, ids);
    }
  }
  EXPECT_GT(hits, 300000);
}

}  // namespace
}  // namespace millrace::tokenizer
