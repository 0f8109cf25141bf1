// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <thread>

#include "millrace/base/hash/crc32c.h"
#include "millrace/base/hash/crc64nvme.h"
#include "millrace/base/hash/hash.h"
#include "millrace/base/io/file_text.h"
#include "millrace/base/io/io.h"
#include "millrace/base/io/path.h"
#include "millrace/base/io/stream_copy.h"
#include "millrace/base/log.h"
#include "millrace/base/memory/buffer_pool.h"
#include "millrace/base/memory/huge_pages.h"
#include "millrace/base/metrics.h"
#include "millrace/base/progress.h"
#include "millrace/base/status.h"
#include "millrace/base/testing.h"
#include "millrace/base/text/ascii.h"
#include "millrace/base/text/environment.h"
#include "millrace/base/text/strings.h"
#include "millrace/base/text/units.h"
#include "millrace/base/text/utf8.h"
#include "millrace/base/thread/executor.h"
#include "millrace/base/thread/sync.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

Result<int> half(int n) {
  if (n % 2 != 0) return fail(ErrorCode::kInvalidArgument, "{} is odd", n);
  return n / 2;
}
Result<int> quarter(int n) {
  ASSIGN_OR_RETURN(const int h, half(n));
  ASSIGN_OR_RETURN(const int q, half(h));
  return q;
}

TEST(Status, MacrosPassValuesAndErrorsOn) {
  EXPECT_EQ(*quarter(8), 2);
  EXPECT_EQ(quarter(6).error().message(), "3 is odd");
  auto wrapped = with_context(quarter(6), "quarter of 6");
  EXPECT_EQ(wrapped.error().to_string(), "quarter of 6: 3 is odd");
  EXPECT_EQ(wrapped.error().code(), ErrorCode::kInvalidArgument);
}

TEST(Status, ErrnoKeepsItsNumberAndItsMeaning) {
  EXPECT_EQ(errno_error(ENOENT, "open x").code(), ErrorCode::kNotFound);
  EXPECT_EQ(errno_error(ENOSPC, "write x").code(), ErrorCode::kResourceExhausted);
  EXPECT_EQ(errno_error(ENOSPC, "write x").sys_errno(), ENOSPC);
  EXPECT_THAT(errno_error(EACCES, "open x").to_string(), HasSubstr("open x: Permission denied"));
}

TEST(Io, ATextThatCannotBeReadIsNoException) {
  EXPECT_EQ(read_text("/nowhere"), std::nullopt);
  EXPECT_EQ(read_text("/proc/self"), std::nullopt);  // opens, and then fails to be read
  EXPECT_THAT(read_text("/proc/self/stat").value_or(""), HasSubstr(fmt::format("{} (", ::getpid())));
}

TEST(Io, MemoryReaderRefusesToReadPastTheEnd) {
  const std::string text = "0123456789";
  MemoryReader reader(as_bytes(text), "digits");
  std::string out(4, ' ');
  ASSERT_TRUE(reader.read_at(6, std::as_writable_bytes(std::span<char>(out))));
  EXPECT_EQ(out, "6789");
  EXPECT_EQ(reader.read_at(7, std::as_writable_bytes(std::span<char>(out))).error().code(), ErrorCode::kOutOfRange);
  EXPECT_EQ(*read_all(reader, 10), text);
  EXPECT_EQ(read_all(reader, 9).error().code(), ErrorCode::kResourceExhausted);
}

TEST(Hash, MatchesThePublishedVectorsAndStreams) {
  // XXH3_128bits of the empty input, from the xxHash repository's sanity test.
  EXPECT_EQ(to_hex(xxh3_128(std::string_view())), "99aa06d3014798d86001c324468d497f");
  std::string text(100000, 'x');
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 31 % 251);
  Xxh3Stream stream;
  for (size_t at = 0; at < text.size(); at += 777) stream.update(as_bytes(std::string_view(text).substr(at, 777)));
  EXPECT_EQ(stream.digest(), xxh3_128(text));
  EXPECT_EQ(hash128_from_hex(to_hex(stream.digest())), stream.digest());
  EXPECT_EQ(hash128_from_hex("12"), std::nullopt);
  EXPECT_EQ(hash128_from_hex(std::string(31, '0') + "g"), std::nullopt);
}

