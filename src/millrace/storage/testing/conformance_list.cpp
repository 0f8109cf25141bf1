// SPDX-License-Identifier: Apache-2.0
// The part of the conformance suite about listings, and the removal of many keys.
#include <gmock/gmock.h>

#include <algorithm>
#include <random>
#include <set>

#include "millrace/base/testing/helpers.h"
#include "millrace/storage/page_token.h"
#include "millrace/storage/testing/conformance.h"
#include "millrace/storage/testing/conformance_helpers.h"

namespace millrace {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST_P(StorageConformance, PagesAreFullAndEnd) {
  int made = 0;
  for (const int count : {0, 1, 1000, 1001}) {
    for (; made < count; ++made) put("n/" + std::to_string(1'000'000 + made), "x");
    const auto page = storage_->list("n/", {.max_keys = 1000});
    ASSERT_TRUE(page);
    EXPECT_EQ(page->objects.size(), static_cast<size_t>(std::min(count, 1000)));
    EXPECT_EQ(page->next_page_token.empty(), count <= 1000) << count;
    if (count <= 1000) continue;
    const auto rest = storage_->list("n/", {.page_token = page->next_page_token, .max_keys = 1000});
    ASSERT_TRUE(rest);
    ASSERT_EQ(rest->objects.size(), 1u);
    EXPECT_EQ(rest->objects[0].key, "n/1001000");
    EXPECT_EQ(rest->objects[0].size, 1);
    EXPECT_THAT(rest->next_page_token, IsEmpty());
  }
  EXPECT_EQ(keys_of(*storage_).size(), 1001u);
}

TEST_P(StorageConformance, AListingBeginsBehindAnyKey) {
  for (const char* key : {"d/a", "d/b/x", "d/b/y", "d/c", "e", "f/g"}) put(key, "x");
  const auto behind = [&](const std::string& prefix, const std::string& key) {
    std::string found;
    const auto page = storage_->list(prefix, {.page_token = page_token_behind(key), .max_keys = 2});
    if (!page) return page.error().to_string();
    for (const auto& object : page->objects) found += object.key + " ";
    return found + (page->next_page_token.empty() ? "." : "...");
  };
  EXPECT_EQ(behind("", "d/a"), "d/b/x d/b/y ...");
  EXPECT_EQ(behind("", "d/a~"), "d/b/x d/b/y ...");
  EXPECT_EQ(behind("d/", "d/b"), "d/b/x d/b/y ...");
  EXPECT_EQ(behind("d/", "d/b/z"), "d/c .");
  EXPECT_EQ(behind("d/", "d//"), "d/a d/b/x ...");
  EXPECT_EQ(behind("", "d/d"), "e f/g .");
  EXPECT_EQ(behind("d/", "d/c"), ".");
  EXPECT_EQ(behind("", "z"), ".");
}

// What `list` must answer, from a plain set of keys.
std::vector<std::string> expected_listing(const std::set<std::string>& keys, const std::string& prefix,
                                          bool recursive) {
  std::set<std::string> listing;
  for (const auto& key : keys) {
    if (!key.starts_with(prefix)) continue;
    const size_t slash = recursive ? key.npos : key.find('/', prefix.size());
    listing.insert(slash == key.npos ? key : key.substr(0, slash + 1));
  }
  return {listing.begin(), listing.end()};
}

std::vector<std::string> listed(Storage& storage, const std::string& prefix, bool recursive, int64_t max_keys) {
  std::vector<std::string> all;
  ListOptions options{.recursive = recursive, .max_keys = max_keys};
  do {
    const auto page = storage.list(prefix, options);
    if (!page) return {"<" + page.error().to_string() + ">"};
    std::vector<std::string> both = page->prefixes;
    for (const auto& object : page->objects) both.push_back(object.key);
    std::sort(both.begin(), both.end());
    if (static_cast<int64_t>(both.size()) > max_keys) all.push_back("<too many in a page>");
    all.insert(all.end(), both.begin(), both.end());
    options.page_token = page->next_page_token;
  } while (!options.page_token.empty());
  return all;
}

TEST_P(StorageConformance, ListsLikeASortedSetOfKeys) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE("MILLRACE_TEST_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  const std::vector<std::string> names{"a", "a-b", "a.b", "a0", "ab", "b", "B", "~", "!", "\xc3\xa9"};
  std::set<std::string> keys;
  for (int i = 0; i < 150; ++i) {
    std::string key = names[random() % names.size()];
    for (auto depth = random() % 4; depth > 0; --depth) key += "/" + names[random() % names.size()];
    // In a directory tree a name is a file or a directory, not both.
    const auto clashes = [&](const std::string& other) {
      return other.starts_with(key + "/") || key.starts_with(other + "/");
    };
    if (std::any_of(keys.begin(), keys.end(), clashes)) continue;
    keys.insert(key);
    put(key, "x");
  }
  for (const std::string prefix : {"", "a", "a/", "a/a", "b/", "a/b/a", "a-", "zzz", "zzz/", "."}) {
    for (const bool recursive : {true, false}) {
      for (const int64_t max_keys : {1, 2, 7, 1000}) {
        EXPECT_EQ(listed(*storage_, prefix, recursive, max_keys), expected_listing(keys, prefix, recursive))
            << "prefix \"" << prefix << "\" recursive " << recursive << " max_keys " << max_keys;
      }
    }
  }
}

TEST_P(StorageConformance, OddKeysAreKeys) {
  std::vector<std::string> keys{"with space",
                                "per%20cent",
                                "a+b",
                                "quote\"'",
                                "\xe6\x97\xa5\xe6\x9c\xac",
                                "dir with/\xc3\xa9 x",
                                "back\\slash",
                                "line\nbreak",
                                "...",
                                ".hidden",
                                "a/..b",
                                "#&?=;:@,$*",
                                std::string(200, 'n') + "/" + std::string(230, 'm')};
  std::sort(keys.begin(), keys.end());
  for (const auto& key : keys) put(key, "content of " + key);
  EXPECT_EQ(keys_of(*storage_), keys);
  for (const auto& key : keys) EXPECT_EQ(get(key), "content of " + key);
  ASSERT_TRUE(storage_->remove(keys));
  EXPECT_THAT(keys_of(*storage_), IsEmpty());
}

TEST_P(StorageConformance, RemovesManyAndGoesOnAfterAFailure) {
  for (const char* key : {"a", "b/c", "b/d", "e"}) put(key, "x");
  EXPECT_EQ(code_of(storage_->remove(std::vector<std::string>{"a", std::string("bad\0", 4), "missing", "b/c"})),
            ErrorCode::kInvalidArgument);
  EXPECT_THAT(keys_of(*storage_), ElementsAre("b/d", "e"));
  EXPECT_TRUE(storage_->remove({}));
}

}  // namespace
}  // namespace millrace
