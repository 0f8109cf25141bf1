// SPDX-License-Identifier: Apache-2.0
// The part of the conformance suite about parts, writes that are left or resumed, and POSIX attributes.
#include <gmock/gmock.h>
#include <unistd.h>

#include "millrace/base/testing/helpers.h"
#include "millrace/storage/testing/conformance.h"
#include "millrace/storage/testing/conformance_helpers.h"

namespace millrace {
namespace {

using ::testing::IsEmpty;

// Writes that storages with and without parts take: whole parts of the smallest size, and a shorter last one.
constexpr size_t kPartBytes = 5 << 20;
constexpr size_t kTailBytes = 12'345;
const WriteOptions kInParts{.size_hint_bytes = 2 * kPartBytes + kTailBytes, .part_bytes = kPartBytes};

struct Pieces {
  const std::string content = test_bytes(2 * kPartBytes + kTailBytes, 11);
  std::span<const std::byte> first() const { return as_bytes(content).first(kPartBytes); }
  std::span<const std::byte> second() const { return as_bytes(content).subspan(kPartBytes, kPartBytes); }
  std::span<const std::byte> tail() const { return as_bytes(content).subspan(2 * kPartBytes); }
};

TEST_P(StorageConformance, CopiesParts) {
  if (!can_.copy_range) GTEST_SKIP() << "nothing is copied";
  const Pieces data;
  put("source", data.content);
  const auto reader = storage_->open_read("source");
  const auto writer = storage_->open_write("copy", kInParts);
  ASSERT_TRUE(reader && writer);
  ASSERT_TRUE((*writer)->copy_range(**reader, 2 * kPartBytes, kTailBytes, 2 * kPartBytes));
  ASSERT_TRUE((*writer)->copy_range(**reader, 5, kPartBytes, 0));
  ASSERT_TRUE((*writer)->write_at(kPartBytes, data.second()));
  ASSERT_TRUE((*writer)->commit(Durability::kVisible));
  EXPECT_TRUE(get("copy") == data.content.substr(5, kPartBytes) + data.content.substr(kPartBytes));
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

TEST_P(StorageConformance, ASuspendedWriteGoesOn) {
  auto writer = storage_->open_write("run/object", kInParts);
  ASSERT_TRUE(writer);
  if (!can_.resume) {
    EXPECT_EQ(code_of((*writer)->suspend()), ErrorCode::kUnsupported);
    EXPECT_EQ(code_of(storage_->resume_write({.key = "run/object"})), ErrorCode::kUnsupported);
    return;
  }
  EXPECT_EQ((*writer)->note(), "");
  EXPECT_THAT((*writer)->parts(), IsEmpty());
  const Pieces data;
  ASSERT_TRUE((*writer)->write_at(0, data.first()));
  if (can_.notes) {
    ASSERT_TRUE((*writer)->set_note("the first"));
    ASSERT_TRUE((*writer)->set_note("the second, longer"));
  } else {
    EXPECT_EQ(code_of((*writer)->set_note("x")), ErrorCode::kUnsupported);
  }
  ASSERT_TRUE((*writer)->suspend());
  EXPECT_EQ(code_of((*writer)->write_at(0, as_bytes("x"))), ErrorCode::kInvalidArgument) << "it ended";
  EXPECT_EQ(code_of((*writer)->commit()), ErrorCode::kInvalidArgument);
  writer->reset();
  EXPECT_THAT(storage_->list("")->objects, IsEmpty());
  const auto uploads = storage_->list_uploads("run/");
  ASSERT_TRUE(uploads);
  ASSERT_EQ(uploads->size(), 1u);
  EXPECT_EQ(uploads->front().key, "run/object");

  auto resumed = storage_->resume_write(uploads->front(), kInParts);
  ASSERT_TRUE(resumed) << resumed.error().to_string();
  if (can_.notes) {
    EXPECT_EQ((*resumed)->note(), "the second, longer");
    EXPECT_FALSE(storage_->resume_write(uploads->front())) << "it is being written";
    std::string back(kPartBytes, '\0');
    ASSERT_TRUE((*resumed)->read_back(0, std::as_writable_bytes(std::span(back))));
    EXPECT_TRUE(back == data.content.substr(0, kPartBytes));
    EXPECT_EQ(code_of((*resumed)->read_back(1, std::as_writable_bytes(std::span(back)))), ErrorCode::kOutOfRange);
  } else {
    ASSERT_EQ((*resumed)->parts().size(), 1u);
    EXPECT_EQ((*resumed)->parts()[0].offset, 0);
    EXPECT_EQ((*resumed)->parts()[0].size, int64_t{kPartBytes});
  }
  ASSERT_TRUE((*resumed)->write_at(2 * kPartBytes, data.tail()));
  ASSERT_TRUE((*resumed)->write_at(kPartBytes, data.second()));
  const auto done = (*resumed)->commit();
  ASSERT_TRUE(done) << done.error().to_string();
  EXPECT_EQ(done->size, static_cast<int64_t>(data.content.size()));
  EXPECT_TRUE(get("run/object") == data.content);
  EXPECT_THAT(*storage_->list_uploads(""), IsEmpty());
  EXPECT_EQ(code_of(storage_->resume_write(uploads->front())), ErrorCode::kNotFound);
}

TEST_P(StorageConformance, ASuspendedWriteCanBeAbortedOrDropped) {
  if (!can_.resume) GTEST_SKIP() << "no write can be gone on with";
  for (const bool aborts : {true, false}) {
    const auto writer = storage_->open_write("object", kInParts);
    ASSERT_TRUE(writer);
    ASSERT_TRUE((*writer)->write_at(0, Pieces().first()));
    if (can_.notes) {
      ASSERT_TRUE((*writer)->set_note("note"));
    }
    ASSERT_TRUE((*writer)->suspend());
    const auto uploads = storage_->list_uploads("");
    ASSERT_TRUE(uploads && uploads->size() == 1);
    if (aborts) {
      ASSERT_TRUE(storage_->abort_uploads(*uploads));
    } else {
      ASSERT_TRUE(storage_->resume_write(uploads->front(), kInParts));  // and dropped
    }
    EXPECT_THAT(*storage_->list_uploads(""), IsEmpty());
    EXPECT_THAT(storage_->list("")->objects, IsEmpty());
  }
}

TEST_P(StorageConformance, GoesOnWithWhatAKilledProcessLeft) {
  if (!can_.resume || !GetParam().shared_between_processes) GTEST_SKIP() << "nothing outlives a process";
  const Pieces data;
  ASSERT_TRUE(succeeds_in_child([&] {
    const auto writer = storage_->open_write("object", kInParts);
    return writer && (*writer)->write_at(0, data.first()) && (!can_.notes || (*writer)->set_note("by the first")) &&
           (::_exit(0), true);
  }));
  ASSERT_TRUE(succeeds_in_child([&] {
    const auto uploads = storage_->list_uploads("object");
    if (!uploads || uploads->size() != 1) return false;
    const auto writer = storage_->resume_write(uploads->front(), kInParts);
    return writer && (!can_.notes || (*writer)->note() == "by the first") &&
           (*writer)->write_at(kPartBytes, data.second()) && (!can_.notes || (*writer)->set_note("by the second")) &&
           (::_exit(0), true);
  }));
  const auto uploads = storage_->list_uploads("object");
  ASSERT_TRUE(uploads && uploads->size() == 1);
  const auto writer = storage_->resume_write(uploads->front(), kInParts);
  ASSERT_TRUE(writer) << writer.error().to_string();
  if (can_.notes) {
    EXPECT_EQ((*writer)->note(), "by the second");
    EXPECT_FALSE(succeeds_in_child([&] { return storage_->resume_write(uploads->front()).has_value(); }));
  }
  ASSERT_TRUE((*writer)->write_at(2 * kPartBytes, data.tail()));
  ASSERT_TRUE((*writer)->commit());
  EXPECT_TRUE(get("object") == data.content);
}

TEST_P(StorageConformance, KeepsPosixAttributes) {
  const auto time = [](int64_t ns) {
    return std::chrono::sys_time<std::chrono::nanoseconds>(std::chrono::nanoseconds(ns));
  };
  const PosixAttributes posix{.mode = 0100640,
                              .owner = ::getuid(),
                              .group = ::getgid(),
                              .accessed = time(1'600'000'000'123'456'789),
                              .modified = time(-1'500'000'001)};  // before 1970
  ASSERT_TRUE(write_object(*storage_, "with", "x", {.posix = posix}));
  put("without", "x");
  const auto info = storage_->stat("with");
  ASSERT_TRUE(info);
  ASSERT_TRUE(info->posix.has_value());
  EXPECT_EQ(info->posix->mode, posix.mode);
  EXPECT_EQ(info->posix->owner, posix.owner);
  EXPECT_EQ(info->posix->group, posix.group);
  EXPECT_EQ(info->posix->modified, posix.modified);
  EXPECT_EQ(info->posix->accessed, posix.accessed);
  EXPECT_TRUE(storage_->stat("without"));
}

}  // namespace
}  // namespace millrace
