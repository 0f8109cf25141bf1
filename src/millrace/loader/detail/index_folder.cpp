// SPDX-License-Identifier: Apache-2.0
#include "millrace/loader/detail/index_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>

#include "millrace/base/hash/hash.h"
#include "millrace/base/thread/sync.h"
#include "millrace/loader/user_folder.h"
#include "millrace/storage/url.h"

namespace millrace::loader {

namespace {

constexpr int64_t kMostBytes = 256 << 20;  // of an index that is kept: ten million samples

// A lock that other processes see, until it is destroyed or its process ends.
class FileLock {
 public:
  // Waits. nullopt: it cannot be had, for another reason than that somebody holds it. Errors: cancelled.
  static Result<std::optional<int>> take(const std::string& path, const std::stop_token& stop) {
    constexpr std::chrono::milliseconds kNap(20);  // A choice: nothing beside the pass over a tar that is waited for
    const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) return std::nullopt;
    while (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
      const bool is_held = errno == EWOULDBLOCK || errno == EINTR;
      // Nothing else tells that a lock is free: a flock() that waits ends by a signal only.
      if (is_held && sleep_until(Clock::now() + kNap, stop)) continue;
      ::close(fd);
      if (!is_held) return std::nullopt;
      return fail(ErrorCode::kCancelled, "{}: stopped while another process builds this index", path);
    }
    return fd;
  }
  explicit FileLock(std::optional<int> fd) : fd_(fd) {}
  ~FileLock() {
    if (fd_) ::close(*fd_);
  }
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  const std::optional<int> fd_;
};

std::optional<formats::ShardIndex> stored(const Location& at, int64_t shard_size) {
  const auto file = read_object(*at.storage, at.key, kMostBytes);
  if (!file) return std::nullopt;
  auto index = formats::parse_shard_index(as_bytes(*file), at.url);
  // What is damaged is built again.
  if (!index || index->shard_size != shard_size) return std::nullopt;
  return std::move(*index);
}

}  // namespace

std::optional<std::filesystem::path> user_folder() {
  const char* const named = std::getenv("MILLRACE_INDEX_FOLDER");
  if (named != nullptr && *named == '\0') return std::nullopt;
  std::error_code failed;
  std::filesystem::path folder =
      named != nullptr ? std::filesystem::path(named)
                       : std::filesystem::temp_directory_path(failed) / fmt::format("millrace-indexes-{}", ::getuid());
  if (failed) return std::nullopt;
  std::filesystem::create_directories(folder.parent_path(), failed);
  ::mkdir(folder.c_str(), 0700);
  struct stat facts = {};
  // Through a link of somebody else, or into a folder of theirs, they could give us indexes.
  if (::lstat(folder.c_str(), &facts) != 0 || !S_ISDIR(facts.st_mode) || facts.st_uid != ::getuid() ||
      (facts.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return std::nullopt;
  }
  return folder;
}

std::optional<IndexFolder> IndexFolder::of_user() {
  auto folder = user_folder();
  return folder ? std::optional(IndexFolder(*std::move(folder))) : std::nullopt;
}

Result<formats::ShardIndex> IndexFolder::get(const std::string& key, int64_t shard_size, const std::stop_token& stop,
                                             const Build& build) const {
  const std::string path = (folder_ / (to_hex(xxh3_128(key)) + ".index")).string();
  const auto at = open_url(path);
  if (!at) return build();
  if (auto index = stored(*at, shard_size)) return std::move(*index);
  ASSIGN_OR_RETURN(const auto lock, FileLock::take(path + ".lock", stop));
  const FileLock held(lock);
  if (auto index = stored(*at, shard_size)) return std::move(*index);  // another process was first
  ASSIGN_OR_RETURN(formats::ShardIndex index, build());
  if (formats::shard_index_bytes(index.samples()) <= kMostBytes) {
    // Without room the next process builds it again.
    static_cast<void>(write_object(*at->storage, at->key, formats::serialize_shard_index(index)));
  }
  ::unlink((path + ".lock").c_str());
  return index;
}

}  // namespace millrace::loader
