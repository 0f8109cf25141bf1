// SPDX-License-Identifier: Apache-2.0
// The power is cut before every system call of a durable write; what is left must be the old object or the new one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cerrno>
#include <filesystem>
#include <functional>
#include <optional>

#include "millrace/base/testing/helpers.h"
#include "millrace/storage/local/detail/durable.h"
#include "millrace/storage/local/local.h"
#include "millrace/storage/testing/fault_syscalls.h"

namespace millrace {
namespace {

using ::testing::IsEmpty;
using Condition = WriteOptions::Condition;

constexpr int kSeedsPerCut = 12;
constexpr int kMostCalls = 200;

const std::string kOld = "old " + std::string(9'000, 'o');
const std::string kNew = "new " + std::string(13'000, 'n');

// The content after a crash; nullopt without an object. Leftovers must be found and removed.
std::optional<std::string> content_after_crash(const std::string& dir, const std::string& key) {
  const auto storage = *open_local_storage(dir);
  const auto uploads = storage->list_uploads("");
  EXPECT_TRUE(uploads && storage->abort_uploads(*uploads));
  EXPECT_THAT(*storage->list_uploads(""), IsEmpty());
  const auto content = read_object(*storage, key);
  if (!content) {
    EXPECT_EQ(content.error().code(), ErrorCode::kNotFound) << content.error().to_string();
    return std::nullopt;
  }
  EXPECT_TRUE(*content == kOld || *content == kNew) << "a mixture of " << content->size() << " bytes";
  return *content;
}

struct CrashCase {
  std::string key = "dir/object";
  std::optional<std::string> before;                                    // the object's content on the disk
  std::function<bool(Storage& storage, const std::string& key)> write;  // true: it is durable, says the storage
  std::vector<SyscallFault> faults;
};

// Cuts the power at every call of `test.write`, many times each, until it ends by itself.
void cut_everywhere(const CrashCase& test) {
  const uint64_t first_seed = test_seed();
  for (int cut = 0; cut < kMostCalls; ++cut) {
    bool done = false;
    for (int i = 0; i < kSeedsPerCut; ++i) {
      const uint64_t seed = first_seed + static_cast<uint64_t>(i);
      SCOPED_TRACE("cut before call " + std::to_string(cut) + ", MILLRACE_TEST_SEED=" + std::to_string(seed));
      TempDir dir(TempDir::Place::kMemory);  // the model is the disk
      if (test.before) {
        ASSERT_TRUE(write_object(**open_local_storage(dir.path()), test.key, *test.before, {}, Durability::kVisible));
      }
      FaultSyscalls sys(seed, dir.path());
      for (const auto& fault : test.faults) sys.add(fault);
      {
        const auto storage = *open_local_storage(dir.path(), {.io_threads = 1, .syscalls = &sys});
        sys.cut_power_after(cut);
        done = test.write(*storage, test.key);
      }
      sys.crash();
      const auto after = content_after_crash(dir.path(), test.key);
      if (done) {
        ASSERT_EQ(after, kNew) << "it was said to be durable";
      } else {
        ASSERT_TRUE(after == test.before || after == kNew) << "neither old nor new";
      }
    }
    if (done) {
      EXPECT_GT(cut, 5) << "the power was not cut inside the write";
      return;
    }
  }
  FAIL() << "it never ended";
}

bool write_durable(Storage& storage, const std::string& key) {
  return write_object(storage, key, kNew, {.size_hint_bytes = 20'000}).has_value();
}

bool write_brief(Storage& storage, const std::string& key) {
  return write_object(storage, key, kNew, {.brief = true}).has_value();
}

bool write_if_absent(Storage& storage, const std::string& key) {
  return write_object(storage, key, kNew, {.condition = Condition::kIfAbsent}).has_value();
}

TEST(Crash, ReplacingKeepsTheOldOrTheNew) {
  cut_everywhere({.before = kOld, .write = write_durable});
}

TEST(Crash, ANewObjectInNewDirectoriesIsThereOrNot) {
  cut_everywhere({.key = "a/b/object", .write = write_durable});
}

TEST(Crash, ABriefWriteKeepsTheOldOrTheNew) {
  cut_everywhere({.before = kOld, .write = write_brief});
  cut_everywhere({.key = "a/b/object", .write = write_brief});
}

TEST(Crash, IfAbsentIsThereOrNot) {
  cut_everywhere({.write = write_if_absent});
}

TEST(Crash, IfAbsentByALinkIsThereOrNot) {
  const SyscallFault no_rename{.call = "rename_noreplace", .count = SyscallFault::kForever, .error = EINVAL};
  cut_everywhere({.write = write_if_absent, .faults = {no_rename}});
}

TEST(Crash, IfVersionKeepsTheOldOrTheNew) {
  cut_everywhere({.before = kOld, .write = [](Storage& storage, const std::string& key) {
                    const auto info = storage.stat(key);
                    if (!info) return false;
                    const WriteOptions options{.condition = Condition::kIfVersion, .version = info->version};
                    return write_object(storage, key, kNew, options).has_value();
                  }});
}

// Half is written and noted, and another writer resumes. A note that survives without its file must be found too.
bool write_in_two(Storage& storage, const std::string& key) {
  const size_t half = kNew.size() / 2;
  {
    const auto writer = storage.open_write(key);
    if (!writer || !(*writer)->write_at(0, as_bytes(kNew.substr(0, half)))) return false;
    if (!(*writer)->set_note("less") || !(*writer)->set_note("half") || !(*writer)->suspend()) return false;
  }
  const auto uploads = storage.list_uploads(key);
  if (!uploads || uploads->size() != 1) return false;
  const auto writer = storage.resume_write(uploads->front());
  if (!writer || (*writer)->note() != "half") return false;
  if (!(*writer)->write_at(static_cast<int64_t>(half), as_bytes(kNew.substr(half)))) return false;
  return (*writer)->set_note("whole").has_value() && (*writer)->commit().has_value();
}

TEST(Crash, AResumedWriteKeepsTheOldOrTheNew) {
  cut_everywhere({.before = kOld, .write = write_in_two});
}

TEST(Crash, MakeDurableMakesVisibleObjectsDurable) {
  const uint64_t first_seed = test_seed();
  for (uint64_t seed = first_seed; seed < first_seed + 20; ++seed) {
    SCOPED_TRACE("MILLRACE_TEST_SEED=" + std::to_string(seed));
    TempDir dir(TempDir::Place::kMemory);
    FaultSyscalls sys(seed, dir.path());
    const std::vector<std::string> keys{"a/b/object", "a/other"};
    {
      const auto storage = *open_local_storage(dir.path(), {.syscalls = &sys});
      const WriteOptions options{.brief = seed % 2 == 0};
      for (const auto& key : keys) ASSERT_TRUE(write_object(*storage, key, kNew, options, Durability::kVisible));
      ASSERT_TRUE(storage->make_durable(keys));
    }
    sys.crash();
    for (const auto& key : keys) ASSERT_EQ(content_after_crash(dir.path(), key), kNew);
  }
}

// For many files the file system is synced as a whole, and no file by itself, where a sync reports errors and other
// processes have not too much to write.
class CrashOfMany : public testing::Test {
 protected:
  CrashOfMany() {
    for (size_t i = 0; i < local::kFewestForAll; ++i) keys_.push_back(fmt::format("{}/b/{}", i % 3, i));
    sys_.add({.call = "fdatasync", .count = SyscallFault::kForever, .error = EIO});
  }

  Status write_all() {
    for (const auto& key : keys_) {
      RETURN_IF_ERROR(write_object(*storage_, key, kNew, {.brief = true}, Durability::kVisible));
    }
    return storage_->make_durable(keys_);
  }

  void expect_all_after_crash() {
    sys_.crash();
    for (const auto& key : keys_) ASSERT_EQ(content_after_crash(dir_.path(), key), kNew) << key;
  }

  const uint64_t seed_ = test_seed();
  TempDir dir_{TempDir::Place::kMemory};
  FaultSyscalls sys_{seed_, dir_.path()};  // where none can be synced by itself
  const std::shared_ptr<Storage> storage_ = *open_local_storage(dir_.path(), {.syscalls = &sys_});
  std::vector<std::string> keys_;
};

TEST_F(CrashOfMany, AreWrittenOutInOneCall) {
  ASSERT_TRUE(write_all());
  expect_all_after_crash();
}

TEST_F(CrashOfMany, AreSyncedOneByOneWhereThatCallFails) {
  sys_.clear();
  sys_.add({.call = "syncfs", .error = EIO});
  ASSERT_TRUE(write_all());
  expect_all_after_crash();
}

// The reported error may belong to the next files.
TEST_F(CrashOfMany, AreSyncedOneByOneEverAfter) {
  sys_.clear();
  sys_.add({.call = "syncfs", .error = EIO});
  ASSERT_TRUE(write_all());
  sys_.add({.call = "fdatasync", .error = EIO});
  EXPECT_FALSE(write_all());
}

TEST_F(CrashOfMany, AreSyncedOneByOneWhereTheFileSystemWasGivenUp) {
  sys_.add({.call = "fsync", .count = SyscallFault::kForever, .error = EROFS});
  EXPECT_FALSE(write_all());
}

TEST_F(CrashOfMany, WaitForNothingOfOthers) {
  sys_.set_dirty_bytes(local::kMostDirtyBytes + 1);
  EXPECT_FALSE(write_all());
}

TEST_F(CrashOfMany, AreNotManyWhenTheyAreFew) {
  keys_.pop_back();
  EXPECT_FALSE(write_all());
}

TEST_F(CrashOfMany, LieOnOneFileSystem) {
  const TempDir elsewhere;
  struct stat here{}, there{};
  ASSERT_EQ(stat(dir_.path().c_str(), &here) + stat(elsewhere.path().c_str(), &there), 0);
  if (here.st_dev == there.st_dev) GTEST_SKIP() << "all temporary folders are on one file system";
  std::filesystem::create_directory_symlink(elsewhere.path(), dir_.path() + "/elsewhere");
  keys_.push_back("elsewhere/x");
  EXPECT_FALSE(write_all());
}

TEST_F(CrashOfMany, AreAllThere) {
  ASSERT_TRUE(write_all());
  keys_.push_back("missing");
  EXPECT_EQ(storage_->make_durable(keys_).error().code(), ErrorCode::kNotFound);
}

// Another process made the directories and has not synced them.
TEST(Crash, DirectoriesThatOthersMadeAreSyncedToo) {
  const uint64_t first_seed = test_seed();
  for (uint64_t seed = first_seed; seed < first_seed + 20; ++seed) {
    SCOPED_TRACE("MILLRACE_TEST_SEED=" + std::to_string(seed));
    TempDir dir(TempDir::Place::kMemory);
    FaultSyscalls sys(seed, dir.path());
    {
      const auto other = *open_local_storage(dir.path(), {.syscalls = &sys});
      const auto unfinished = other->open_write("a/b/other");
      ASSERT_TRUE(unfinished);
      const auto storage = *open_local_storage(dir.path(), {.syscalls = &sys});
      ASSERT_TRUE(write_object(*storage, "a/b/object", kNew));
    }
    sys.crash();
    ASSERT_EQ(content_after_crash(dir.path(), "a/b/object"), kNew);
  }
}

// Tests the model: without any sync, damage must be possible, or the tests above prove no point.
TEST(Crash, TheModelLosesWhatWasNotSynced) {
  int lost = 0, kept = 0, damaged = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    TempDir dir(TempDir::Place::kMemory);
    FaultSyscalls sys(seed, dir.path());
    ASSERT_TRUE(
        write_object(**open_local_storage(dir.path(), {.syscalls = &sys}), "object", kNew, {}, Durability::kVisible));
    sys.crash();
    const auto content = read_object(**open_local_storage(dir.path()), "object");
    if (!content)
      ++lost;
    else if (*content == kNew)
      ++kept;
    else
      ++damaged;
  }
  EXPECT_GT(lost, 0);
  EXPECT_GT(kept, 0);
  EXPECT_GT(damaged, 0);
}

}  // namespace
}  // namespace millrace
