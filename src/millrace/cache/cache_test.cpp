// SPDX-License-Identifier: Apache-2.0
// The cache of the node in one process: what it keeps, what it refuses, and what becomes of damage.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <fstream>
#include <random>
#include <thread>

#include "millrace/base/testing/helpers.h"
#include "millrace/cache/cached_storage.h"
#include "millrace/cache/detail/cache_files.h"
#include "millrace/cache/detail/file_system.h"
#include "millrace/cache/start_delay.h"
#include "millrace/cache/testing.h"
#include "millrace/storage/testing/conformance.h"
#include "millrace/storage/testing/fault.h"
#include "millrace/storage/testing/parts_storage.h"

namespace millrace::cache {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kLargeCap = 16 << 20;

CacheOptions options_for(const std::string& directory, int64_t cap_bytes = kLargeCap) {
  return {.directory = directory, .cap_bytes = cap_bytes, .block_bytes = kBlock};
}

std::string read_range(const RandomReader& reader, int64_t offset, int64_t size) {
  std::string bytes(static_cast<size_t>(size), '\0');
  const Status read = reader.read_at(offset, std::as_writable_bytes(std::span(bytes)));
  return read ? bytes : "error: " + read.error().to_string();
}

std::string read_range(const Result<std::unique_ptr<RandomReader>>& opened, int64_t offset, int64_t size) {
  return opened ? read_range(**opened, offset, size) : "error: " + opened.error().to_string();
}

// A remote storage that counts, and a cache in front of it.
struct Remote {
  TempDir dir;
  std::shared_ptr<PartsService> service = std::make_shared<PartsService>();
  std::shared_ptr<FaultPlan> plan = std::make_shared<FaultPlan>();
  std::shared_ptr<Storage> origin = make_fault_storage(make_parts_storage(service), plan);
  Metrics metrics;

