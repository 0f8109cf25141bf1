// SPDX-License-Identifier: Apache-2.0
#include "millrace/storage/local/detail/stream.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/statfs.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <mutex>
#include <new>
#include <set>

#include "millrace/base/testing/helpers.h"

namespace millrace::local {
namespace {

// Memory as the buffer pool gives it.
class Pages {
 public:
  explicit Pages(const std::string& content)
      : data_(static_cast<char*>(::operator new(content.size(), kAlign))), size_(content.size()) {
    content.copy(data_, size_);
  }
  ~Pages() { ::operator delete(data_, kAlign); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  std::span<std::byte> bytes() const { return std::as_writable_bytes(std::span(data_, size_)); }
  std::string_view text() const { return {data_, size_}; }

 private:
  static constexpr std::align_val_t kAlign{4096};
  char* const data_;
  const size_t size_;
};

// Counts what goes past the page cache, and may refuse it as some file systems do: not before the transfer.
class WatchedSyscalls final : public Syscalls {
 public:
  std::atomic<int64_t> direct_bytes{0};
  std::atomic<int> refusals{0};
  int refuse = 0;

  int open(const char* path, int flags, mode_t mode) override {
    const int fd = Syscalls::open(path, flags, mode);
    const std::lock_guard lock(mutex_);
    (flags & O_DIRECT) != 0 ? static_cast<void>(direct_.insert(fd)) : static_cast<void>(direct_.erase(fd));
    return fd;
  }
  ssize_t pread(int fd, void* out, size_t size, off_t offset) override {
    return is_refused(fd) ? -1 : count(fd, Syscalls::pread(fd, out, size, offset));
  }
  ssize_t pwrite(int fd, const void* data, size_t size, off_t offset) override {
    return is_refused(fd) ? -1 : count(fd, Syscalls::pwrite(fd, data, size, offset));
  }

 private:
  bool is_direct(int fd) {
    const std::lock_guard lock(mutex_);
    return direct_.contains(fd);
  }
  bool is_refused(int fd) {
    if (refuse == 0 || !is_direct(fd)) return false;
    ++refusals;
    errno = refuse;
    return true;
  }
  ssize_t count(int fd, ssize_t moved) {
    if (moved > 0 && is_direct(fd)) direct_bytes += moved;
    return moved;
  }
  std::mutex mutex_;
  std::set<int> direct_;
};

class StreamTest : public ::testing::Test {
 protected:
  std::shared_ptr<Storage> open(LocalDirect direct) {
    return *open_local_storage(dir_.path(), {.direct = direct, .syscalls = &sys_});
  }
  static void write(Storage& storage, std::string_view key, const Pages& content, const WriteOptions& options) {
    const auto writer = storage.open_write(key, options);
    ASSERT_TRUE(writer);
    for (int64_t at = 0; at < std::ssize(content.bytes()); at += kMiB) {
      const auto rest = content.bytes().subspan(static_cast<size_t>(at));
      const Status put = (*writer)->write_at(at, rest.first(std::min(rest.size(), size_t{kMiB})));
      ASSERT_TRUE(put) << put.error().to_string();
    }
    ASSERT_TRUE((*writer)->commit());
  }
  static std::string read_once(Storage& storage, std::string_view key) {
    const auto reader = storage.open_read(key, {.once = true});
    if (!reader) return reader.error().to_string();
    const Pages content(std::string(static_cast<size_t>((*reader)->size()), '\0'));
    for (int64_t at = 0; at < (*reader)->size(); at += kMiB) {
      const auto rest = content.bytes().subspan(static_cast<size_t>(at));
      if (const Status got = (*reader)->read_at(at, rest.first(std::min(rest.size(), size_t{kMiB}))); !got) {
        return got.error().to_string();
      }
    }
    return std::string(content.text());
  }
  int64_t allocated(const std::string& key) const {
    struct stat info{};
    EXPECT_EQ(::stat((dir_.path() + "/" + key).c_str(), &info), 0);
    return int64_t{info.st_blocks} * kStatBlockBytes;
  }

