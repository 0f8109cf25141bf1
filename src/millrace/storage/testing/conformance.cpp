// SPDX-License-Identifier: Apache-2.0
#include "millrace/storage/testing/conformance.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <atomic>
#include <set>

#include "millrace/base/testing/helpers.h"
#include "millrace/storage/testing/conformance_helpers.h"

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
