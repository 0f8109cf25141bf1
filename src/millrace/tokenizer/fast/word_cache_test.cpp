// SPDX-License-Identifier: Apache-2.0
#include "millrace/tokenizer/fast/word_cache.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

namespace millrace::tokenizer {
namespace {

PackedIds find(const WordCache& cache, const std::string& word) {
  const size_t begin = 0, end = word.size();
  WordCache::Found found;
  cache.find({word.data(), &begin, &end, 1, word.data() + end}, found);
  return found[0];
}

std::vector<uint32_t> ids_in(const WordCache& cache, const std::string& word) {
  const PackedIds found = find(cache, word);
  if (!found.is_known()) return {};
  std::vector<uint32_t> ids(PackedIds::kMost);
  if (found.is_inline()) {
    ids.resize(found.write(ids.data()));
    return ids;
  }
  const auto stored = cache.stored_ids(found);
  return {stored.begin(), stored.end()};
}

// Many ids for a word, or few; a word that is its own key, or a longer one.
std::vector<uint32_t> ids_of(uint32_t number) {
  return std::vector<uint32_t>(number % 4 == 0 ? 2 : 1000, number);
}
std::string word_of(uint32_t number) {
  return fmt::format("{}{}", number % 3 == 0 ? "w" : "a word that is longer than its key ", number);
}

TEST(WordCache, WordsOutliveAFullArena) {
  constexpr uint32_t kWords = 20'000;  // 15 million ids: twice and a half what the arena takes
  WordCache cache;
  for (uint32_t i = 0; i < kWords; ++i) {
    const std::string word = word_of(i);
    cache.insert({word, WordKey::of(word, word.data() + word.size())}, ids_of(i));
    EXPECT_EQ(ids_in(cache, word), ids_of(i));
  }
  uint32_t known = 0, inline_words = 0;
  for (uint32_t i = 0; i < kWords; ++i) {
    const auto ids = ids_in(cache, word_of(i));
    if (ids.empty()) {
      EXPECT_FALSE(i % 3 == 0 && i % 4 == 0) << "word " << i << " needs no arena";
      EXPECT_LT(i, kWords - 3000) << "the newest half stays";
      continue;
    }
    ++known;
    inline_words += i % 3 == 0 && i % 4 == 0;
    EXPECT_EQ(ids, ids_of(i)) << word_of(i);
  }
  EXPECT_EQ(inline_words, (kWords + 11) / 12);
  EXPECT_LT(known, kWords / 2) << "the arena has a limit";
}

}  // namespace
}  // namespace millrace::tokenizer