TEST(Units, SizesAreReadAndWritten) {
  EXPECT_EQ(*parse_bytes("64MiB"), 64 << 20);
  EXPECT_EQ(*parse_bytes("1.5 GB"), 1500000000);
  EXPECT_EQ(*parse_bytes("2g"), 2000000000);
  for (const char* bad : {"", "MiB", "-1", "1 parsec", "1e30TB", "nan"}) EXPECT_FALSE(parse_bytes(bad)) << bad;
  EXPECT_EQ(*parse_duration("90"), std::chrono::seconds(90));
  EXPECT_EQ(*parse_duration("140ms"), std::chrono::duration<double>(0.14));
  EXPECT_EQ(*parse_duration("30m"), std::chrono::minutes(30));
  EXPECT_EQ(*parse_duration("30min"), *parse_duration("0.5h"));
  EXPECT_EQ(*parse_duration("2w"), std::chrono::days(14));
  for (const char* bad : {"", "h", "-1h", "1 h", "5y", "1hh", "inf", "nan", "1e13s"}) {
    EXPECT_FALSE(parse_duration(bad)) << bad;
  }
}

TEST(Strings, AreTrimmedSplitAndComparedAsAscii) {
  EXPECT_EQ(trimmed(" \t a b\r\n"), "a b");
  EXPECT_EQ(trimmed("\n "), "");
  EXPECT_EQ(trimmed("\ta ", " "), "\ta");
  EXPECT_EQ(lower_case("Ab-\xC3\x84"), "ab-\xC3\x84");
  EXPECT_EQ(upper_case("aZ_1"), "AZ_1");
  EXPECT_TRUE(equal_ignoring_case("Bearer", "bEARER"));
  EXPECT_FALSE(equal_ignoring_case("bear", "bearer"));
  std::string_view lines = "one\r\n\ntwo";
  EXPECT_EQ(take_line(lines), "one");
  EXPECT_EQ(take_line(lines), "");
  EXPECT_EQ(take_line(lines), "two");
  EXPECT_TRUE(lines.empty());
  EXPECT_THAT(split("a,,b,", ','), ::testing::ElementsAre("a", "", "b", ""));
  EXPECT_THAT(split("", ','), ::testing::ElementsAre(""));
}

TEST(Utf8, ReplacesAsPythonDoes) {
  // Expected values are those of bytes.decode("utf-8", errors="replace") in CPython.
  const auto replaced = [](std::string_view text) {
    std::string out;
    const int64_t n = append_utf8_replaced(text, out);
    return std::pair(out, n);
  };
  const std::string fffd = "\xEF\xBF\xBD";
  EXPECT_EQ(replaced("a\xFF"), std::pair("a" + fffd, int64_t{1}));
  EXPECT_EQ(replaced("\xE2\x82"), std::pair(fffd, int64_t{1}));                    // cut sequence: one
  EXPECT_EQ(replaced("\xED\xA0\x80"), std::pair(fffd + fffd + fffd, int64_t{3}));  // surrogate: three
  EXPECT_EQ(replaced("\xF0\x80\x80z"), std::pair(fffd + fffd + fffd + "z", int64_t{3}));
  EXPECT_EQ(replaced("\xF4\x90\x80\x80"), std::pair(fffd + fffd + fffd + fffd, int64_t{4}));
  EXPECT_EQ(replaced("\xC3\xA9"), std::pair(std::string("\xC3\xA9"), int64_t{0}));
  EXPECT_EQ(utf8_valid_prefix("0123456789\x80"), 10U);
}

