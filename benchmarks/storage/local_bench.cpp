// SPDX-License-Identifier: Apache-2.0
// How files are written and read on one file system, way by way:
//
//   millrace_local_bench DIR [MIB] [ROUNDS]
//
// Large ones: dropped behind (never), past the page cache (always) and as the storage chooses (measured), the last two
// without io_uring too; each with parts of 8 MiB, four under way, as a copy has them; a write ends with a durable
// commit. `plain` is what a program does that knows none of this: buffered writes and reads of the same size that stay
// in memory. Then small pieces at random places, 256 under way: of a file that is in the page cache and of one that is
// not, through it and past it. Rounds are interleaved; a line is a median. CPU is of this process, what the kernel does
// for it in threads of its own (writeback) is not in it.
#include <fcntl.h>
#include <fmt/core.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "millrace/base/memory/buffer_pool.h"
#include "millrace/base/thread/sync.h"
#include "millrace/storage/local/local.h"

namespace {

using namespace millrace;

constexpr int64_t kPart = 8 << 20;
constexpr int kUnderWay = 4;
constexpr int64_t kSmallPieces = 20'000;
constexpr int kSmallUnderWay = 256;

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

template <class Value>
double middle(const std::vector<Cost>& all, Value&& value) {
  std::vector<double> values;
  for (const Cost& cost : all) values.push_back(value(cost));
  std::nth_element(values.begin(), values.begin() + std::ssize(values) / 2, values.end());
  return values[values.size() / 2];
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

// `size` bytes at each of some random places.
void read_places(Storage& storage, const RandomReader& reader, const Buffer& memory, int64_t size, uint64_t seed) {
  std::mt19937_64 random(seed);
  CompletionQueue queue;
  std::vector<Operation> operations;
  const auto next = [&](uint64_t slot) {
    const auto place = static_cast<int64_t>(random() % static_cast<uint64_t>(reader.size() / size)) * size;
    const auto out = memory.span().subspan(slot << 16, static_cast<size_t>(size));
    return Operation{.tag = slot, .what = Operation::Read{&reader, place, out}};
  };
  for (uint64_t slot = 0; slot < kSmallUnderWay; ++slot) operations.push_back(next(slot));
  int64_t begun = kSmallUnderWay, under_way = kSmallUnderWay;
  storage.submit(operations, queue);
  while (under_way > 0) {
    queue.wait_for(static_cast<size_t>(std::min<int64_t>(under_way, 16)), Clock::now() + std::chrono::seconds(1));
    operations.clear();
    while (const auto done = queue.try_pop()) {
      must(done->status);
      --under_way;
      if (begun == kSmallPieces) continue;
      operations.push_back(next(done->tag));
      ++begun, ++under_way;
    }
    storage.submit(operations, queue);
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
    bool stream, rings;
  };
  const Mode modes[] = {{"plain", LocalDirect::kNever, false, false},
                        {"dropped behind", LocalDirect::kNever, true, false},
                        {"past the cache", LocalDirect::kAlways, true, true},
                        {"past the cache, threads", LocalDirect::kAlways, true, false},
                        {"by file system", LocalDirect::kByFileSystem, true, true},
                        {"by file system, threads", LocalDirect::kByFileSystem, true, false}};
  MemoryBudget budget(int64_t{1} << 30);
  const auto pool = must(BufferPool::reserve(budget, "bench", kUnderWay * kPart));
  std::vector<Buffer> buffers;
  for (int i = 0; i < kUnderWay; ++i) {
    buffers.push_back(must(pool->acquire(kPart)));
    std::fill(buffers.back().span().begin(), buffers.back().span().end(), std::byte(i + 1));
  }
  std::map<std::string, std::vector<Cost>> costs;
  std::vector<std::shared_ptr<Storage>> storages;  // one a mode, so that what was measured is kept
  for (const Mode& mode : modes) {
    storages.push_back(must(open_local_storage(dir, {.rings = mode.rings, .direct = mode.direct})));
  }
  for (int round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < std::size(modes); ++i) {
      const Mode& mode = modes[i];
      Storage& storage = *storages[i];
      const std::string name(mode.name);
      costs["write " + name].push_back(cost_of([&] {
        const auto writer = must(storage.open_write("bench", {.size_hint_bytes = mode.stream ? bytes : 0}));
        move(storage, buffers, bytes, [&](int64_t offset, Buffer& buffer) {
          return Operation{.what = Operation::Write{writer.get(), offset, buffer.span()}};
        });
        must(writer->commit());
      }));
      drop_cache(dir + "/bench");
      costs["read " + name].push_back(cost_of([&] {
        const auto reader = must(storage.open_read("bench", {.once = mode.stream}));
        move(storage, buffers, bytes, [&](int64_t offset, Buffer& buffer) {
          return Operation{.what = Operation::Read{reader.get(), offset, buffer.span()}};
        });
      }));
      must(storage.remove(std::vector<std::string>{"bench"}));
    }
  }
  const auto seconds = [](const Cost& cost) { return cost.seconds; };
  const auto cpu = [](const Cost& cost) { return cost.cpu; };
  fmt::print("{:<32} {:>8} {:>12}   {} MiB, median of {}\n", "", "MB/s", "CPU-s/GB", bytes >> 20, rounds);
  for (auto& [name, all] : costs) {
    const auto size = static_cast<double>(bytes);
    fmt::print("{:<32} {:>8.0f} {:>12.4f}\n", name, size / 1e6 / middle(all, seconds), middle(all, cpu) / size * 1e9);
  }
  costs.clear();

  {
    const auto writer = must(storages[0]->open_write("bench", {.size_hint_bytes = bytes}));
    move(*storages[0], buffers, bytes, [&](int64_t offset, Buffer& buffer) {
      return Operation{.what = Operation::Write{writer.get(), offset, buffer.span()}};
    });
    must(writer->commit());
  }
  buffers.clear();
  Buffer places = must(pool->acquire(size_t{kSmallUnderWay} << 16));
  uint64_t seed = 0;
  for (int round = 0; round < rounds; ++round) {
    for (const int64_t size : {4 << 10, 16 << 10, 64 << 10}) {
      for (const Mode& mode : {modes[2], modes[3], modes[4], modes[5]}) {
        Storage& storage = *storages[static_cast<size_t>(std::distance(
            std::begin(modes),
            std::find_if(std::begin(modes), std::end(modes), [&](const Mode& one) { return one.name == mode.name; })))];
        const auto reader = must(storage.open_read("bench"));
        const std::string name = fmt::format("{:>2} KiB {}{}", size >> 10,
                                             mode.direct == LocalDirect::kAlways ? "past the cache" : "not cached",
                                             mode.rings ? "" : ", threads");
        drop_cache(dir + "/bench");
        costs[name].push_back(cost_of([&] { read_places(storage, *reader, places, size, ++seed); }));
        if (mode.direct == LocalDirect::kAlways) continue;
        drop_cache(dir + "/bench");
        read_places(storage, *reader, places, size, seed);
        costs[fmt::format("{:>2} KiB cached{}", size >> 10, mode.rings ? "" : ", threads")].push_back(
            cost_of([&] { read_places(storage, *reader, places, size, seed); }));
      }
    }
  }
  must(storages[0]->remove(std::vector<std::string>{"bench"}));
  fmt::print("{:<32} {:>8} {:>12}   at random places, median of {}\n", "", "1000/s", "CPU us", rounds);
  for (auto& [name, all] : costs) {
    fmt::print("{:<32} {:>8.1f} {:>12.1f}\n", name, kSmallPieces / 1e3 / middle(all, seconds),
               middle(all, cpu) / kSmallPieces * 1e6);
  }
}