  std::shared_ptr<NodeCache> open(int64_t cap_bytes = kLargeCap) {
    auto cache = NodeCache::open(options_for(dir.path(), cap_bytes));
    EXPECT_TRUE(cache) << cache.error().to_string();
    return *cache;
  }
  std::shared_ptr<Storage> storage(std::shared_ptr<NodeCache> cache) {
    return make_cached_storage(origin, std::move(cache), {.metrics = &metrics});
  }
  std::string put(const std::string& key, size_t size, uint64_t seed) {
    std::string bytes = test_bytes(size, seed);
    EXPECT_TRUE(write_object(*origin, key, bytes));
    return bytes;
  }
};

// A cache that never trusts what it saw at an earlier open, since the suite replaces objects all the time. Over a
// storage with the shape of S3: what lies on this node is not cached.
std::shared_ptr<Storage> make_cached_parts() {
  struct Fixture {
    TempDir dir;
    std::shared_ptr<Storage> storage;
  };
  const auto fixture = std::make_shared<Fixture>();
  auto options = options_for(fixture->dir.path());
  options.open_age = std::chrono::milliseconds(-1);
  fixture->storage =
      make_cached_storage(make_parts_storage(std::make_shared<PartsService>()), *NodeCache::open(options));
  return {fixture, fixture->storage.get()};
}

INSTANTIATE_TEST_SUITE_P(Cached, StorageConformance,
                         ::testing::Values(StorageCase{
                             .name = "cachedParts", .make = make_cached_parts, .rewrites_head = false}),
                         conformance_name);

TEST(Cache, RandomRangesAreThoseOfTheObjectAndNoByteIsDownloadedTwice) {
  SCOPED_TRACE("MILLRACE_TEST_SEED=" + std::to_string(test_seed()));
  Remote remote;
  const std::string bytes = remote.put("a", 40 * kBlock + 123, 1);
  const auto storage = remote.storage(remote.open());
  std::mt19937_64 random(test_seed());
  const auto reader = *storage->open_read("a");
  for (int i = 0; i < 300; ++i) {
    const auto offset = static_cast<int64_t>(random() % bytes.size());
    const auto size = static_cast<int64_t>(random() % (bytes.size() - offset) % (i % 2 ? 200 : 5 * kBlock));
    ASSERT_EQ(read_range(*reader, offset, size), bytes.substr(offset, size)) << offset << " " << size;
  }
  EXPECT_EQ(read_range(*reader, 0, std::ssize(bytes)), bytes);
  EXPECT_EQ(remote.service->read_bytes, std::ssize(bytes));
  EXPECT_EQ(remote.metrics.count(Metric::kCacheMissBytes), std::ssize(bytes));
  EXPECT_EQ(code_of(reader->read_at(std::ssize(bytes), std::span(std::make_unique<std::byte[]>(1).get(), 1))),
            ErrorCode::kOutOfRange);
}

TEST(Cache, APartOfAnObjectIsDownloadedAsItsBlocks) {
  Remote remote;
  const std::string bytes = remote.put("a", 40 * kBlock, 2);
  const auto storage = remote.storage(remote.open());
  EXPECT_EQ(read_range(storage->open_read("a"), 5 * kBlock + 10, 100), bytes.substr(5 * kBlock + 10, 100));
  EXPECT_EQ(remote.service->read_bytes, kBlock);
}

TEST(Cache, SurvivesARestartWithoutARequest) {
  Remote remote;
  const std::string bytes = remote.put("a", 9 * kBlock + 1, 3);
  ASSERT_EQ(read_range(remote.storage(remote.open())->open_read("a"), 0, std::ssize(bytes)), bytes);
  remote.plan->add({.count = FaultRule::kForever, .error = Error(ErrorCode::kUnavailable, "the server is away")});
  const auto storage = remote.storage(remote.open());
  EXPECT_EQ(read_range(storage->open_read("a"), 0, std::ssize(bytes)), bytes);
}

TEST(Cache, AnotherVersionIsAnotherObject) {
  Remote remote;
  const std::string before = remote.put("a", 3 * kBlock, 4);
  auto options = options_for(remote.dir.path());
  options.open_age = std::chrono::milliseconds(0);
  const auto storage = remote.storage(*NodeCache::open(options));
  const auto old_reader = *storage->open_read("a");
  EXPECT_EQ(read_range(*old_reader, 0, 2 * kBlock), before.substr(0, 2 * kBlock));
  const std::string after = remote.put("a", 3 * kBlock, 5);
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  EXPECT_EQ(read_range(storage->open_read("a"), 0, 3 * kBlock), after);
  // A reader stays with its version, as far as the cache has it.
  EXPECT_EQ(read_range(*old_reader, 0, 2 * kBlock), before.substr(0, 2 * kBlock));
}

TEST(Cache, AVersionThatIsGoneIsAnErrorAndIsLookedUpAnew) {
  Remote remote;
  remote.put("a", 3 * kBlock, 6);
  const auto storage = remote.storage(remote.open());
  ASSERT_TRUE(storage->open_read("a"));
  const std::string after = remote.put("a", 3 * kBlock, 7);
  const auto stale = *storage->open_read("a");  // within a minute the node does not ask again
  EXPECT_THAT(read_range(*stale, 0, 10), HasSubstr("error"));
  EXPECT_EQ(read_range(storage->open_read("a"), 0, 3 * kBlock), after);
}

TEST(Cache, ManyThreadsDownloadEachBlockOnce) {
  Remote remote;
  const std::string bytes = remote.put("a", 50 * kBlock + 7, 8);
  const auto storage = remote.storage(remote.open());
  remote.plan->add({.call = FaultCall::kRead, .count = FaultRule::kForever, .delay = std::chrono::milliseconds(3)});
  std::atomic<int> right = 0;
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 8; ++i) {
      threads.emplace_back([&] { right += read_range(storage->open_read("a"), 0, std::ssize(bytes)) == bytes; });
    }
  }
  EXPECT_EQ(right, 8);
  EXPECT_EQ(remote.service->read_bytes, std::ssize(bytes));
}

TEST(Cache, AFailedDownloadIsAnErrorOfThatReadAndIsTriedAgain) {
  Remote remote;
  const std::string bytes = remote.put("a", 3 * kBlock, 9);
  const auto storage = remote.storage(remote.open());
  const auto reader = *storage->open_read("a");
  remote.plan->add({.call = FaultCall::kRead, .error = Error(ErrorCode::kUnavailable, "away")});
  EXPECT_THAT(read_range(*reader, 0, 10), HasSubstr("away"));
  EXPECT_EQ(read_range(*reader, 0, std::ssize(bytes)), bytes);
}

// Whether reads of this file can tell what is in memory (tmpfs cannot).
bool knows_nowait(int fd, off_t at) {
  char byte = 0;
  const iovec target{&byte, 1};
  return ::preadv2(fd, &target, 1, at, RWF_NOWAIT) == 1;
}