// Every code point, and random runs of them of every length up to 100, against one character at a time.
template <class Char>
void check_write_utf8(uint32_t limit) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE(fmt::format("MILLRACE_TEST_SEED={}", seed));
  std::mt19937_64 random(seed);
  const auto check = [](const std::vector<Char>& text) {
    std::string expected;
    bool has_surrogate = false;
    for (const uint32_t c : text) {
      has_surrogate |= c >= 0xD800 && c < 0xE000;
      if (!has_surrogate) append_utf8(c, expected);
    }
    std::vector<char> room(text.size() * 4 + 64);
    const char* const end = write_utf8(std::span(text), room.data());
    ASSERT_EQ(end == nullptr, has_surrogate);
    if (end == nullptr) return;
    ASSERT_EQ(std::string_view(room.data(), static_cast<size_t>(end - room.data())), expected);
  };
  std::vector<Char> all;
  for (uint32_t c = 0; c < limit; ++c)
    if (c < 0xD800 || c >= 0xE000) all.push_back(static_cast<Char>(c));
  check(all);
  const uint32_t tops[] = {0x80, 0x100, 0x800, 0x10000, 0x110000};
  for (int i = 0; i < 20000; ++i) {
    std::vector<Char> text(random() % 100);
    const uint32_t top = std::min(limit, tops[random() % std::size(tops)]);
    for (Char& c : text) {
      uint32_t made = static_cast<uint32_t>(random() % (random() % 3 == 0 ? 0x80 : top));
      if (made >= 0xD800 && made < 0xE000 && random() % 64 != 0) made -= 0x800;
      c = static_cast<Char>(made);
    }
    check(text);
  }
}

TEST(Utf8, IsWrittenFromCodePointsOfEachSize) {
  check_write_utf8<uint8_t>(0x100);
  check_write_utf8<uint16_t>(0x10000);
  check_write_utf8<uint32_t>(0x110000);
}

TEST(PagesAhead, TouchesNothingBeyondWhatIsReached) {
  constexpr size_t kBytes = size_t{64} << 20;
  auto* const memory =
      static_cast<char*>(::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(static_cast<void*>(memory), MAP_FAILED);
  const auto resident = [&] {
    std::vector<unsigned char> pages(kBytes / 4096);
    EXPECT_EQ(::mincore(memory, kBytes, pages.data()), 0);
    return std::ranges::count_if(pages, [](unsigned char page) { return (page & 1) != 0; }) * 4096;
  };
  PagesAhead pages(memory + 100, kBytes - 200);  // as memory from an allocator begins
  EXPECT_EQ(resident(), 0);
  pages.reach(10);
  EXPECT_LE(resident(), 2 << 20);
  for (size_t i = 0; i + 200 < kBytes / 2; i += 1000) {
    pages.reach(i + 1000);
    memory[100 + i] = 'x';
  }
  EXPECT_GE(resident(), kBytes / 2 - 8192);
  EXPECT_LE(resident(), kBytes / 2 + (4 << 20));
  for (size_t i = kBytes / 2; i + 200 < kBytes; i += 1000) {
    pages.reach(std::min(i + 1000, kBytes - 200));
    memory[100 + i] = 'x';
  }
  EXPECT_EQ(memory[100], 'x');
  ::munmap(memory, kBytes);
}

TEST(Ascii, KnowsDigitsAndWhiteSpaceAndWritesHex) {
  std::string digits, spaces;
  for (int c = 0; c < 256; ++c) {
    if (is_digit(static_cast<char>(c))) digits += static_cast<char>(c);
    if (is_space(static_cast<char>(c))) spaces += static_cast<char>(c);
  }
  EXPECT_EQ(digits, "0123456789");
  EXPECT_EQ(spaces, "\t\n\v\f\r ");
  EXPECT_EQ(hex(std::string_view("\0\x7f\x80\xff", 4)), "007f80ff");
  EXPECT_EQ(hex(""), "");
}

TEST(Path, HasABaseNameAndAFolder) {
  EXPECT_EQ(base_name("a/b/c"), "c");
  EXPECT_EQ(base_name("c"), "c");
  EXPECT_EQ(base_name("a/"), "");
  EXPECT_EQ(folder_of("a/b/c"), "a/b");
  EXPECT_EQ(folder_of("c"), "");
  EXPECT_EQ(folder_of("/c"), "");
}

TEST(Environment, AVariableThatIsNotSetIsEmpty) {
  ::setenv("MILLRACE_TEST_VARIABLE", "value", 1);
  EXPECT_EQ(environment_variable("MILLRACE_TEST_VARIABLE"), "value");
  ::unsetenv("MILLRACE_TEST_VARIABLE");
  EXPECT_EQ(environment_variable("MILLRACE_TEST_VARIABLE"), "");
}

TEST(Executor, RunsEverythingAndHonoursPriority) {
  Executor executor(1, "test");
  Mutex mutex;
  CondVar changed;
  std::vector<int> order;
  bool go = false;
  executor.submit([&] {
    MutexLock lock(mutex);
    while (!go) changed.wait(mutex);
  });
  for (int i = 0; i < 4; ++i) {
    executor.submit(
        [&, i] {
          MutexLock lock(mutex);
          order.push_back(i);
          changed.notify_all();
        },
        i % 2);
  }
  MutexLock lock(mutex);
  go = true;
  changed.notify_all();
  while (order.size() < 4) changed.wait(mutex);
  EXPECT_THAT(order, testing::ElementsAre(1, 3, 0, 2));
}

TEST(Executor, ParallelForVisitsEachIndexOnce) {
  Executor executor(3, "test");
  std::vector<std::atomic<int>> seen(1000);
  parallel_for(executor, 1000, [&](int64_t i) { ++seen[static_cast<size_t>(i)]; });
  for (const auto& n : seen) EXPECT_EQ(n, 1);
  parallel_for(executor, 0, [&](int64_t) { FAIL(); });
}

TEST(Executor, ParallelTryReturnsTheErrorOfTheLowestIndex) {
  std::vector<std::atomic<int>> seen(200);
  EXPECT_TRUE(parallel_try(200, 4, "test", [&](int64_t i) -> Status {
    ++seen[static_cast<size_t>(i)];
    return {};
  }));
  for (const auto& count : seen) EXPECT_EQ(count, 1);
  EXPECT_TRUE(parallel_try(0, 4, "test", [](int64_t) -> Status { return fail(ErrorCode::kInternal, "never"); }));
  for (int round = 0; round < 50; ++round) {
    const Status status = parallel_try(40, 4, "test", [](int64_t i) -> Status {
      return i % 10 == 3 ? Status(fail(ErrorCode::kInternal, "number {}", i)) : Status();
    });
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().message(), "number 3");
  }
}

