// SPDX-License-Identifier: Apache-2.0
#include "millrace/bench/rank_io.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace millrace::bench {

namespace {

constexpr size_t kAlignment = 4096;
constexpr int64_t kMostTimes = 20'000;

class File {
 public:
  File(const std::string& path, int flags) : path_(path), fd_(open(path.c_str(), flags | O_CLOEXEC, 0666)) {}
  ~File() {
    if (fd_ >= 0) close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  int fd() const { return fd_; }
  Status is_open() const {
    if (fd_ < 0) return error("open");
    return {};
  }
  tl::unexpected<Error> error(const char* what) const {
    return tl::unexpected(errno_error(errno, fmt::format("{} {}", what, path_)));
  }
  Result<int64_t> size() const {
    struct stat about{};
    if (fstat(fd_, &about) != 0) return error("stat");
    return about.st_size;
  }
  // Whole ones, at least one.
  Result<int64_t> blocks(int64_t block_bytes) const {
    ASSIGN_OR_RETURN(const int64_t bytes, size());
    if (bytes < block_bytes) return fail(ErrorCode::kOutOfRange, "{} is smaller than a block", path_);
    return bytes / block_bytes;
  }
  // The bytes read; fewer at the end of the file.
  Result<int64_t> read_at(std::byte* buffer, int64_t bytes, int64_t at) const {
    for (;;) {
      const ssize_t got = pread(fd_, buffer, static_cast<size_t>(bytes), at);
      if (got >= 0) return got;
      if (errno != EINTR) return error("read");
    }
  }
  Status write_at(const std::byte* buffer, int64_t bytes, int64_t at) const {
    for (int64_t done = 0; done < bytes;) {
      const ssize_t wrote = pwrite(fd_, buffer + done, static_cast<size_t>(bytes - done), at + done);
      if (wrote < 0 && errno == EINTR) continue;
      if (wrote < 0) return error("write");
      done += wrote;
    }
    return {};
  }

 private:
  const std::string path_;
  const int fd_;
};

std::string file_of(const std::string& folder, int64_t number) {
  return folder + "/" + std::to_string(number);
}

}  // namespace

RankIo::RankIo(int64_t block_bytes, uint64_t seed, bool direct)
    : block_bytes_(block_bytes),
      direct_(direct),
      buffer_(static_cast<std::byte*>(std::aligned_alloc(kAlignment, static_cast<size_t>(block_bytes)))),
      random_(seed) {
  // Bytes that no file system makes smaller.
  for (int64_t at = 0; at + 8 <= block_bytes_; at += 8) {
    const uint64_t word = random_();
    std::memcpy(buffer_.get() + at, &word, sizeof(word));
  }
}

void RankIo::count(int64_t bytes, Clock::time_point begun) {
  outcome_.bytes += bytes;
  ++outcome_.operations;
  const auto seconds = static_cast<float>(std::chrono::duration<double>(Clock::now() - begun).count());
  // Keeps a uniform random sample of fixed size of many times (reservoir sampling).
  if (outcome_.operations <= kMostTimes) {
    outcome_.seconds.push_back(seconds);
  } else if (const auto place = static_cast<int64_t>(random_() % static_cast<uint64_t>(outcome_.operations));
             place < kMostTimes) {
    outcome_.seconds[static_cast<size_t>(place)] = seconds;
  }
}

Status RankIo::write(const std::string& path, int64_t begin, int64_t bytes, bool truncate, const Until& until) {
  const File file(path, O_WRONLY | O_CREAT | (truncate ? O_TRUNC : 0) | (direct_ ? O_DIRECT : 0));
  RETURN_IF_ERROR(file.is_open());
  for (int64_t done = 0; done < bytes && !is_over(until); done += block_bytes_) {
    std::memcpy(buffer_.get(), &done, sizeof(done));  // no two blocks are equal
    const Clock::time_point begun = Clock::now();
    RETURN_IF_ERROR(file.write_at(buffer_.get(), block_bytes_, begin + done));
    count(block_bytes_, begun);
  }
  if (fsync(file.fd()) != 0) return file.error("fsync");
  return {};
}

Status RankIo::read(const std::string& path, const Until& until) {
  return read_range(path, 0, INT64_MAX, until);
}

Status RankIo::read_range(const std::string& path, int64_t begin, int64_t bytes, const Until& until) {
  const File file(path, O_RDONLY | (direct_ ? O_DIRECT : 0));
  RETURN_IF_ERROR(file.is_open());
  for (int64_t done = 0; done < bytes && !is_over(until);) {
    const Clock::time_point begun = Clock::now();
    ASSIGN_OR_RETURN(const int64_t got, file.read_at(buffer_.get(), block_bytes_, begin + done));
    if (got == 0) break;
    count(got, begun);
    done += got;
  }
  return {};
}

Status RankIo::write_random(const std::string& path, const Until& until) {
  const File file(path, O_WRONLY | (direct_ ? O_DIRECT : 0));
  RETURN_IF_ERROR(file.is_open());
  ASSIGN_OR_RETURN(const int64_t blocks, file.blocks(block_bytes_));
  while (!is_over(until)) {
    const auto block = static_cast<int64_t>(random_() % static_cast<uint64_t>(blocks));
    std::memcpy(buffer_.get(), &block, sizeof(block));
    const Clock::time_point begun = Clock::now();
    RETURN_IF_ERROR(file.write_at(buffer_.get(), block_bytes_, block * block_bytes_));
    count(block_bytes_, begun);
  }
  if (fsync(file.fd()) != 0) return file.error("fsync");
  return {};
}

Status RankIo::write_whole(const std::string& folder, int64_t files, int64_t bytes, const Until& until) {
  if (mkdir(folder.c_str(), 0777) != 0 && errno != EEXIST) return tl::unexpected(errno_error(errno, "mkdir " + folder));
  for (int64_t number = 0; number < files && !is_over(until); ++number) {
    RETURN_IF_ERROR(write(file_of(folder, number), 0, bytes, true, until));
  }
  return {};
}

Status RankIo::read_whole(const std::string& folder, int64_t files, const Until& until) {
  for (const int64_t number : shuffled_files(folder, files)) {
    if (is_over(until)) break;
    RETURN_IF_ERROR(read(file_of(folder, number), until));
  }
  return {};
}

Status RankIo::read_random(const std::string& path, const Until& until) {
  const File file(path, O_RDONLY | (direct_ ? O_DIRECT : 0));
  RETURN_IF_ERROR(file.is_open());
  ASSIGN_OR_RETURN(const int64_t blocks, file.blocks(block_bytes_));
  while (!is_over(until)) {
    const auto block = static_cast<int64_t>(random_() % static_cast<uint64_t>(blocks));
    const Clock::time_point begun = Clock::now();
    ASSIGN_OR_RETURN(const int64_t got, file.read_at(buffer_.get(), block_bytes_, block * block_bytes_));
    count(got, begun);
  }
  return {};
}

Status RankIo::create_files(const std::string& folder, int64_t files, const Until& until) {
  if (mkdir(folder.c_str(), 0777) != 0 && errno != EEXIST) return tl::unexpected(errno_error(errno, "mkdir " + folder));
  for (int64_t number = 0; number < files && !is_over(until); ++number) {
    const Clock::time_point begun = Clock::now();
    const File file(file_of(folder, number), O_WRONLY | O_CREAT | O_TRUNC);
    RETURN_IF_ERROR(file.is_open());
    RETURN_IF_ERROR(file.write_at(buffer_.get(), block_bytes_, 0));
    count(block_bytes_, begun);
  }
  return {};
}

Status RankIo::stat_files(const std::string& folder, int64_t files, const Until& until) {
  for (int64_t number = 0; number < files && !is_over(until); ++number) {
    const std::string path = file_of(folder, number);
    const Clock::time_point begun = Clock::now();
    struct stat about{};
    if (stat(path.c_str(), &about) != 0) {
      if (errno == ENOENT) break;  // the time was up before it was made
      return tl::unexpected(errno_error(errno, "stat " + path));
    }
    count(0, begun);
  }
  return {};
}

std::vector<int64_t> RankIo::shuffled_files(const std::string& folder, int64_t files) {
  std::vector<int64_t> order;
  for (int64_t number = 0; number < files; ++number) {
    if (access(file_of(folder, number).c_str(), R_OK) != 0) break;
    order.push_back(number);
  }
  std::shuffle(order.begin(), order.end(), random_);
  return order;
}

Status RankIo::read_files(const std::string& folder, int64_t files, const Until& until) {
  for (const int64_t number : shuffled_files(folder, files)) {
    if (is_over(until)) break;
    const Clock::time_point begun = Clock::now();
    const File file(file_of(folder, number), O_RDONLY);
    RETURN_IF_ERROR(file.is_open());
    ASSIGN_OR_RETURN(const int64_t got, file.read_at(buffer_.get(), block_bytes_, 0));
    count(got, begun);
  }
  return {};
}

Status RankIo::unlink_files(const std::string& folder, int64_t files, const Until& until) {
  for (int64_t number = 0; number < files && !is_over(until); ++number) {
    const std::string path = file_of(folder, number);
    const Clock::time_point begun = Clock::now();
    if (unlink(path.c_str()) != 0) {
      if (errno == ENOENT) break;
      return tl::unexpected(errno_error(errno, "unlink " + path));
    }
    count(0, begun);
  }
  return {};
}

bool can_bypass_cache(const std::string& folder) {
  const std::string path = folder + "/direct";
  RankIo io(kAlignment, 1, true);
  const std::stop_token never;
  const bool can = io.write(path, 0, kAlignment, true, {Clock::time_point::max(), never}).has_value() &&
                   io.read(path, {Clock::time_point::max(), never}).has_value();
  unlink(path.c_str());
  return can;
}

double drop_cache(const std::string& path) {
  const File file(path, O_RDONLY);
  const auto size = file.fd() < 0 ? Result<int64_t>(0) : file.size();
  if (!size || *size == 0) return 0;
  posix_fadvise(file.fd(), 0, 0, POSIX_FADV_DONTNEED);
  // mincore asks without reading anything in.
  void* mapping = mmap(nullptr, static_cast<size_t>(*size), PROT_READ, MAP_SHARED, file.fd(), 0);
  if (mapping == MAP_FAILED) return 0;
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> pages((static_cast<size_t>(*size) + page - 1) / page);
  const bool known = mincore(mapping, static_cast<size_t>(*size), pages.data()) == 0;
  munmap(mapping, static_cast<size_t>(*size));
  const auto there = std::count_if(pages.begin(), pages.end(), [](unsigned char each) { return (each & 1) != 0; });
  return known ? std::min(static_cast<double>(there) * static_cast<double>(page), static_cast<double>(*size)) : 0;
}

}  // namespace millrace::bench