// By mincore, because a read with RWF_NOWAIT would itself bring the page back.
bool is_in_memory(int fd, off_t at) {
  const auto page = static_cast<off_t>(::sysconf(_SC_PAGESIZE));
  void* const mapped = ::mmap(nullptr, 1, PROT_READ, MAP_SHARED, fd, at / page * page);
  EXPECT_NE(mapped, MAP_FAILED);
  unsigned char is_resident = 0;
  EXPECT_EQ(::mincore(mapped, 1, &is_resident), 0);
  ::munmap(mapped, 1);
  return (is_resident & 1) != 0;
}

// Drops the page at `at` from memory, as far as the file system has it on a disk.
void forget_page(int fd, off_t at) {
  for (int i = 0; i < 100; ++i) {
    ::fdatasync(fd);
    ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    if (!is_in_memory(fd, at)) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  FAIL() << "the page stays in memory";
}

// Random bits on the disk, then in the table. The cache has read the blocks before, and they are in memory.
TEST(Cache, FlippedBitsAreFoundAndMended) {
  SCOPED_TRACE("MILLRACE_TEST_SEED=" + std::to_string(test_seed()));
  Remote remote;
  const std::string bytes = remote.put("a", 2 * kBlock + 100, 10);
  std::mt19937_64 random(test_seed());
  const auto cache = remote.open();
  const auto reader = *remote.storage(cache)->open_read("a");
  ASSERT_EQ(read_range(*reader, 0, std::ssize(bytes)), bytes);
  const std::string_view kData = "/cache.data";
  for (const std::string_view name : {kData, std::string_view("/cache.table")}) {
    const int fd = ::open((remote.dir.path() + std::string(name)).c_str(), O_RDWR);
    struct stat found = {};
    ASSERT_EQ(::fstat(fd, &found), 0);
    for (int i = 0; i < rounds(name == kData ? 600 : 300); ++i) {
      // Behind the header, which is checked when a process opens the cache.
      const auto at = static_cast<off_t>(4096 + random() % (found.st_size - 4096));
      char byte = 0;
      ASSERT_EQ(::pread(fd, &byte, 1, at), 1);
      byte = static_cast<char>(byte ^ (1 << random() % 8));
      ASSERT_EQ(::pwrite(fd, &byte, 1, at), 1);
      if (name == kData) forget_page(fd, at);
      ASSERT_EQ(read_range(*reader, 0, std::ssize(bytes)), bytes) << name << " " << at;
    }
    ::close(fd);
  }
  EXPECT_GT(remote.metrics.count(Metric::kCacheDamaged), 0);
}

// Bytes of the file that are in memory.
int64_t resident_bytes(int fd, int64_t size) {
  const auto page = static_cast<int64_t>(::sysconf(_SC_PAGESIZE));
  void* const mapped = ::mmap(nullptr, static_cast<size_t>(size), PROT_READ, MAP_SHARED, fd, 0);
  EXPECT_NE(mapped, MAP_FAILED);
  std::vector<unsigned char> pages(static_cast<size_t>((size + page - 1) / page));
  EXPECT_EQ(::mincore(mapped, static_cast<size_t>(size), pages.data()), 0);
  ::munmap(mapped, static_cast<size_t>(size));
  return page * std::ranges::count_if(pages, [](unsigned char is) { return (is & 1) != 0; });
}

TEST(Cache, ReadsInOrderFindTheNextBlocksOnTheirWay) {
  Remote remote;
  constexpr int64_t kBlocks = 60;
  const std::string bytes = remote.put("a", kBlocks * kBlock, 31);
  const auto cache = remote.open();
  const auto reader = *remote.storage(cache)->open_read("a");
  ASSERT_EQ(read_range(*reader, 0, std::ssize(bytes)), bytes);
  const int fd = ::open((remote.dir.path() + "/cache.data").c_str(), O_RDONLY);
  struct stat data = {};
  ASSERT_EQ(::fstat(fd, &data), 0);
  const auto read_block = [&](int64_t block) {
    EXPECT_EQ(read_range(*reader, block * kBlock, kBlock), bytes.substr(static_cast<size_t>(block * kBlock), kBlock));
  };
  const auto forget = [&] {
    for (int i = 0; i < 100 && resident_bytes(fd, data.st_size) > 0; ++i) {
      ::fdatasync(fd);
      ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    }
    ASSERT_EQ(resident_bytes(fd, data.st_size), 0);
  };
  forget();
  for (int64_t block = 0; block < 10; ++block) read_block(block);
  for (int i = 0; i < 1000 && resident_bytes(fd, data.st_size) < 15 * kBlock; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));  // the disk is asked, not waited for
  }
  EXPECT_GE(resident_bytes(fd, data.st_size), 15 * kBlock);
  EXPECT_LE(resident_bytes(fd, data.st_size), 20 * kBlock) << "as many as were read";
  const int64_t checked = remote.metrics.count(Metric::kCacheCheckedBytes);
  for (int64_t block = 10; block < 15; ++block) read_block(block);
  EXPECT_EQ(remote.metrics.count(Metric::kCacheCheckedBytes) - checked, 5 * kBlock) << "none is taken for checked";
  forget();
  for (int64_t block = 0; block < kBlocks; block += 6) read_block(block);
  EXPECT_LE(resident_bytes(fd, data.st_size), 10 * kBlock) << "not in order";
  ::close(fd);
}