// The threads of this process that bear `name`, with the letter of their state.
std::vector<char> states_of_threads(std::string_view name) {
  std::vector<char> states;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream file(task.path() / "stat");
    std::string stat;
    std::getline(file, stat);  // id (name) state ...
    const size_t begin = stat.find('('), end = stat.rfind(')');
    if (end == stat.npos || stat.substr(begin + 1, end - begin - 1) != name) continue;
    states.push_back(stat[end + 2]);
  }
  return states;
}

TEST(Executor, StartsAThreadOnlyWhereNoneIsIdle) {
  Executor executor(16, "test-lazy");
  EXPECT_THAT(states_of_threads("test-lazy"), testing::IsEmpty());
  for (int i = 0; i < 20; ++i) {
    std::atomic<bool> ran = false;
    executor.submit([&] { ran = true; });
    while (!ran || states_of_threads("test-lazy") != std::vector<char>{'S'}) std::this_thread::yield();
  }
  // Tasks that wait for each other get a thread each, up to the limit, though one thread is idle at first.
  Mutex mutex;
  CondVar changed;
  int running = 0;
  bool go = false;
  for (int i = 0; i < 20; ++i) {
    executor.submit([&] {
      MutexLock lock(mutex);
      ++running;
      changed.notify_all();
      while (!go) changed.wait(mutex);
    });
  }
  MutexLock lock(mutex);
  while (running < 16) changed.wait(mutex);
  EXPECT_EQ(states_of_threads("test-lazy").size(), 16u);
  go = true;
  changed.notify_all();
  while (running < 20) changed.wait(mutex);
}

TEST(Executor, RunsWhatATaskSubmitsLastOnItsThread) {
  Executor executor(4, "test-last");
  constexpr int kTasks = 100;
  std::set<std::thread::id> threads;
  std::atomic<int> ran = 0;
  std::function<void()> task = [&] {
    threads.insert(std::this_thread::get_id());
    if (++ran < kTasks) executor.submit_last(task);
  };
  executor.submit(task);
  while (ran < kTasks) std::this_thread::yield();
  EXPECT_EQ(threads.size(), 1U);
  EXPECT_THAT(states_of_threads("test-last"), testing::SizeIs(1));
}

