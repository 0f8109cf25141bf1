// SPDX-License-Identifier: Apache-2.0
// What a hit in the cache of the node costs against a read of the same bytes from a plain file of the same disk.
//
//   millrace_cache_bench DIR [MB]
//
// DIR gets a file of MB (1,024) million bytes and a cache that holds it; both are removed. Each row reads all bytes
// once in ranges of one size, in order or shuffled, on one thread or four, from the page cache or after both were
// dropped from it. Sides take turns; medians of five.

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <random>

#include "millrace/cache/node_cache.h"

namespace millrace {
namespace {

constexpr int kRounds = 5;
constexpr int64_t kWrite = 8 << 20;

class FileReader final : public RandomReader {
 public:
  explicit FileReader(const std::string& path, int64_t size)
      : fd_(::open(path.c_str(), O_RDWR | O_CREAT, 0600)), size_(size) {}
  ~FileReader() override { ::close(fd_); }
  std::string_view name() const override { return "file"; }
  int64_t size() const override { return size_; }
  std::string_view version() const override { return "1"; }
  int fd() const { return fd_; }
  [[nodiscard]] Status read_at(int64_t offset, std::span<std::byte> out) const override {
    while (!out.empty()) {
      const ssize_t got = ::pread(fd_, out.data(), out.size(), offset);
      if (got <= 0) return fail(ErrorCode::kUnavailable, "read failed");
      out = out.subspan(static_cast<size_t>(got));
      offset += got;
    }
    return {};
  }

 private:
  const int fd_;
  const int64_t size_;
};

void write_file(const FileReader& file) {
  std::vector<uint64_t> words(kWrite / 8);
  std::mt19937_64 random(1);
  for (int64_t at = 0; at < file.size(); at += kWrite) {
    std::ranges::generate(words, std::ref(random));
    if (::pwrite(file.fd(), words.data(), kWrite, at) != kWrite) std::exit(1);
  }
  ::fdatasync(file.fd());
}

void drop(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDWR);
  ::fdatasync(fd);
  ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  ::close(fd);
}

// GB a second of all ranges, by `read`, on `threads` threads that take turns.
template <class Read>
double rate(const std::vector<int64_t>& offsets, int64_t size, int threads, const Read& read) {
  std::atomic<size_t> next = 0;
  const auto begun = Clock::now();
  const auto work = [&] {
    std::vector<std::byte> out(static_cast<size_t>(size));
    for (size_t i = next++; i < offsets.size(); i = next++) {
      if (const Status got = read(offsets[i], out); !got) {
        fmt::print(stderr, "{}\n", got.error().to_string());
        std::exit(1);
      }
    }
  };
  {
    std::vector<Thread> all;
    for (int i = 1; i < threads; ++i) all.emplace_back("read", work);
    work();
  }
  const std::chrono::duration<double> seconds = Clock::now() - begun;
  return static_cast<double>(offsets.size()) * static_cast<double>(size) / seconds.count() / 1e9;
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

struct Profile {
  bool is_shuffled;
  int64_t size;
  int threads;
};
constexpr Profile kProfiles[] = {{false, 1 << 20, 1}, {false, 8 << 20, 1}, {true, 64 << 10, 1}, {true, 1 << 20, 1},
                                 {true, 8 << 20, 1},  {true, 1 << 20, 4},  {true, 8 << 20, 4}};

std::vector<int64_t> all_offsets(int64_t bytes, int64_t size, bool is_shuffled) {
  std::vector<int64_t> offsets(static_cast<size_t>(bytes / size));
  for (size_t i = 0; i < offsets.size(); ++i) offsets[i] = static_cast<int64_t>(i) * size;
  if (is_shuffled) std::ranges::shuffle(offsets, std::mt19937_64(2));
  return offsets;
}

int run(const std::string& directory, int64_t bytes) {
  const std::string path = directory + "/plain", folder = directory + "/cache";
  const FileReader file(path, bytes);
  write_file(file);
  const auto cache = cache::NodeCache::open({.directory = folder, .cap_bytes = bytes * 5 / 4});
  if (!cache) {
    fmt::print(stderr, "{}\n", cache.error().to_string());
    return 1;
  }
  const cache::CachedObject object{cache::object_id("bench", "plain", "1", bytes), bytes};
  const auto hit = [&](int64_t offset, std::span<std::byte> out) {
    return (*cache)->read(object, file, offset, out, {});
  };
  const auto plain = [&](int64_t offset, std::span<std::byte> out) { return file.read_at(offset, out); };
  rate(all_offsets(bytes, kWrite, false), kWrite, 1, hit);  // fills the cache
  fmt::print(
      "| pages | order | range, KiB | threads | file, GB/s | hit, GB/s | ratio |\n|---|---|---|---|---|---|---|\n");
  for (const bool is_warm : {true, false}) {
    for (const auto& [is_shuffled, size, threads] : kProfiles) {
      const std::vector<int64_t> offsets = all_offsets(bytes, size, is_shuffled);
      std::vector<double> files, hits;
      for (int round = 0; round < kRounds; ++round) {
        if (!is_warm) drop(path), drop(folder + "/cache.data");
        files.push_back(rate(offsets, size, threads, plain));
        hits.push_back(rate(offsets, size, threads, hit));
      }
      fmt::print("| {} | {} | {} | {} | {:.2f} | {:.2f} | {:.2f} |\n", is_warm ? "in memory" : "on disk",
                 is_shuffled ? "shuffled" : "in order", size >> 10, threads, median(files), median(hits),
                 median(hits) / median(files));
      std::fflush(stdout);
    }
  }
  return 0;
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  if (argc < 2) {
    fmt::print(stderr, "millrace_cache_bench DIR [MB]\n");
    return 2;
  }
  const std::string directory = std::string(argv[1]) + "/cache_bench";
  std::filesystem::create_directories(directory);
  const int64_t megabytes = argc > 2 ? std::atoll(argv[2]) : 1024;
  const int status = millrace::run(directory, (megabytes * 1'000'000 / millrace::kWrite) * millrace::kWrite);
  std::filesystem::remove_all(directory);
  return status;
}
