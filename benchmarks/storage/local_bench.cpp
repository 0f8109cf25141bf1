// SPDX-License-Identifier: Apache-2.0
// How large files are written and read on one file system, way by way:
//
//   millrace_local_bench DIR [MIB] [ROUNDS]
//
// buffered, dropped behind (never), past the page cache (always) and as the storage chooses (measured); each with parts
// of 8 MiB, four under way, as a copy has them; a write ends with a durable commit. `plain` is what a program does that
// knows none of this: buffered writes and reads of the same size that stay in memory. Rounds are interleaved; a line is
// a median. CPU is of this process, what the kernel does for it in threads of its own (writeback) is not in it.
#include <fcntl.h>
#include <fmt/core.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "millrace/base/buffer_pool.h"
#include "millrace/base/sync.h"
#include "millrace/storage/local/local.h"

namespace {

using namespace millrace;

constexpr int64_t kPart = 8 << 20;
constexpr int kUnderWay = 4;

struct Cost {
  double seconds = 0, cpu = 0;
};

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

template <class T>
T must(Result<T> result) {
  if (result) return *std::move(result);
  fmt::print(stderr, "{}\n", result.error().to_string());
  std::exit(1);
}
void must(const Status& status) {
  if (status) return;
  fmt::print(stderr, "{}\n", status.error().to_string());
  std::exit(1);
}

template <class Body>
Cost cost_of(Body&& body) {
  const auto start = Clock::now();
  const double cpu = cpu_seconds();
  body();
  return {std::chrono::duration<double>(Clock::now() - start).count(), cpu_seconds() - cpu};
}

// Moves `bytes` in parts, kUnderWay at once; `operation(offset, buffer)` says how.
template <class Make>
void move(Storage& storage, std::vector<Buffer>& buffers, int64_t bytes, Make&& operation) {
  CompletionQueue queue;
  int64_t next = 0;
  int under_way = 0;
  const auto start = [&](uint64_t slot) {
    Operation one = operation(next, buffers[slot]);
    one.tag = slot;
    storage.submit(std::span(&one, 1), queue);
    next += kPart;
    ++under_way;
  };
  for (uint64_t slot = 0; slot < kUnderWay && next < bytes; ++slot) start(slot);
  while (under_way > 0) {
    const Completion done = queue.wait();
    must(done.status);
    --under_way;
    if (next < bytes) start(done.tag);
  }
}

void drop_cache(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  ::fsync(fd);
  ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  ::close(fd);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    fmt::print(stderr, "usage: {} DIR [MIB] [ROUNDS]\n", argv[0]);
    return 2;
  }
  const std::string dir = argv[1];
  const int64_t bytes = (argc > 2 ? std::atoll(argv[2]) : 2048) << 20;
  const int rounds = argc > 3 ? std::atoi(argv[3]) : 5;
  struct Mode {
    const char* name;
    LocalDirect direct;
    bool stream;
  };
  const Mode modes[] = {{"plain", LocalDirect::kNever, false},
                        {"dropped behind", LocalDirect::kNever, true},
                        {"past the cache", LocalDirect::kAlways, true},
                        {"measured", LocalDirect::kMeasured, true}};
  MemoryBudget budget(int64_t{1} << 30);
  const auto pool = must(BufferPool::reserve(budget, "bench", kUnderWay * kPart));
  std::vector<Buffer> buffers;
  for (int i = 0; i < kUnderWay; ++i) {
    buffers.push_back(must(pool->acquire(kPart)));
    std::fill(buffers.back().span().begin(), buffers.back().span().end(), std::byte(i + 1));
  }
  std::map<std::string, std::vector<Cost>> costs;
  std::vector<std::shared_ptr<Storage>> storages;  // one a mode, so that what was measured is kept
  for (const Mode& mode : modes) storages.push_back(must(open_local_storage(dir, {.direct = mode.direct})));
  for (int round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < std::size(modes); ++i) {
      const Mode& mode = modes[i];
      Storage& storage = *storages[i];
      const std::string name(mode.name);
      costs["write " + name].push_back(cost_of([&] {
        const auto writer = must(storage.open_write("bench", {.size_hint_bytes = mode.stream ? bytes : 0}));
        move(storage, buffers, bytes, [&](int64_t offset, Buffer& buffer) {
          return Operation{.writer = writer.get(), .offset = offset, .data = buffer.span()};
        });
        must(writer->commit());
      }));
      drop_cache(dir + "/bench");
      costs["read " + name].push_back(cost_of([&] {
        const auto reader = must(storage.open_read("bench", {.once = mode.stream}));
        move(storage, buffers, bytes, [&](int64_t offset, Buffer& buffer) {
          return Operation{.reader = reader.get(), .offset = offset, .out = buffer.span()};
        });
      }));
      must(storage.remove(std::vector<std::string>{"bench"}));
    }
  }
  fmt::print("{:<24} {:>8} {:>12}   {} MiB, median of {}\n", "", "MB/s", "CPU-s/GB", bytes >> 20, rounds);
  for (auto& [name, all] : costs) {
    const auto middle = [&](auto&& value) {
      std::vector<double> values;
      for (const Cost& cost : all) values.push_back(value(cost));
      std::nth_element(values.begin(), values.begin() + std::ssize(values) / 2, values.end());
      return values[values.size() / 2];
    };
    const auto size = static_cast<double>(bytes);
    fmt::print("{:<24} {:>8.0f} {:>12.4f}\n", name, size / 1e6 / middle([](const Cost& c) { return c.seconds; }),
               middle([](const Cost& c) { return c.cpu; }) / size * 1e9);
  }
}