TEST(Executor, WorksInAChildAfterFork) {
  Executor executor(2, "test");
  std::atomic<int> ran{0};
  parallel_for(executor, 8, [&](int64_t) { ++ran; });
  const pid_t child = fork();
  if (child == 0) {
    std::atomic<int> here{0};
    parallel_for(executor, 8, [&](int64_t) { ++here; });
    _exit(here == 8 ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(ran, 8);
}

TEST(BufferPool, ReservationsShareOneCap) {
  MemoryBudget budget(1 << 20);
  auto loader = *BufferPool::reserve(budget, "loader", 700 << 10);
  const auto refused = BufferPool::reserve(budget, "checkpoint", 400 << 10);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kResourceExhausted);
  EXPECT_THAT(refused.error().to_string(), HasSubstr("loader holds"));
  loader.reset();
  EXPECT_TRUE(BufferPool::reserve(budget, "checkpoint", 400 << 10));
}

TEST(BufferPool, WaitsForMemoryAndRecyclesIt) {
  MemoryBudget budget(1 << 20);
  auto pool = *BufferPool::reserve(budget, "test", 64 << 10);
  Buffer first = *pool->acquire(60000);
  std::byte* const address = first.data();
  EXPECT_FALSE(*pool->try_acquire(60000));
  EXPECT_EQ(pool->acquire(1 << 20).error().code(), ErrorCode::kResourceExhausted);
  Thread releaser("release", [&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    Buffer gone = std::move(first);
  });
  Buffer second = *pool->acquire(60000);
  EXPECT_EQ(second.data(), address);
  EXPECT_EQ(pool->in_use_bytes(), 61440);
  std::stop_source stop;
  Thread stopper("stop", [&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    stop.request_stop();
  });
  EXPECT_EQ(pool->acquire(60000, stop.get_token()).error().code(), ErrorCode::kCancelled);
}

TEST(BufferPool, BuffersOutliveTheirPool) {
  MemoryBudget budget(1 << 20);
  Buffer buffer;
  {
    auto pool = *BufferPool::reserve(budget, "test", 64 << 10);
    buffer = *pool->acquire(100);
  }
  buffer.data()[99] = std::byte{1};
  EXPECT_EQ(budget.reserved_bytes(), 64 << 10);
  buffer = Buffer();
  EXPECT_EQ(budget.reserved_bytes(), 0);
}

TEST(StreamCopy, EqualsMemcpyAtEveryAlignmentAndSize) {
  std::vector<std::byte> from(1000), to(1000);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 7 + 1);
  for (size_t offset = 0; offset < 70; ++offset) {
    for (size_t size : {0UL, 1UL, 63UL, 64UL, 65UL, 200UL, 700UL}) {
      std::fill(to.begin(), to.end(), std::byte{0});
      stream_copy(to.data() + offset, from.data() + 3, size);
      ASSERT_TRUE(std::equal(from.begin() + 3, from.begin() + 3 + static_cast<std::ptrdiff_t>(size),
                             to.begin() + static_cast<std::ptrdiff_t>(offset)));
      for (size_t i = 0; i < to.size(); ++i) {
        if (i < offset || i >= offset + size) {
          ASSERT_EQ(to[i], std::byte{0}) << i;
        }
      }
    }
  }
}

TEST(Metrics, TableAndValuesAgree) {
  ASSERT_EQ(metric_defs().size(), static_cast<size_t>(Metric::kCount));
  for (const MetricDef& def : metric_defs()) EXPECT_FALSE(def.name.empty());
  Metrics metrics;
  metrics.add(Metric::kTokens, 7);
  metrics.add_seconds(Metric::kWaitSeconds, std::chrono::milliseconds(1500));
  EXPECT_EQ(metrics.value(Metric::kTokens), 7);
  EXPECT_DOUBLE_EQ(metrics.value(Metric::kWaitSeconds), 1.5);
}

TEST(Log, SinkSeesLinesFromItsLevelUp) {
  std::vector<std::string> lines;
  set_log_sink(
      [&](LogLevel level, std::string_view line) {
        lines.push_back(std::string(log_level_name(level)) + " " + std::string(line));
      },
      LogLevel::kWarning);
  log(LogLevel::kInfo, "quiet");
  log(LogLevel::kWarning, "read {} twice", "x");
  set_log_sink({}, LogLevel::kWarning);
  log(LogLevel::kError, "dropped");
  EXPECT_THAT(lines, testing::ElementsAre("warning read x twice"));
}