TEST(Cache, ABlockInMemoryIsCheckedOnceByEachProcess) {
  Remote remote;
  const std::string bytes = remote.put("a", 9 * kBlock + 5, 17);
  const auto first = remote.open();
  const auto size = std::ssize(bytes);
  ASSERT_EQ(read_range(remote.storage(first)->open_read("a"), 0, size), bytes);
  const int fd = ::open((remote.dir.path() + "/cache.data").c_str(), O_RDONLY);
  const bool can_tell = knows_nowait(fd, 0) || knows_nowait(fd, kBlock);
  ::close(fd);
  const auto hits = [&] { return remote.metrics.count(Metric::kCacheHitBytes); };
  const auto checked = [&] { return remote.metrics.count(Metric::kCacheCheckedBytes); };
  ASSERT_EQ(read_range(remote.storage(first)->open_read("a"), 0, size), bytes);
  EXPECT_EQ(hits(), size);
  EXPECT_EQ(checked(), can_tell ? 0 : size) << "it has stored the block itself";
  const int64_t before = checked();
  const auto second = remote.storage(remote.open());
  for (int i = 0; i < 3; ++i) ASSERT_EQ(read_range(second->open_read("a"), 0, size), bytes);
  EXPECT_EQ(hits(), 4 * size);
  EXPECT_EQ(checked() - before, can_tell ? size : 3 * size);
}

TEST(Cache, ABlockThatAnotherProcessReplacedIsNotTakenForTheOldOne) {
  SCOPED_TRACE("MILLRACE_TEST_SEED=" + std::to_string(test_seed()));
  Remote remote;
  std::mt19937_64 random(test_seed());
  std::vector<std::string> objects;
  for (uint64_t i = 0; i < 4; ++i) objects.push_back(remote.put(std::to_string(i), 60 * kBlock, 20 + i));
  constexpr int64_t kSmallCap = 3 << 20;  // fewer blocks than the objects have
  const auto a = remote.storage(remote.open(kSmallCap)), b = remote.storage(remote.open(kSmallCap));
  for (int i = 0; i < rounds(400); ++i) {
    const size_t object = random() % objects.size();
    const auto offset = static_cast<int64_t>(random() % (59 * kBlock));
    const int64_t size = i % 2 ? kBlock : 100;
    const auto& storage = random() % 2 ? a : b;
    ASSERT_EQ(read_range(storage->open_read(std::to_string(object)), offset, size),
              objects[object].substr(static_cast<size_t>(offset), static_cast<size_t>(size)));
  }
}

TEST(Cache, ADamagedHeaderBeginsTheCacheAnew) {
  Remote remote;
  const std::string bytes = remote.put("a", 2 * kBlock, 11);
  ASSERT_EQ(read_range(remote.storage(remote.open())->open_read("a"), 0, std::ssize(bytes)), bytes);
  std::ofstream(remote.dir.path() + "/cache.table") << "not a table";
  EXPECT_EQ(read_range(remote.storage(remote.open())->open_read("a"), 0, std::ssize(bytes)), bytes);
}

TEST(Cache, ATruncatedDataFileIsAMiss) {
  Remote remote;
  const std::string bytes = remote.put("a", 5 * kBlock, 12);
  const auto reader = *remote.storage(remote.open())->open_read("a");
  ASSERT_EQ(read_range(*reader, 0, std::ssize(bytes)), bytes);
  ASSERT_EQ(::truncate((remote.dir.path() + "/cache.data").c_str(), 0), 0);
  EXPECT_EQ(read_range(*reader, 0, std::ssize(bytes)), bytes);
}

