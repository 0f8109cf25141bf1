// SPDX-License-Identifier: Apache-2.0
#include "millrace/tokenizer/fast/short_words.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>
#include <vector>

#include "millrace/base/testing.h"

namespace millrace::tokenizer {
namespace {

bool is_equal(PackedIds a, PackedIds b) {
  return std::memcmp(&a, &b, sizeof(a)) == 0;
}

// Words of one to twelve bytes, most of few letters so that they come again; some end with a byte below eight.
std::string random_word(std::mt19937_64& random) {
  std::string word(1 + random() % 12, ' ');
  for (char& c : word) c = static_cast<char>(random() % 3 == 0 ? random() % 256 : 'a' + random() % 2);
  if (random() % 16 == 0) word.back() = static_cast<char>(random() % 10);
  return word;
}

TEST(ShortWords, AreFoundByEveryWay) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE(fmt::format("MILLRACE_TEST_SEED={}", seed));
  std::mt19937_64 random(seed);
  ShortTable table;
  std::map<uint64_t, PackedIds> inserted;
  size_t hits = 0;
  for (int round = 0; round < 400; ++round) {
    std::string text;
    std::vector<size_t> begins, ends;
    const size_t count = random() % 4 == 0 ? random() % WordBatch::kMost : WordBatch::kMost;
    for (size_t i = 0; i < count; ++i) {
      if (round % 2 == 1) text.append(random() % 3, '-');  // between words
      begins.push_back(text.size());
      text += random_word(random);
      ends.push_back(text.size());
    }
    // The words end where memory does.
    const std::vector<char> exact(text.begin(), text.end());
    const WordBatch words{exact.data(), begins.data(), ends.data(), count, exact.data() + exact.size()};
    for (const BatchSteps& steps : all_batch_steps()) {
      ShortBatch batch;
      std::vector<PackedIds> found(count);
      steps.look_ahead(words, table, batch);
      steps.find(count, table, batch, found.data());
      std::vector<uint32_t> longs;
      for (size_t i = 0; i < count; ++i) {
        const uint64_t key = ShortKey::of(words[i], words.readable_end).bits;
        ASSERT_EQ(batch.keys[i].bits, key) << i;
        if (key == 0) longs.push_back(static_cast<uint32_t>(i));
        const auto known = inserted.find(key);
        ASSERT_TRUE(is_equal(found[i], known == inserted.end() ? PackedIds::none() : known->second)) << i;
        hits += known != inserted.end();
      }
      ASSERT_EQ(std::vector<uint32_t>(batch.longs.begin(), batch.longs.begin() + batch.long_count), longs);
    }
    for (size_t i = 0; i < count; ++i) {
      const ShortKey key = ShortKey::of(words[i], words.readable_end);
      if (key.bits == 0 || inserted.contains(key.bits)) continue;
      const PackedIds ids = PackedIds::stored(random() % 1000, 1 + random() % 10);
      table.insert({key, ids});
      inserted.emplace(key.bits, ids);
    }
  }
  EXPECT_GT(hits, 10000u);
  EXPECT_GT(inserted.size(), 10000u);  // so the table has grown
}

}  // namespace
}  // namespace millrace::tokenizer