  // Whether this test's files lie on a file system whose rule is to go past the page cache.
  bool is_on_a_disk() {
    struct statfs info{};
    struct stat folder{};
    EXPECT_EQ(::statfs(dir_.path().c_str(), &info) + ::stat(dir_.path().c_str(), &folder), 0);
    return StreamPolicy(LocalDirect::kByFileSystem).is_direct(folder.st_dev, static_cast<int64_t>(info.f_type));
  }

  TempDir dir_;
  WatchedSyscalls sys_;
  const Pages content_{test_bytes(20 * kMiB + 12'345, 1)};  // with a tail that fits no block
};

TEST_F(StreamTest, EveryWayMovesTheSameBytes) {
  for (const LocalDirect mode : {LocalDirect::kByFileSystem, LocalDirect::kNever, LocalDirect::kAlways}) {
    const auto storage = open(mode);
    sys_.direct_bytes = 0;
    write(*storage, "object", content_, {.size_hint_bytes = std::ssize(content_.bytes())});
    EXPECT_TRUE(read_once(*storage, "object") == content_.text());
    const bool expected = mode == LocalDirect::kAlways || (mode == LocalDirect::kByFileSystem && is_on_a_disk());
    EXPECT_EQ(sys_.direct_bytes > 0, expected) << static_cast<int>(mode);
  }
}

TEST_F(StreamTest, ARefusalIsFoundWhenWritingAndNotAskedForAgain) {
  for (const int error : {EINVAL, EOPNOTSUPP}) {
    const auto storage = open(LocalDirect::kByFileSystem);
    sys_.refuse = error;
    sys_.refusals = 0;
    write(*storage, "object", content_, {.size_hint_bytes = std::ssize(content_.bytes())});
    EXPECT_EQ(sys_.refusals, is_on_a_disk() ? 1 : 0);
    EXPECT_TRUE(read_once(*storage, "object") == content_.text());
    write(*storage, "object", content_, {.size_hint_bytes = std::ssize(content_.bytes())});
    EXPECT_LE(sys_.refusals, 1) << "it is not asked again";
  }
}

TEST_F(StreamTest, AnErrorOfOneWayIsTriedInTheOther) {
  const auto storage = open(LocalDirect::kAlways);
  const auto writer = storage->open_write("object", {.size_hint_bytes = 32 * kMiB});
  ASSERT_TRUE(writer);
  sys_.refuse = EIO;  // the ordinary way is tried then, and says what it meets
  EXPECT_TRUE((*writer)->write_at(0, content_.bytes().first(kMiB)));
  ASSERT_TRUE((*writer)->commit());
  EXPECT_EQ(read_object(*storage, "object")->size(), static_cast<size_t>(kMiB));
}

TEST_F(StreamTest, SmallAndOddPiecesGoTheOrdinaryWay) {
  const auto storage = open(LocalDirect::kByFileSystem);
  const auto writer = storage->open_write("object", {.size_hint_bytes = 32 * kMiB});
  ASSERT_TRUE((*writer)->write_at(1, content_.bytes().first(2 * kMiB)));                // offset
  ASSERT_TRUE((*writer)->write_at(4096, content_.bytes().subspan(1).first(2 * kMiB)));  // memory
  ASSERT_TRUE((*writer)->write_at(8 * kMiB, content_.bytes().first(kMiB / 2)));         // size
  EXPECT_EQ(sys_.direct_bytes, 0);
}

TEST_F(StreamTest, TheFileSystemDecides) {
  constexpr int64_t kExt4 = 0xEF53, kTmpfs = 0x01021994, kNfs = 0x6969;
  StreamPolicy policy(LocalDirect::kByFileSystem);
  EXPECT_TRUE(policy.is_direct(1, kExt4));
  EXPECT_FALSE(policy.is_direct(2, kTmpfs));
  EXPECT_FALSE(policy.is_direct(3, kNfs));
  policy.note_refusal(1);
  EXPECT_FALSE(policy.is_direct(1, kExt4));
  EXPECT_TRUE(policy.is_direct(4, kExt4)) << "another disk";
  EXPECT_TRUE(StreamPolicy(LocalDirect::kAlways).is_direct(2, kTmpfs));
  EXPECT_FALSE(StreamPolicy(LocalDirect::kNever).is_direct(1, kExt4));
}

TEST_F(StreamTest, ZerosBecomeHolesWhereAskedFor) {
  std::string bytes(8 * kMiB, '\0');
  bytes.replace(3 * kMiB, 5, "hello");
  const Pages sparse(bytes);
  for (const LocalDirect mode : {LocalDirect::kNever, LocalDirect::kAlways}) {
    const auto storage = open(mode);
    write(*storage, "holes", sparse, {.size_hint_bytes = 8 * kMiB, .sparse = true});
    write(*storage, "full", sparse, {.size_hint_bytes = 8 * kMiB});
    EXPECT_TRUE(read_once(*storage, "holes") == bytes);
    EXPECT_LT(allocated("holes"), kMiB);
    EXPECT_EQ(storage->stat("holes")->size, 8 * kMiB);
    EXPECT_GE(allocated("full"), 8 * kMiB);
    EXPECT_TRUE((*storage->open_read("holes"))->local_file()->has_holes());
    EXPECT_FALSE((*storage->open_read("full"))->local_file()->has_holes());
  }
}

TEST_F(StreamTest, ZerosOverSomethingAreZeros) {
  const auto storage = open(LocalDirect::kByFileSystem);
  const Pages zeros(std::string(kMiB, '\0'));
  const auto writer = storage->open_write("object", {.sparse = true});
  ASSERT_TRUE((*writer)->write_at(0, content_.bytes().first(kMiB)));
  ASSERT_TRUE((*writer)->write_at(0, zeros.bytes()));
  ASSERT_TRUE((*writer)->commit());
  EXPECT_TRUE(*read_object(*storage, "object") == zeros.text());
}

TEST_F(StreamTest, AFileRangeLeavesThePageCacheAsItWas) {
  const auto storage = open(LocalDirect::kByFileSystem);
  ASSERT_TRUE(write_object(*storage, "object", content_.text()));
  const int64_t size = std::ssize(content_.bytes());
  const Fd fd = *open_fd(sys_, dir_.path() + "/object", O_RDONLY);
  ASSERT_EQ(sys_.fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED), 0);
  if (sys_.cached_bytes(fd.get(), 0, size) > 0) GTEST_SKIP() << "this file system keeps its files in memory";
  // A disk may have read what is looked at before the look is over, and the next ones with it.
  int64_t sampled = size;
  for (int i = 0; i < 20 && sampled > 0; ++i) {
    ASSERT_EQ(sys_.fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED), 0);
    sampled = Syscalls::sampled_cached_bytes(fd.get(), 0, size);
  }
  EXPECT_EQ(sampled, 0);
  ASSERT_EQ(sys_.fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED), 0);
  const auto reader = *storage->open_read("object", {.once = true});
  EXPECT_FALSE(reader->local_file()->is_cached());
  const auto read_all_of_it = [&] {
    std::string piece(100'000, '.');
    for (int64_t at = 0; at < size; at += std::ssize(piece)) {
      piece.resize(static_cast<size_t>(std::min(std::ssize(piece), size - at)));
      ASSERT_TRUE(reader->read_at(at, std::as_writable_bytes(std::span(piece))));
    }
  };
  auto range = reader->local_file()->file_range(0, size);
  read_all_of_it();
  if (!reader->local_file()->is_cached()) GTEST_SKIP() << "this kernel does not tell what is cached";
  EXPECT_GT(Syscalls::sampled_cached_bytes(fd.get(), 0, size), size / 2);
  range.reset();
  EXPECT_EQ(sys_.cached_bytes(fd.get(), 0, size), 0);

  read_all_of_it();
  const int64_t before = sys_.cached_bytes(fd.get(), 0, size);
  range = reader->local_file()->file_range(0, size);
  EXPECT_TRUE(range->check_unchanged());
  range.reset();
  EXPECT_EQ(sys_.cached_bytes(fd.get(), 0, size), before);
  // With LocalDirect::kAlways, the storage does not ask whether a range is cached.
  EXPECT_FALSE((*open(LocalDirect::kAlways)->open_read("object"))->local_file()->is_cached());

  range = reader->local_file()->file_range(4096, 10);
  EXPECT_EQ(range->offset(), 4096);
  EXPECT_EQ(range->size(), 10);
  std::filesystem::resize_file(dir_.path() + "/object", 5000);
  EXPECT_EQ(range->check_unchanged().error().code(), ErrorCode::kCorruption);
}

}  // namespace
}  // namespace millrace::local