TEST(Cache, StaysUnderItsCapAndKeepsAPartOfWhatIsTooMuch) {
  Remote remote;
  constexpr int64_t kCap = 4 << 20;
  const auto cache = remote.open(kCap);
  const auto storage = remote.storage(cache);
  std::vector<std::string> objects;
  for (int i = 0; i < 8; ++i) objects.push_back(remote.put(std::to_string(i), 1 << 20, 20 + i));
  for (int epoch = 0; epoch < 4; ++epoch) {
    remote.service->read_bytes = 0;
    for (size_t i = 0; i < objects.size(); ++i) {
      ASSERT_EQ(read_range(storage->open_read(std::to_string(i)), 0, 1 << 20), objects[i]);
      ASSERT_LE(disk_bytes(remote.dir.path()), kCap);
    }
  }
  // The least recently used would always go right before it is read again.
  EXPECT_LT(remote.service->read_bytes, 7 << 20) << "an epoch later, none of 8 MiB were in a cache of 4 MiB";
  EXPECT_LE(cache->limit_bytes(), kCap);
}

TEST(Cache, BlocksOfAnEarlierJobGoFirst) {
  Remote remote;
  constexpr int64_t kCap = 4 << 20;
  const std::string old_bytes = remote.put("old", 4 << 20, 30), new_bytes = remote.put("new", 2 << 20, 31);
  ASSERT_EQ(read_range(remote.storage(remote.open(kCap))->open_read("old"), 0, 4 << 20), old_bytes);
  const auto storage = remote.storage(remote.open(kCap));
  ASSERT_EQ(read_range(storage->open_read("new"), 0, 2 << 20), new_bytes);
  remote.service->read_bytes = 0;
  ASSERT_EQ(read_range(storage->open_read("new"), 0, 2 << 20), new_bytes);
  EXPECT_EQ(remote.service->read_bytes, 0);
}

TEST(Cache, AnotherCapKeepsWhatFits) {
  Remote remote;
  const std::string bytes = remote.put("a", 2 << 20, 32);
  ASSERT_EQ(read_range(remote.storage(remote.open(16 << 20))->open_read("a"), 0, 2 << 20), bytes);
  for (const int64_t cap : {32 << 20, 8 << 20, 100 << 20}) {
    remote.service->read_bytes = 0;
    const auto cache = remote.open(cap);
    EXPECT_EQ(read_range(remote.storage(cache)->open_read("a"), 0, 2 << 20), bytes);
    EXPECT_EQ(remote.service->read_bytes, 0) << cap;
    EXPECT_GT(cache->limit_bytes(), cap * 9 / 10);
    EXPECT_LE(cache->limit_bytes(), cap);
  }
  const auto cache = remote.open(3 << 20);
  EXPECT_LE(disk_bytes(remote.dir.path()), 3 << 20);
  EXPECT_EQ(read_range(remote.storage(cache)->open_read("a"), 0, 2 << 20), bytes);
}

TEST(Cache, TheSmallestOfTheCapsHolds) {
  Remote remote;
  const std::string bytes = remote.put("a", 6 << 20, 33);
  const auto large = remote.open(16 << 20);
  ASSERT_EQ(read_range(remote.storage(large)->open_read("a"), 0, 6 << 20), bytes);
  EXPECT_GT(disk_bytes(remote.dir.path()), 6 << 20);
  const auto small = remote.open(4 << 20);
  EXPECT_LE(disk_bytes(remote.dir.path()), 4 << 20);
  EXPECT_EQ(read_range(remote.storage(large)->open_read("a"), 0, 6 << 20), bytes);
  EXPECT_LE(disk_bytes(remote.dir.path()), 4 << 20);
  EXPECT_EQ(large->limit_bytes(), small->limit_bytes());
}

// A limit of the size of files stands in for a full disk.
TEST(Cache, AFullDiskCostsSpeedOnly) {
  EXPECT_TRUE(succeeds_in_child([] {
    Remote remote;
    const std::string bytes = remote.put("a", 6 << 20, 34);
    const auto storage = remote.storage(remote.open(16 << 20));
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{3 << 20, 3 << 20};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    bool right = true;
    for (int i = 0; i < 2; ++i) right = right && read_range(storage->open_read("a"), 0, 6 << 20) == bytes;
    return right && remote.metrics.count(Metric::kCacheHitBytes) > 0;
  }));
}

