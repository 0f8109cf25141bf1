// SPDX-License-Identifier: Apache-2.0
// What the disk can do: a bare program that writes or reads one file past the page cache and does nothing else.
//
//   millrace_checkpoint_floor write FILE BYTES    writes, syncs file and folder, renames; no hash
//   millrace_checkpoint_floor read FILE           reads, hashes (XXH3-128) and copies to memory that was touched before
//
// Threads move pieces of 8 MiB (write) or 4 MiB (read) between page-aligned memory and the file. Prints wall and CPU
// seconds of that alone.
#include <fcntl.h>
#include <fmt/core.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "millrace/base/hash/hash.h"
#include "millrace/base/memory/huge_pages.h"
#include "millrace/base/thread/sync.h"

namespace {

using namespace millrace;

constexpr int64_t kPage = 4096, kWrite = 8 << 20, kRead = 4 << 20;
constexpr int kThreads = 4;

void must(bool good, const char* what) {
  if (good) return;
  std::perror(what);
  std::exit(1);
}

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

std::byte* touched(int64_t bytes) {
  auto* const memory = static_cast<std::byte*>(std::aligned_alloc(kHugePage, static_cast<size_t>(bytes)));
  must(memory != nullptr, "memory");
  prefer_huge_pages(memory, static_cast<size_t>(bytes));
  std::memset(memory, 'x', static_cast<size_t>(bytes));
  return memory;
}

void in_threads(int64_t bytes, int64_t piece, const std::function<void(int64_t, int64_t)>& move) {
  std::atomic<int64_t> next{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (int64_t at; (at = next.fetch_add(piece)) < bytes;) move(at, std::min(piece, bytes - at));
    });
  }
  for (auto& thread : threads) thread.join();
}

void write_file(const std::string& path, int64_t bytes) {
  const std::string temp = path + ".tmp", folder = path.substr(0, path.rfind('/'));
  const std::byte* const memory = touched((bytes + kHugePage - 1) / kHugePage * kHugePage);
  const auto start = Clock::now();
  const double cpu = cpu_seconds();
  const int fd = ::open(temp.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_DIRECT, 0644);
  must(fd >= 0, "open");
  must(::fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, bytes) == 0, "fallocate");
  in_threads((bytes + kPage - 1) / kPage * kPage, kWrite, [&](int64_t at, int64_t size) {
    must(::pwrite(fd, memory + at, static_cast<size_t>(size), at) == size, "write");
  });
  must(::ftruncate(fd, bytes) == 0 && ::fdatasync(fd) == 0, "sync");
  must(::rename(temp.c_str(), path.c_str()) == 0, "rename");
  const int directory = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY);
  must(directory >= 0 && ::fsync(directory) == 0, "sync the folder");
  fmt::print("{:.4f} {:.4f}\n", std::chrono::duration<double>(Clock::now() - start).count(), cpu_seconds() - cpu);
}

void read_file(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECT);
  struct stat info{};
  must(fd >= 0 && ::fstat(fd, &info) == 0, "open");
  std::byte* const out = touched((info.st_size + kHugePage) / kHugePage * kHugePage);
  std::vector<std::byte*> buffers;
  for (int i = 0; i < kThreads; ++i) buffers.push_back(touched(kRead));
  std::atomic<size_t> taken{0};
  std::atomic<uint64_t> hashes{0};
  const auto start = Clock::now();
  const double cpu = cpu_seconds();
  in_threads(info.st_size, kRead, [&](int64_t at, int64_t size) {
    thread_local std::byte* const buffer = buffers[taken.fetch_add(1)];
    must(::pread(fd, buffer, kRead, at) >= size, "read");
    hashes ^= xxh3_128({buffer, static_cast<size_t>(size)}).low;
    std::memcpy(out + at, buffer, static_cast<size_t>(size));
  });
  fmt::print("{:.4f} {:.4f}\n", std::chrono::duration<double>(Clock::now() - start).count(), cpu_seconds() - cpu);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  if (what == "write" && argc == 4) {
    write_file(argv[2], std::atoll(argv[3]));
  } else if (what == "read" && argc == 3) {
    read_file(argv[2]);
  } else {
    fmt::print(stderr, "usage: {} write FILE BYTES | read FILE\n", argv[0]);
    return 1;
  }
}