TEST(Progress, CountsAcrossThreads) {
  Progress progress;
  progress.set_totals(100, 10);
  progress.set_phase("reading");
  Executor executor(2, "test");
  parallel_for(executor, 10, [&](int64_t) { progress.add(10, 1); });
  const auto s = progress.snapshot();
  EXPECT_EQ(s.bytes, 100);
  EXPECT_EQ(s.items, 10);
  EXPECT_EQ(s.phase, "reading");
}

TEST(Progress, FilesUnderWayArePartOfTheWhole) {
  Progress progress;
  {
    Progress first(&progress, "a", 100);
    auto second = std::make_unique<Progress>(&progress, "b", 50);
    first.add(10, 0);
    second->add(50, 1);
    progress.add_failed();
    auto s = progress.snapshot();
    EXPECT_EQ(s.bytes, 60);
    EXPECT_EQ(s.items, 1);
    EXPECT_EQ(s.failed, 1);
    ASSERT_EQ(s.parts.size(), 2U);
    EXPECT_EQ(s.parts[0].name + s.parts[1].name, "ab");
    EXPECT_EQ(s.parts[0].bytes, 10);
    EXPECT_EQ(s.parts[1].total_bytes, 50);
    second.reset();
    EXPECT_EQ(progress.snapshot().parts.size(), 1U);
  }
  EXPECT_TRUE(progress.snapshot().parts.empty());
  EXPECT_EQ(progress.snapshot().bytes, 60) << "what they did stays";
}

// The bit-by-bit definition.
uint32_t slow_crc32c(std::span<const std::byte> bytes) {
  uint32_t state = ~0u;
  for (const std::byte byte : bytes) {
    state ^= static_cast<uint32_t>(byte);
    for (int bit = 0; bit < 8; ++bit) state = (state >> 1) ^ ((state & 1) != 0 ? 0x82F63B78u : 0);
  }
  return ~state;
}

TEST(Crc32c, IsTheOneOfTheStandard) {
  EXPECT_EQ(crc32c(as_bytes("123456789")), 0xE3069283u);  // the check value of every catalogue
  EXPECT_EQ(crc32c({}), 0u);
  std::mt19937_64 random(7);
  std::string text(100'000, ' ');
  for (char& c : text) c = static_cast<char>(random());
  for (const size_t size : {1u, 7u, 8u, 12287u, 12288u, 12289u, 36864u, 99'999u}) {
    const auto bytes = as_bytes(text).subspan(1, size);
    EXPECT_EQ(crc32c(bytes), slow_crc32c(bytes)) << size;
    const size_t cut = random() % size;
    EXPECT_EQ(crc32c(bytes.subspan(cut), crc32c(bytes.first(cut))), crc32c(bytes)) << size << " cut at " << cut;
  }
}

// Bit by bit, as the specification words it.
uint64_t slow_crc64nvme(std::span<const std::byte> bytes) {
  uint64_t crc = ~uint64_t{0};
  for (const std::byte byte : bytes) {
    crc ^= static_cast<uint64_t>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x9A6C9329AC4BC9B5 : 0);
  }
  return ~crc;
}

TEST(Crc64Nvme, IsTheOneOfTheSpecification) {
  EXPECT_EQ(crc64nvme(as_bytes("123456789")), 0xAE8B14860A799888u);              // the check value of every catalogue
  EXPECT_EQ(crc64nvme(as_bytes(std::string(4096, '\0'))), 0x6482D367EB22B64Eu);  // the specification's own
  EXPECT_EQ(crc64nvme({}), 0u);
  std::mt19937_64 random(7);
  std::string text(10'000, ' ');
  for (char& c : text) c = static_cast<char>(random());
  for (const size_t size : {1u, 7u, 8u, 15u, 127u, 128u, 129u, 255u, 256u, 271u, 4096u, 9'999u}) {
    const auto bytes = as_bytes(text).subspan(1, size);
    EXPECT_EQ(crc64nvme(bytes), slow_crc64nvme(bytes)) << size;
    const size_t cut = random() % size;
    EXPECT_EQ(crc64nvme(bytes.subspan(cut), crc64nvme(bytes.first(cut))), crc64nvme(bytes))
        << size << " cut at " << cut;
  }
}

}  // namespace
}  // namespace millrace