TEST(Cache, RefusesWhatItCannotUse) {
  TempDir dir;
  EXPECT_EQ(code_of(NodeCache::open(options_for(dir.path(), 100'000))), ErrorCode::kInvalidArgument);
  EXPECT_EQ(network_file_system(0x0BD00BD0), "Lustre");
  EXPECT_EQ(network_file_system(0x6969), "NFS");
  EXPECT_EQ(network_file_system(0xEF53), "");  // ext4
  EXPECT_EQ(code_of(NodeCache::open(options_for("/proc/cache"))), ErrorCode::kNotFound);
}

TEST(Cache, ACopyIsTheServersAndPassesTheCacheBy) {
  constexpr int64_t kPart = 1000, kSize = 3 * kPart;
  Remote remote;
  remote.service->part_bytes = kPart;
  const std::string bytes = remote.put("a", kSize, 36);
  const auto cache = remote.open();
  const int64_t sent = remote.service->written_bytes;
  const auto one = remote.storage(cache), other = remote.storage(cache);
  for (const auto& from : {one, other, remote.origin}) {
    EXPECT_TRUE(one->copies_from(*from));
    EXPECT_TRUE(from->copies_from(*one));
    remote.service->copied_bytes = 0;
    const auto reader = *from->open_read("a");
    const auto writer = *one->open_write("copy", {.size_hint_bytes = kSize});
    for (int64_t at = 0; at < kSize; at += kPart) ASSERT_TRUE(writer->copy_range(*reader, at, kPart, at));
    ASSERT_TRUE(writer->commit());
    EXPECT_EQ(remote.service->copied_bytes, kSize);
    EXPECT_EQ(remote.service->read_bytes, 0);
    EXPECT_EQ(remote.service->written_bytes, sent);
  }
  EXPECT_EQ(*read_object(*remote.origin, "copy"), bytes);
}

// Whatever a test holds up, `stop` ends the wait for it.
template <class Wait>
void expect_stopped(Wait&& wait) {
  std::stop_source stop;
  std::jthread stops([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    stop.request_stop();
  });
  const auto begin = Clock::now();
  EXPECT_EQ(code_of(wait(stop.get_token())), ErrorCode::kCancelled);
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(20));
}

TEST(Cache, OpeningIsStoppedWhileAnotherProcessChangesTheCache) {
  const TempDir dir;
  const int lock = ::open((dir.path() + "/cache.lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  ASSERT_EQ(::flock(lock, LOCK_EX), 0);
  expect_stopped([&](const std::stop_token& stop) { return NodeCache::open(options_for(dir.path()), stop); });
  ::close(lock);
  EXPECT_TRUE(NodeCache::open(options_for(dir.path())));
}

TEST(Cache, ALowerCapIsStoppedWhileASlotIsRead) {
  const TempDir dir;
  const auto files = *CacheFiles::open(dir.path(), kLargeCap, kBlock, {});
  const int64_t last = CacheFiles::kSlotLocks + files->geometry().slots() - 1;
  ASSERT_TRUE(*files->locks().try_lock(last, last + 1));
  expect_stopped([&](const std::stop_token& stop) { return files->lower_to(kLargeCap / 2, stop); });
  files->locks().unlock(last, last + 1);
  EXPECT_TRUE(files->lower_to(kLargeCap / 2, {}));
}

TEST(Cache, NodesTakeTurnsEvenly) {
  EXPECT_EQ(start_delay(0).count(), 0);
  EXPECT_GT(start_delay(1).count(), 0);
  EXPECT_LE(start_delay(100) - start_delay(50) * 2, std::chrono::microseconds(1));
  EXPECT_LT(start_delay(64), std::chrono::seconds(1));
  EXPECT_LT(start_delay(4095), std::chrono::seconds(40));
}

TEST(Cache, ReadsAreStoppedWhileAnotherDownloads) {
  Remote remote;
  remote.put("a", kBlock, 35);
  const auto cache = remote.open();
  const auto storage = remote.storage(cache);
  const auto reader = *storage->open_read("a");
  remote.plan->add({.call = FaultCall::kRead, .delay = std::chrono::milliseconds(300)});
  std::jthread downloads([&] { EXPECT_THAT(read_range(*reader, 0, 1), ::testing::SizeIs(1)); });
  while (remote.plan->hits() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  std::stop_source stop;
  stop.request_stop();
  const auto stoppable = storage->with_stop(stop.get_token());
  EXPECT_THAT(read_range(stoppable->open_read("a"), 0, 1), HasSubstr("stopped"));
}

}  // namespace
}  // namespace millrace::cache
