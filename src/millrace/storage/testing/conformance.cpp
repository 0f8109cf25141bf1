// SPDX-License-Identifier: Apache-2.0
#include "millrace/storage/testing/conformance.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <set>

#include "millrace/base/hash/crc32c.h"
#include "millrace/base/testing/helpers.h"
#include "millrace/storage/local/local.h"
#include "millrace/storage/page_token.h"

namespace millrace {

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(StorageConformance);

void StorageConformance::SetUp() {
  if (!GetParam().missing.empty()) GTEST_SKIP() << GetParam().missing;
  storage_ = GetParam().make();
  ASSERT_NE(storage_, nullptr);
  can_ = storage_->capabilities();
}

void StorageConformance::put(const std::string& key, std::string_view content) {
  const auto written = write_object(*storage_, key, content, {}, Durability::kVisible);
  ASSERT_TRUE(written) << written.error().to_string();
}

std::string StorageConformance::get(const std::string& key) {
  const auto content = read_object(*storage_, key);
  return content ? *content : "<" + content.error().to_string() + ">";
}

std::string conformance_name(const ::testing::TestParamInfo<StorageCase>& info) {
  return info.param.name;
}

namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Condition = WriteOptions::Condition;

std::span<std::byte> bytes_of(std::string& text) {
  return std::as_writable_bytes(std::span<char>(text));
}

// Every key, page by page.
std::vector<std::string> keys_of(Storage& storage, std::string_view prefix = "") {
  std::vector<std::string> keys;
  const Status done = for_each_object(storage, prefix, [&](const ObjectInfo& object) -> Status {
    keys.push_back(object.key);
    return {};
  });
  if (!done) keys.push_back("<" + done.error().to_string() + ">");
  return keys;
}

TEST_P(StorageConformance, RefusesWhatIsNoKey) {
  using namespace std::string_literals;
  std::vector<std::string> none = {""s, "a\0b"s};
  if (can_.folders) none.insert(none.end(), {"/a", "a//b", "a/", "./a", "a/../b", ".."});
  for (const std::string& key : none) {
    EXPECT_EQ(code_of(storage_->open_read(key)), ErrorCode::kInvalidArgument) << key;
    EXPECT_EQ(code_of(storage_->open_write(key)), ErrorCode::kInvalidArgument) << key;
    EXPECT_EQ(code_of(storage_->stat(key)), ErrorCode::kInvalidArgument) << key;
    EXPECT_EQ(code_of(storage_->remove(std::vector{key})), ErrorCode::kInvalidArgument) << key;
    EXPECT_EQ(code_of(storage_->make_durable(std::vector{key})), ErrorCode::kInvalidArgument) << key;
  }
  none = {"a\0"s, "a/b\0"s};
  if (can_.folders) none.insert(none.end(), {"/a", "a//b", "../a", "/"});
  for (const std::string& prefix : none) {
    EXPECT_EQ(code_of(storage_->list(prefix)), ErrorCode::kInvalidArgument) << prefix;
    EXPECT_EQ(code_of(storage_->list_uploads(prefix)), ErrorCode::kInvalidArgument) << prefix;
  }
  EXPECT_EQ(code_of(storage_->list("", {.max_keys = 0})), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of(storage_->open_write("a", {.size_hint_bytes = -1})), ErrorCode::kInvalidArgument);
}

TEST_P(StorageConformance, ObjectStoresTakeKeysThatAreNoPaths) {
  if (can_.folders) return;  // RefusesWhatIsNoKey
  const std::vector<std::string> keys = {"../d", "./c", "/a", "a//b", "a/b/../c", "dir/"};
  for (const std::string& key : keys) ASSERT_TRUE(write_object(*storage_, key, key)) << key;
  EXPECT_EQ(keys_of(*storage_), keys);
  EXPECT_THAT(keys_of(*storage_, "a//"), ElementsAre("a//b"));
  for (const std::string& key : keys) EXPECT_EQ(read_object(*storage_, key).value_or("<none>"), key);
  ASSERT_TRUE(storage_->remove(keys));
  EXPECT_THAT(keys_of(*storage_), IsEmpty());
}

TEST_P(StorageConformance, SaysThatAKeyIsMissing) {
  put("there", "x");
  for (const char* key : {"missing", "missing/too", "there/below"}) {
    EXPECT_EQ(code_of(storage_->open_read(key)), ErrorCode::kNotFound) << key;
    EXPECT_EQ(code_of(storage_->stat(key)), ErrorCode::kNotFound) << key;
    EXPECT_TRUE(storage_->remove(std::vector<std::string>{key})) << key;
  }
  EXPECT_THAT(storage_->open_read("missing").error().to_string(), HasSubstr("missing"));
}

TEST_P(StorageConformance, ReadsWhatWasWritten) {
  for (const size_t size : {0, 1, 4095, 4096, 1'000'003}) {
    const std::string content = test_bytes(size, size);
    const auto written = write_object(*storage_, "dir/sub/object", content);
    ASSERT_TRUE(written) << written.error().to_string();
    EXPECT_EQ(written->key, "dir/sub/object");
    EXPECT_EQ(written->size, static_cast<int64_t>(size));
    const auto reader = storage_->open_read("dir/sub/object", {.expected_version = written->version});
    ASSERT_TRUE(reader) << reader.error().to_string();
    EXPECT_EQ((*reader)->size(), static_cast<int64_t>(size));
    EXPECT_EQ((*reader)->version(), written->version);
    EXPECT_TRUE(*read_all(**reader, 1 << 30) == content);
    const auto info = storage_->stat("dir/sub/object");
    ASSERT_TRUE(info);
    EXPECT_EQ(info->version, written->version);
    EXPECT_EQ(info->size, written->size);
    const double age_s = FileTime(std::chrono::system_clock::now()).as_seconds() - info->modified.as_seconds();
    EXPECT_LT(std::abs(age_s), 3600);
  }
}

TEST_P(StorageConformance, ReadsRangesAndNothingPastTheEnd) {
  const std::string content = test_bytes(10'000, 1);
  put("object", content);
  const auto reader = storage_->open_read("object");
  ASSERT_TRUE(reader);
  std::string out(1000, '\0');
  for (const int64_t offset : {0, 1, 4096, 9000}) {
    ASSERT_TRUE((*reader)->read_at(offset, bytes_of(out)));
    EXPECT_EQ(out, content.substr(static_cast<size_t>(offset), out.size()));
  }
  EXPECT_TRUE((*reader)->read_at(10'000, {}));
  for (const int64_t offset : {int64_t{9001}, int64_t{10'000}, INT64_MAX}) {
    EXPECT_EQ(code_of((*reader)->read_at(offset, bytes_of(out))), ErrorCode::kOutOfRange) << offset;
  }
}

TEST_P(StorageConformance, GapsAreZerosAndAHintIsOnlyAHint) {
  if (!can_.is_local()) GTEST_SKIP() << "no writes in any order";
  for (const int64_t hint : {0, 3, 300'000}) {
    const auto writer = storage_->open_write("gaps", {.size_hint_bytes = hint});
    ASSERT_TRUE(writer);
    ASSERT_TRUE((*writer)->write_at(100'000, as_bytes("end")));
    ASSERT_TRUE((*writer)->write_at(0, as_bytes("begin")));
    const auto done = (*writer)->commit(Durability::kVisible);
    ASSERT_TRUE(done) << done.error().to_string();
    EXPECT_EQ(done->size, 100'003);
    EXPECT_TRUE(get("gaps") == "begin" + std::string(99'995, '\0') + "end");
  }
}

TEST_P(StorageConformance, RefusesRangesThatCannotBe) {
  const auto writer = storage_->open_write("object");
  ASSERT_TRUE(writer);
  EXPECT_EQ(code_of((*writer)->write_at(-1, as_bytes("x"))), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of((*writer)->write_at(INT64_MAX, as_bytes("x"))), ErrorCode::kInvalidArgument);
  // Some file systems take files of any length (XFS, tmpfs).
  const Status far = (*writer)->write_at(INT64_MAX - 1, as_bytes("x"));
  EXPECT_TRUE(far || far.error().code() == ErrorCode::kResourceExhausted);
  if (can_.is_local()) return;
  EXPECT_EQ(code_of((*writer)->write_at(1, as_bytes("x"))), ErrorCode::kInvalidArgument) << "neither next nor a part";
}

TEST_P(StorageConformance, EveryCommitHasAVersionOfItsOwn) {
  if (!GetParam().unique_versions) GTEST_SKIP() << "equal content may have an equal version";
  std::set<std::string> versions;
  for (int i = 0; i < 50; ++i) {
    const auto written = write_object(*storage_, "object", "same size", {}, Durability::kVisible);
    ASSERT_TRUE(written);
    EXPECT_TRUE(versions.insert(written->version).second) << "version " << written->version << " came twice";
  }
}

TEST_P(StorageConformance, AnOpenPinsAVersion) {
  put("object", "old content");
  const auto reader = storage_->open_read("object");
  ASSERT_TRUE(reader);
  const std::string version((*reader)->version());
  put("object", "NEW CONTENT, longer");
  // The bytes of the version that was opened, or an error.
  const auto expect_pinned = [&] {
    const auto content = read_all(**reader, 100);
    if (GetParam().reads_replaced) {
      EXPECT_EQ(*content, "old content");
    } else {
      ASSERT_EQ(code_of(content), ErrorCode::kCorruption);
      EXPECT_THAT(content.error().to_string(), HasSubstr("changed while reading"));
    }
  };
  expect_pinned();
  EXPECT_EQ(code_of(storage_->open_read("object", {.expected_version = version})), ErrorCode::kCorruption);
  ASSERT_TRUE(storage_->remove(std::vector<std::string>{"object"}));
  expect_pinned();
}

TEST_P(StorageConformance, AWriteIsInvisibleUntilCommit) {
  {
    const auto writer = storage_->open_write("dir/dropped", {.size_hint_bytes = 5});
    ASSERT_TRUE(writer);
    ASSERT_TRUE((*writer)->append(as_bytes("hello")));
    EXPECT_EQ(code_of(storage_->stat("dir/dropped")), ErrorCode::kNotFound);
    EXPECT_THAT(keys_of(*storage_), IsEmpty());
    if (can_.list_uploads) {
      EXPECT_THAT(*storage_->list_uploads(""), IsEmpty()) << "its process lives";
    }
  }
  EXPECT_THAT(keys_of(*storage_), IsEmpty());
  if (can_.list_uploads) {
    EXPECT_THAT(*storage_->list_uploads(""), IsEmpty());
  }
}

TEST_P(StorageConformance, AWriterEndsWithItsCommit) {
  const auto writer = storage_->open_write("object");
  ASSERT_TRUE(writer);
  ASSERT_TRUE((*writer)->append(as_bytes("one")));
  ASSERT_TRUE((*writer)->append(as_bytes(" two")));
  ASSERT_TRUE((*writer)->commit(Durability::kVisible));
  EXPECT_EQ(code_of((*writer)->append(as_bytes("more"))), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of((*writer)->commit()), ErrorCode::kInvalidArgument);
  EXPECT_EQ(get("object"), "one two");
}

TEST_P(StorageConformance, ACommitThatWasStartedIsOne) {
  put("there", "old");
  CompletionQueue queue;
  const auto commit = [&](std::string_view key, const WriteOptions& options) -> Result<ObjectInfo> {
    ASSIGN_OR_RETURN(const auto writer, storage_->open_write(key, options));
    RETURN_IF_ERROR(writer->append(as_bytes("content")));
    if (writer->start_commit(Durability::kVisible, 17, queue)) {
      EXPECT_EQ(queue.wait().tag, 17U);
    }
    return writer->commit(Durability::kVisible);
  };
  for (const std::string key : {"new", "there"}) {
    const auto written = commit(key, {});
    ASSERT_TRUE(written) << written.error().to_string();
    EXPECT_EQ(written->version, storage_->stat(key)->version);
    EXPECT_EQ(get(key), "content");
  }
  const auto lost = commit("there", {.condition = Condition::kIfAbsent});
  EXPECT_EQ(lost ? ErrorCode::kInternal : lost.error().code(), ErrorCode::kAlreadyExists);
  EXPECT_FALSE(queue.try_pop());
}

TEST_P(StorageConformance, ABriefWriteIsAWrite) {
  const WriteOptions brief{.brief = true};
  {
    const auto dropped = storage_->open_write("dir/object", brief);
    ASSERT_TRUE(dropped) << dropped.error().to_string();
    ASSERT_TRUE((*dropped)->append(as_bytes("dropped")));
    EXPECT_EQ(code_of(storage_->stat("dir/object")), ErrorCode::kNotFound);
  }
  EXPECT_EQ(code_of(storage_->stat("dir/object")), ErrorCode::kNotFound);
  for (const std::string content : {"first", "the second", ""}) {
    const auto written = write_object(*storage_, "dir/object", content, brief, Durability::kVisible);
    ASSERT_TRUE(written) << written.error().to_string();
    EXPECT_EQ(get("dir/object"), content);
    const auto info = storage_->stat("dir/object");
    EXPECT_EQ(written->version, info->version);
    if (!written->changed.is_epoch()) {
      EXPECT_EQ(written->changed, info->changed);
    }
  }
  EXPECT_EQ(storage_->list("")->objects.size(), 1U);
  if (can_.list_uploads) {
    EXPECT_THAT(*storage_->list_uploads(""), IsEmpty());
  }
  if (!can_.folders) return;
  EXPECT_EQ(code_of(write_object(*storage_, "dir", "x", brief)), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of(write_object(*storage_, "dir/object/x", "x", brief)), ErrorCode::kInvalidArgument);
}

TEST_P(StorageConformance, ConditionsHold) {
  if (!can_.conditional_write) GTEST_SKIP() << "no conditional writes";
  const WriteOptions if_absent{.condition = Condition::kIfAbsent};
  const auto late = storage_->open_write("object", if_absent);  // opened before it exists
  ASSERT_TRUE(late);
  const auto first = write_object(*storage_, "object", "first", if_absent);
  ASSERT_TRUE(first) << first.error().to_string();
  EXPECT_EQ(code_of(storage_->open_write("object", if_absent)), ErrorCode::kAlreadyExists);
  EXPECT_EQ(code_of((*late)->commit()), ErrorCode::kAlreadyExists);

  const WriteOptions if_first{.condition = Condition::kIfVersion, .version = first->version};
  EXPECT_TRUE(write_object(*storage_, "object", "second", if_first));
  EXPECT_EQ(code_of(write_object(*storage_, "object", "third", if_first)), ErrorCode::kAlreadyExists);
  EXPECT_EQ(code_of(write_object(*storage_, "missing", "x", if_first)), ErrorCode::kAlreadyExists);
  EXPECT_EQ(get("object"), "second");
  EXPECT_THAT(keys_of(*storage_), ElementsAre("object"));
  if (can_.list_uploads) {
    EXPECT_THAT(*storage_->list_uploads(""), IsEmpty());
  }
}

TEST_P(StorageConformance, OneOfManyIfAbsentWins) {
  if (!can_.conditional_write) GTEST_SKIP() << "no conditional writes";
  for (int round = 0; round < 10; ++round) {
    const std::string key = "race/" + std::to_string(round);
    std::atomic<int> winners{0}, losers{0};
    std::vector<Thread> threads;
    for (int i = 0; i < 6; ++i) {
      threads.emplace_back("test", [&] {
        const auto done = write_object(*storage_, key, "x", {.condition = Condition::kIfAbsent}, Durability::kVisible);
        if (done) ++winners;
        if (code_of(done) == ErrorCode::kAlreadyExists) ++losers;
      });
    }
    threads.clear();
    EXPECT_EQ(winners, 1);
    EXPECT_EQ(losers, 5);
  }
}

TEST_P(StorageConformance, IfVersionLosesNoUpdate) {
  if (!can_.conditional_write) GTEST_SKIP() << "no conditional writes";
  if (GetParam().loses_updates) GTEST_SKIP() << "its server is known to lose updates that race";
  put("counter", "0");
  std::vector<Thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back("test", [&] {
      for (int done = 0; done < 25;) {
        const auto reader = storage_->open_read("counter");
        ASSERT_TRUE(reader) << reader.error().to_string();
        const auto read = read_all(**reader, 100);
        if (!GetParam().reads_replaced && code_of(read) == ErrorCode::kCorruption) continue;
        ASSERT_TRUE(read) << read.error().to_string();
        const int value = std::stoi(*read);
        const WriteOptions options{.condition = Condition::kIfVersion, .version = std::string((*reader)->version())};
        const auto written =
            write_object(*storage_, "counter", std::to_string(value + 1), options, Durability::kVisible);
        if (written)
          ++done;
        else
          ASSERT_EQ(code_of(written), ErrorCode::kAlreadyExists) << written.error().to_string();
      }
    });
  }
  threads.clear();
  EXPECT_EQ(get("counter"), "100");
}

TEST_P(StorageConformance, ReadersSeeTheOldOrTheNewObject) {
  put("object", std::string(1000, 'a'));
  std::atomic<bool> stop{false};
  std::vector<Thread> readers;
  for (int i = 0; i < 3; ++i) {
    readers.emplace_back("test", [&] {
      while (!stop) {
        const auto reader = storage_->open_read("object");
        ASSERT_TRUE(reader) << reader.error().to_string();
        const auto read = read_all(**reader, 100'000);
        if (!GetParam().reads_replaced && code_of(read) == ErrorCode::kCorruption) continue;
        ASSERT_TRUE(read) << read.error().to_string();
        const std::string& content = *read;
        ASSERT_FALSE(content.empty());
        ASSERT_EQ(content.size(), static_cast<size_t>(content[0] - 'a' + 1) * 1000) << content.substr(0, 200);
        ASSERT_EQ(content.find_first_not_of(content[0]), content.npos);
      }
    });
  }
  for (int i = 0; i < 200; ++i) {
    put("object", std::string(static_cast<size_t>(i % 26 + 1) * 1000, static_cast<char>('a' + i % 26)));
  }
  stop = true;
}

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

TEST_P(StorageConformance, ManyThreadsWriteOneObject) {
  if (!can_.is_local()) GTEST_SKIP() << "no writes in any order";
  const std::string content = test_bytes(4'000'000, 7);
  constexpr size_t kPart = 50'000;
  std::vector<size_t> offsets;
  for (size_t at = 0; at < content.size(); at += kPart) offsets.push_back(at);
  std::shuffle(offsets.begin(), offsets.end(), std::mt19937_64(1));
  const auto writer = storage_->open_write("large", {.size_hint_bytes = 4'000'000});
  ASSERT_TRUE(writer);
  std::atomic<size_t> next{0};
  std::vector<Thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back("test", [&] {
      for (size_t n; (n = next++) < offsets.size();) {
        const std::string_view part = std::string_view(content).substr(offsets[n], kPart);
        ASSERT_TRUE((*writer)->write_at(static_cast<int64_t>(offsets[n]), as_bytes(part)));
      }
    });
  }
  threads.clear();
  ASSERT_TRUE((*writer)->commit(Durability::kVisible));
  EXPECT_TRUE(get("large") == content);
}

TEST_P(StorageConformance, SubmittedOperationsEachEndOnce) {
  if (!can_.is_local()) GTEST_SKIP() << "no writes in any order";
  const std::string content = test_bytes(300'000, 3);
  put("source", content);
  const auto reader = storage_->open_read("source");
  const auto writer = storage_->open_write("copy");
  ASSERT_TRUE(reader && writer);
  std::stop_source stop;
  stop.request_stop();
  std::string out(content.size(), '\0');
  std::vector<Operation> operations;
  for (size_t at = 0; at < content.size(); at += 10'000) {
    const uint64_t tag = operations.size();
    const auto offset = static_cast<int64_t>(at);
    operations.push_back(
        {.tag = tag, .what = Operation::Read{reader->get(), offset, bytes_of(out).subspan(at, 10'000)}});
    operations.push_back({.tag = tag + 1,
                          .what = Operation::Write{writer->get(), offset, as_bytes(content).subspan(at, 10'000)},
                          .priority = 1});
  }
  std::string unused(10, '\0');
  const uint64_t stopped = operations.size();
  const Operation::Read some{reader->get(), 0, bytes_of(unused)};
  operations.push_back({.tag = stopped, .what = some, .stop = stop.get_token()});
  operations.push_back({.tag = stopped + 1, .what = some, .deadline = Clock::now()});
  operations.push_back({.tag = stopped + 2, .what = Operation::Read{reader->get(), 299'999, bytes_of(unused)}});
  CompletionQueue queue;
  storage_->submit(operations, queue);
  std::map<uint64_t, ErrorCode> ended;
  for (size_t i = 0; i < operations.size(); ++i) {
    const Completion completion = queue.wait();
    EXPECT_TRUE(ended.emplace(completion.tag, code_of(completion.status)).second) << completion.tag << " ended twice";
    EXPECT_TRUE(completion.tag >= stopped || completion.status);
  }
  EXPECT_EQ(queue.try_pop(), std::nullopt);
  EXPECT_EQ(ended[stopped], ErrorCode::kCancelled);
  EXPECT_EQ(ended[stopped + 1], ErrorCode::kTimeout);
  EXPECT_EQ(ended[stopped + 2], ErrorCode::kOutOfRange);
  ASSERT_TRUE((*writer)->commit(Durability::kVisible));
  EXPECT_TRUE(out == content);
  EXPECT_TRUE(get("copy") == content);
}

TEST_P(StorageConformance, CopiesRanges) {
  const std::string content = test_bytes(2'500'000, 5);
  put("source", content);
  const auto reader = storage_->open_read("source");
  const auto writer = storage_->open_write("copy");
  ASSERT_TRUE(reader && writer);
  ASSERT_TRUE((*writer)->copy_range(**reader, 1000, 2'400'000, 0));
  ASSERT_TRUE((*writer)->copy_range(**reader, 0, 1000, 2'400'000));
  ASSERT_TRUE((*writer)->copy_range(**reader, 2'500'000, 0, 0));
  EXPECT_EQ(code_of((*writer)->copy_range(**reader, 2'499'999, 2, 0)), ErrorCode::kOutOfRange);
  EXPECT_EQ(code_of((*writer)->copy_range(**reader, INT64_MAX, INT64_MAX, 0)), ErrorCode::kOutOfRange);
  const MemoryReader foreign(as_bytes("from elsewhere"));
  ASSERT_TRUE((*writer)->copy_range(foreign, 5, 9, 2'401'000));
  ASSERT_TRUE((*writer)->commit(Durability::kVisible));
  EXPECT_TRUE(get("copy") == content.substr(1000, 2'400'000) + content.substr(0, 1000) + "elsewhere");
}

TEST_P(StorageConformance, AChangeWhileReadingIsCorruption) {
  const auto& overwrite = GetParam().overwrite_in_place;
  if (!overwrite) GTEST_SKIP() << "nobody can change an object here";
  for (const std::string changed : {"CONTENT", "con", "content and more"}) {
    put("object", "content");
    const auto reader = storage_->open_read("object");
    ASSERT_TRUE(reader);
    std::string out(4, '\0');
    ASSERT_TRUE((*reader)->read_at(0, bytes_of(out)));
    overwrite(*storage_, "object", changed);
    const Status status = (*reader)->read_at(0, bytes_of(out));
    ASSERT_EQ(code_of(status), ErrorCode::kCorruption) << changed;
    EXPECT_THAT(status.error().to_string(), HasSubstr("changed while reading"));
    const auto writer = storage_->open_write("copy");
    ASSERT_TRUE(writer);
    EXPECT_EQ(code_of((*writer)->copy_range(**reader, 0, 4, 0)), ErrorCode::kCorruption) << changed;
  }
}

TEST_P(StorageConformance, FindsAndAbortsWhatADeadProcessLeft) {
  if (!can_.list_uploads || !can_.knows_dead || !GetParam().shared_between_processes)
    GTEST_SKIP() << "nothing outlives a process, or nobody knows";
  const auto alive = storage_->open_write("run/alive");
  ASSERT_TRUE(alive);
  for (const char* key : {"run/dead", "run/deeper/dead", "other/dead"}) {
    ASSERT_TRUE(succeeds_in_child([&] {
      const auto writer = storage_->open_write(key);
      return writer && (*writer)->append(as_bytes("half")) && (::_exit(0), true);
    }));
  }
  EXPECT_THAT(keys_of(*storage_), IsEmpty());
  const auto below_run = storage_->list_uploads("run/");
  ASSERT_TRUE(below_run) << below_run.error().to_string();
  std::vector<std::string> keys;
  for (const auto& upload : *below_run) keys.push_back(upload.key);
  EXPECT_THAT(keys, ::testing::UnorderedElementsAre("run/dead", "run/deeper/dead"));
  EXPECT_EQ(storage_->list_uploads("run/de")->size(), 2u);
  EXPECT_EQ(storage_->list_uploads("run/dead")->size(), 1u);
  EXPECT_EQ(storage_->list_uploads("")->size(), 3u);
  EXPECT_TRUE(storage_->abort_uploads(*below_run));
  EXPECT_TRUE(storage_->abort_uploads(*below_run)) << "what is gone counts as aborted";
  EXPECT_THAT(*storage_->list_uploads("run/"), IsEmpty());
  EXPECT_EQ(storage_->list_uploads("")->size(), 1u);
  ASSERT_TRUE((*alive)->append(as_bytes("whole")));
  ASSERT_TRUE((*alive)->commit());
  EXPECT_EQ(get("run/alive"), "whole");
}

TEST_P(StorageConformance, WritesPartsInAnyOrder) {
  const std::string content = test_bytes(17'000'000, 11);
  const auto size = static_cast<int64_t>(content.size());
  const auto writer = storage_->open_write("parts", {.size_hint_bytes = size, .part_bytes = 5 << 20});
  ASSERT_TRUE(writer) << writer.error().to_string();
  const int64_t part = can_.is_local() ? 5 << 20 : (*writer)->part_bytes();
  ASSERT_GT(part, 0);
  std::vector<Operation> operations;
  for (int64_t at = 0; at < size; at += part) {
    const auto data =
        as_bytes(content).subspan(static_cast<size_t>(at), static_cast<size_t>(std::min(part, size - at)));
    operations.push_back({.tag = static_cast<uint64_t>(at), .what = Operation::Write{writer->get(), at, data}});
  }
  std::reverse(operations.begin(), operations.end());
  CompletionQueue queue;
  storage_->submit(operations, queue);
  for (size_t i = 0; i < operations.size(); ++i) {
    const Completion completion = queue.wait();
    EXPECT_TRUE(completion.status) << completion.status.error().to_string();
  }
  const auto done = (*writer)->commit();
  ASSERT_TRUE(done) << done.error().to_string();
  EXPECT_EQ(done->size, size);
  EXPECT_TRUE(get("parts") == content);
  EXPECT_EQ(storage_->stat("parts")->version, done->version);
}

TEST_P(StorageConformance, WritesPartsFromAFile) {
  const std::string content = test_bytes(17'000'000, 12);
  const auto size = static_cast<int64_t>(content.size());
  const TempDir dir;
  const auto files = *open_local_storage(dir.path());
  ASSERT_TRUE(write_object(*files, "file", content));
  const auto file = *files->open_read("file");
  const auto writer = *storage_->open_write("from-file", {.size_hint_bytes = size, .part_bytes = 5 << 20});
  const int64_t part = can_.is_local() ? 5 << 20 : writer->part_bytes();
  Progress progress;
  std::vector<std::unique_ptr<FileRange>> ranges;
  std::vector<Operation> operations;
  for (int64_t at = 0; at < size; at += part) {
    ranges.push_back(as_local_file(*file)->file_range(at, std::min(part, size - at)));
    const auto bytes = as_bytes(content).subspan(static_cast<size_t>(at), static_cast<size_t>(ranges.back()->size()));
    operations.push_back({.tag = static_cast<uint64_t>(at),
                          .what = Operation::Send{writer.get(), at, ranges.back().get(), crc32c(bytes), &progress}});
  }
  CompletionQueue queue;
  storage_->submit(operations, queue);
  for (size_t i = 0; i < operations.size(); ++i) {
    const Completion completion = queue.wait();
    EXPECT_TRUE(completion.status) << completion.status.error().to_string();
  }
  EXPECT_EQ(progress.snapshot().bytes, size);
  ASSERT_TRUE(writer->commit());
  EXPECT_TRUE(get("from-file") == content);
}

TEST_P(StorageConformance, AppendsOfAnySizeAndAHeadWrittenLast) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE("MILLRACE_TEST_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (const size_t size : {100u, 8u << 20, (8u << 20) + 1, 20'000'000u}) {
    std::string content = test_bytes(size, seed);
    const auto writer = storage_->open_write("appended");
    ASSERT_TRUE(writer);
    for (size_t at = 0; at < size;) {
      const size_t piece = std::min<size_t>(size - at, random() % 3'000'000 + 1);
      ASSERT_TRUE((*writer)->write_at(static_cast<int64_t>(at), as_bytes(content).subspan(at, piece)));
      at += piece;
    }
    if (GetParam().rewrites_head) {
      ASSERT_TRUE((*writer)->write_at(0, as_bytes("head")));
      content.replace(0, 4, "head");
    }
    const auto done = (*writer)->commit();
    ASSERT_TRUE(done) << done.error().to_string();
    EXPECT_TRUE(get("appended") == content) << size;
  }
}

TEST_P(StorageConformance, MakesManyDurable) {
  const std::vector<std::string> keys{"a", "b/c", "b/d", "b/e/f"};
  for (const auto& key : keys) put(key, "x");
  EXPECT_TRUE(storage_->make_durable(keys));
  EXPECT_TRUE(storage_->make_durable({}));
  EXPECT_EQ(code_of(storage_->make_durable(std::vector<std::string>{"a", "missing"})), ErrorCode::kNotFound);
}

TEST_P(StorageConformance, KnowsItsFreeSpace) {
  if (!can_.free_space) {
    EXPECT_EQ(code_of(storage_->free_space("")), ErrorCode::kUnsupported);
    return;
  }
  const auto free = storage_->free_space("not/yet/there");
  ASSERT_TRUE(free) << free.error().to_string();
  EXPECT_GT(free->bytes, 0);
  EXPECT_FALSE(free->limit.empty());
  EXPECT_EQ(code_of(storage_->open_write("huge", {.size_hint_bytes = INT64_MAX / 2})), ErrorCode::kResourceExhausted);
  EXPECT_THAT(keys_of(*storage_), IsEmpty());
}

TEST_P(StorageConformance, KeepsMetadataOrRefusesIt) {
  const WriteOptions options{.metadata = {{"owner", "1000"}}};
  if (!GetParam().keeps_metadata) {
    EXPECT_EQ(code_of(storage_->open_write("object", options)), ErrorCode::kUnsupported);
    return;
  }
  ASSERT_TRUE(write_object(*storage_, "object", "x", options));
  EXPECT_EQ(storage_->stat("object")->metadata, options.metadata);
  EXPECT_EQ(code_of(storage_->open_write("object", {.metadata = {{"k", std::string(3000, 'x')}}})),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of(storage_->open_write("object", {.metadata = {{"k", "\xc3\xa9"}}})), ErrorCode::kInvalidArgument);
}

TEST_P(StorageConformance, WorksInAForkedChild) {
  put("before", "written before");
  const auto reader = storage_->open_read("before");
  auto writer = storage_->open_write("parent");
  ASSERT_TRUE(reader && writer);
  CompletionQueue warm;  // so that threads are running when it forks
  std::string warm_out(7, '\0');
  storage_->submit(std::vector<Operation>{{.what = Operation::Read{reader->get(), 0, bytes_of(warm_out)}}}, warm);
  ASSERT_TRUE(warm.wait().status);

  EXPECT_TRUE(succeeds_in_child([&] {
    CompletionQueue queue;
    std::string out(14, '\0');
    storage_->submit(std::vector<Operation>{{.what = Operation::Read{reader->get(), 0, bytes_of(out)}}}, queue);
    if (!queue.wait().status || out != "written before" || get("before") != out) return false;
    if (!write_object(*storage_, "child", "by the child")) return false;
    writer->reset();  // must not take the parent's write away
    return get("child") == "by the child";
  }));
  ASSERT_TRUE((*writer)->append(as_bytes("by the parent")));
  ASSERT_TRUE((*writer)->commit());
  EXPECT_EQ(get("parent"), "by the parent");
  if (GetParam().shared_between_processes) {
    EXPECT_EQ(get("child"), "by the child");
  }
}

}  // namespace
}  // namespace millrace
