// SPDX-License-Identifier: Apache-2.0
#include "millrace/tokenizer/fast/cached_words.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <optional>
#include <string>
#include <thread>

namespace millrace::tokenizer {
namespace {

// Some ids that only this word has.
std::vector<uint32_t> ids_of(std::string_view word) {
  const auto hash = static_cast<uint32_t>(xxh3_64(word));
  return std::vector<uint32_t>(1 + hash % 4, hash >> 12);
}

struct CountingModel : WordModel {
  Status encode_words(std::span<WordRequest> requests, std::vector<uint32_t>& ids) override {
    computed += requests.size();
    for (WordRequest& request : requests) {
      const std::vector<uint32_t> of_word = ids_of(request.word);
      request.first = static_cast<uint32_t>(ids.size());
      request.count = static_cast<uint32_t>(of_word.size());
      ids.insert(ids.end(), of_word.begin(), of_word.end());
    }
    return {};
  }
  size_t computed = 0;
};

struct Text {
  std::string text;
  std::vector<CachedWords::Bounds> places;
  std::vector<uint32_t> ids;
  size_t inline_words = 0;  // with ids that go into a table
};

Text make_text(size_t words) {
  Text made;
  for (size_t i = 0; i < words; ++i) {
    const std::string word = fmt::format("{}{}", i % 5 == 0 ? "much longer than a key is " : "w", i);
    const auto begin = static_cast<uint32_t>(made.text.size());
    made.text += word;
    made.places.push_back({begin, static_cast<uint32_t>(made.text.size())});
    const std::vector<uint32_t> ids = ids_of(word);
    made.ids.insert(made.ids.end(), ids.begin(), ids.end());
    made.inline_words += i % 5 != 0 && PackedIds::fit(ids) ? 1 : 0;
  }
  return made;
}

std::vector<uint32_t> encode(const Text& text, CachedWords& words, WordModel& model) {
  std::vector<uint32_t> ids;
  for (size_t i = 0; i < text.places.size(); i += CachedWords::kBatch) {
    const auto batch = std::span(text.places).subspan(i, std::min(CachedWords::kBatch, text.places.size() - i));
    EXPECT_TRUE(words.add(text.text, batch, text.text.data() + text.text.size(), model, ids));
  }
  return ids;
}

TEST(CachedWords, TakeWhatAnotherHasComputed) {
  const Text text = make_text(1000);
  SharedWords shared;
  std::optional<CachedWords> first(shared), second(shared);
  CountingModel model;
  EXPECT_EQ(encode(text, *first, model), text.ids);
  EXPECT_EQ(model.computed, 1000u);
  EXPECT_EQ(encode(text, *second, model), text.ids);
  // A few words lost their place in the table to others.
  EXPECT_LT(model.computed, 2000 - text.inline_words + 50);
  EXPECT_GE(model.computed, 2000 - text.inline_words);
  const size_t before = model.computed;
  EXPECT_EQ(encode(text, *second, model), text.ids);
  EXPECT_EQ(model.computed, before);
}

TEST(CachedWords, OfOneThreadShareNothing) {
  const Text text = make_text(1000);
  SharedWords shared;
  std::optional<CachedWords> words(shared);
  CountingModel model;
  EXPECT_EQ(encode(text, *words, model), text.ids);
  words.reset();
  words.emplace(shared);
  EXPECT_EQ(encode(text, *words, model), text.ids);
  EXPECT_EQ(model.computed, 2000u);
}

// Words that want one place, from many threads: what is found is of the word that was asked for.
TEST(SharedWords, GiveNoWordTheIdsOfAnother) {
  SharedWords shared;
  std::vector<std::string> rivals;
  const auto place = [](const std::string& word) {
    return WordKey::of(word, word.data() + word.size()).hash() >> (64 - SharedWords::kSlotBits);
  };
  const uint64_t wanted = place("w0");
  for (int i = 0; rivals.size() < 4; ++i)
    if (std::string word = fmt::format("w{}", i); place(word) == wanted) rivals.push_back(std::move(word));
  const auto number_of = [](size_t word, uint32_t turn) { return turn % 1000 * 4 + static_cast<uint32_t>(word); };
  constexpr size_t kThreads = 4;
  std::barrier<> together(kThreads);
  std::atomic<size_t> found = 0, wrong = 0;
  const auto use = [&](size_t thread) {
    SharedWords::User user(shared);
    size_t found_here = 0;
    together.arrive_and_wait();
    for (uint32_t turn = 0; turn < 1'000'000; ++turn) {
      const size_t at = (turn + thread) % rivals.size();
      const WordKey key = WordKey::of(rivals[at], rivals[at].data() + rivals[at].size());
      if (turn % 2 == 0) user.insert(key, PackedIds::of(std::vector<uint32_t>(3, number_of(at, turn))));
      const PackedIds ids = user.find(key);
      if (!ids.is_known()) continue;
      std::array<uint32_t, PackedIds::kMost> read{};
      ++found_here;
      wrong += ids.write(read.data()) != 3 || read[0] % 4 != at || read[1] != read[0] || read[2] != read[0] ? 1 : 0;
    }
    found += found_here;
  };
  std::vector<std::jthread> threads;
  for (size_t i = 0; i < kThreads; ++i) threads.emplace_back(use, i);
  threads.clear();
  EXPECT_GT(found, 0u);
  EXPECT_EQ(wrong, 0u);
}

}  // namespace
}  // namespace millrace::tokenizer
