// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>

#include <algorithm>
#include <utility>

#include "millrace/storage/detail/backend.h"
#include "millrace/storage/local/detail/objects.h"

namespace millrace::local {
namespace {

// Some places of a file tell whether it is cached; to ask for all of 100 GB takes a second.
constexpr int64_t kLooks = 16;
constexpr int64_t kLookBytes = 1 << 20;

// More than that is copied out of the page cache by several threads faster than by those few that have rings.
constexpr size_t kLargestCopied = 256 << 10;

}  // namespace

Result<std::unique_ptr<RandomReader>> LocalReader::open(std::shared_ptr<const Context> context, std::string_view key,
                                                        const OpenOptions& options) {
  ASSIGN_OR_RETURN(std::string path, path_of(*context, key));
  // O_NONBLOCK: opening a pipe must not wait for its other end.
  ASSIGN_OR_RETURN(Fd fd, open_fd(*context->sys, path, O_RDONLY | O_NONBLOCK));
  ASSIGN_OR_RETURN(const auto info, stat_fd(*context->sys, fd, path));
  RETURN_IF_ERROR(check_is_file(info, path));
  wait_in_calls(fd, 0);
  if (!options.expected_version.empty() && options.expected_version != version_of(info)) {
    return fail(ErrorCode::kCorruption, "open {}: version {}, not {} as expected", path, version_of(info),
                options.expected_version);
  }
  return std::unique_ptr<RandomReader>(
      new LocalReader(std::move(context), std::move(path), std::move(fd), info, options.once));
}

LocalReader::LocalReader(std::shared_ptr<const Context> context, std::string path, Fd fd, const struct stat& opened,
                         bool once)
    : context_(std::move(context)),
      path_(std::move(path)),
      fd_(std::move(fd)),
      opened_(opened),
      version_(version_of(opened)) {
  StreamPolicy& policy = *context_->streams;
  const bool is_large = opened_.st_size >= policy.smallest_object_bytes(false);
  if ((once || policy.takes_all()) && is_large) stream_.emplace(*context_->sys, policy, path_, fd_, false);
}

Status LocalReader::read_at(int64_t offset, std::span<std::byte> out) const {
  RETURN_IF_ERROR(check_read_range(*this, offset, std::ssize(out)));
  const size_t streamed = stream_ ? stream_->read(offset, out) : 0;
  RETURN_IF_ERROR(
      pread_all(*context_->sys, fd_, path_, offset + static_cast<int64_t>(streamed), out.subspan(streamed)));
  return check_unchanged();
}

std::optional<Transfer> LocalReader::transfer(int64_t offset, std::span<std::byte> out) const {
  if (out.empty() || !check_read_range(*this, offset, std::ssize(out))) return {};
  if (stream_) return stream_->direct_transfer(offset, out, false);
  if (out.size() > kLargestCopied) return {};
  return Transfer{.fd = fd_.get(), .offset = offset, .memory = out};
}

// What was in memory before stays there: somebody uses it.
class LocalReader::CachedRange final : public FileRange {
 public:
  CachedRange(const LocalReader& reader, int64_t offset, int64_t size)
      : reader_(reader),
        offset_(offset),
        size_(size),
        stays_(size == 0 || sys().cached_bytes(descriptor(), offset, size) > size / 2) {
    if (!stays_) static_cast<void>(sys().fadvise(descriptor(), offset_, size_, POSIX_FADV_WILLNEED));
  }
  ~CachedRange() override {
    if (!stays_) static_cast<void>(sys().fadvise(descriptor(), offset_, size_, POSIX_FADV_DONTNEED));
  }

  int descriptor() const override { return reader_.fd_.get(); }
  int64_t offset() const override { return offset_; }
  int64_t size() const override { return size_; }
  [[nodiscard]] Status check_unchanged() const override { return reader_.check_unchanged(); }

 private:
  Syscalls& sys() const { return *reader_.context_->sys; }

  const LocalReader& reader_;
  const int64_t offset_, size_;
  const bool stays_;
};

bool LocalReader::is_cached() const {
  if (context_->streams->takes_all()) return false;
  const int64_t step = std::max<int64_t>(1, size() / kLooks);
  const int64_t look = std::min(step, kLookBytes);
  int64_t looked = 0, cached = 0;
  for (int64_t at = 0; at + look <= size(); at += step) {
    looked += look;
    cached += context_->sys->cached_bytes(fd_.get(), at, look);
  }
  return cached > looked / 2;
}

std::unique_ptr<FileRange> LocalReader::file_range(int64_t offset, int64_t size) const {
  return std::make_unique<CachedRange>(*this, offset, size);
}

Status LocalReader::check_unchanged() const {
  ASSIGN_OR_RETURN(const auto now, stat_fd(*context_->sys, fd_, path_));
  if (now.st_size == opened_.st_size && mtime_ns(now) == mtime_ns(opened_)) return {};
  return fail(ErrorCode::kCorruption, "read {}: changed while reading: version {} became {}", path_, version_,
              version_of(now));
}

}  // namespace millrace::local
