// SPDX-License-Identifier: Apache-2.0
#include "millrace/jobs/log_tail.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "millrace/base/io/descriptor.h"

namespace millrace::jobs {

namespace {

constexpr size_t kMostAtOnce = 1 << 20;

Result<std::string> read_from(int fd, int64_t offset, const std::string& path) {
  std::string bytes(kMostAtOnce, '\0');
  ssize_t got = 0;
  do {
    got = ::pread(fd, bytes.data(), bytes.size(), offset);
  } while (got < 0 && errno == EINTR);
  if (got < 0) return tl::unexpected(errno_error(errno, "read " + path));
  bytes.resize(static_cast<size_t>(got));
  return bytes;
}

}  // namespace

Result<LogTail::News> LogTail::read(bool to_the_end) {
  News news;
  const Descriptor file(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0 && errno == ENOENT) return news;
  struct stat status{};
  if (file.get() < 0 || ::fstat(file.get(), &status) != 0) return tl::unexpected(errno_error(errno, "open " + path_));
  if ((inode_ != 0 && status.st_ino != inode_) || status.st_size < offset_) {
    news.began_again = true;
    news.text = rest_.empty() ? "" : rest_ + "\n";
    rest_.clear();
    offset_ = 0;
  }
  inode_ = status.st_ino;
  ASSIGN_OR_RETURN(const std::string bytes, read_from(file.get(), offset_, path_));
  offset_ += static_cast<int64_t>(bytes.size());
  news.more = bytes.size() == kMostAtOnce;
  rest_ += bytes;
  size_t whole = rest_.rfind('\n') + 1;  // 0 without a newline
  // A line of a mebibyte is not held back.
  if ((to_the_end && !news.more) || rest_.size() - whole > kMostAtOnce) whole = rest_.size();
  news.text += rest_.substr(0, whole);
  rest_.erase(0, whole);
  return news;
}

std::string with_label(const std::string& text, const std::string& label) {
  std::string labelled;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    labelled += "[" + label + "] " + text.substr(at, end - at) + "\n";
    at = end + 1;
  }
  return labelled;
}

}  // namespace millrace::jobs
