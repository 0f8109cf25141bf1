// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "millrace/storage/detail/backend.h"
#include "millrace/storage/local/detail/objects.h"
#include "millrace/storage/local/local.h"
#include "millrace/storage/local/stub_mode.h"

namespace millrace::local {
namespace {

StubOpener& stub_opener() {
  static auto* const opener = new StubOpener;  // threads may read until the process is gone
  return *opener;
}

StubMode& stub_mode_hook() {
  static auto* const mode = new StubMode;
  return *mode;
}

thread_local int own_content_scopes = 0;

bool may_be_stub(const struct stat& info) {
  return S_ISREG(info.st_mode) && (info.st_mode & ~S_IFMT) == 0 && info.st_size > 0;
}

// Root reads it where no guardian lets the open wait: on another node, or before the guardian has begun.
bool is_guarded_stub(int fd, const struct stat& info) {
  static const bool is_root = ::geteuid() == 0;
  std::array<char, 256> text;
  const ssize_t got = is_root ? ::fgetxattr(fd, kGuardedStubAttribute, text.data(), text.size()) : -1;
  const std::string inode = std::to_string(info.st_ino) + " ";
  return got > 0 && std::string_view(text.data(), static_cast<size_t>(got)).starts_with(inode);
}

bool has_content(int fd, const struct stat& info) {
  if (is_guarded_stub(fd, info)) return false;
  return !may_be_stub(info) || ::fgetxattr(fd, kStubAttribute, nullptr, 0) < 0;
}

// The content of a stub, under the name and version of the file.
class StubReader final : public RandomReader {
 public:
  StubReader(std::string path, std::string version, std::unique_ptr<RandomReader> content)
      : path_(std::move(path)), version_(std::move(version)), content_(std::move(content)) {}
  std::string_view name() const override { return path_; }
  int64_t size() const override { return content_->size(); }
  std::string_view version() const override { return version_; }
  [[nodiscard]] Status read_at(int64_t offset, std::span<std::byte> out) const override {
    return content_->read_at(offset, out);
  }

 private:
  const std::string path_, version_;
  const std::unique_ptr<RandomReader> content_;
};

// `refused`: what opening the file itself said; ok where it would read zeros.
Result<std::unique_ptr<RandomReader>> open_stub(std::string path, const struct stat& info, const OpenOptions& options,
                                                const Status& refused) {
  std::string reason = "this program cannot read it there";
  if (stub_opener() && own_content_scopes == 0) {
    auto content = stub_opener()(path, object_info(path, info));
    if (content && (*content)->size() == info.st_size) {
      std::string version = version_of(info);
      if (!options.expected_version.empty() && options.expected_version != version) {
        return fail(ErrorCode::kCorruption, "open {}: version {}, not {} as expected", path, version,
                    options.expected_version);
      }
      return std::make_unique<StubReader>(std::move(path), std::move(version), *std::move(content));
    }
    const bool is_none = !content && content.error().code() == ErrorCode::kNotFound;
    if (is_none && !refused) return tl::unexpected<Error>(refused.error());
    reason = content ? "the object has another size" : content.error().to_string();
  } else if (!refused && stub_opener() && info.st_blocks * 512 < info.st_size) {
    // Under the code of the refusal, which a copy over this file passes over.
    return fail(
        refused.error().code(),
        "{}: Permission denied: it has mode 0000 and no content here, as a released file of a link; `millrace link "
        "restore {}` brings it",
        path, path);
  } else if (!refused) {
    return tl::unexpected<Error>(refused.error());
  }
  return fail(ErrorCode::kUnavailable,
              "{}: its content is only in the bucket of its link ({}); `millrace link restore {}` brings it", path,
              reason, path);
}

// Samples 16 places of 1 MiB to tell whether a file is cached: to ask for all of 100 GB takes a second.
constexpr int64_t kLooks = 16;
constexpr int64_t kLookBytes = 1 << 20;

// Larger pieces are copied out of the page cache faster by the executor's threads than by the few threads with rings:
// at 64 KiB the two are level (docs/benchmarks.md).
constexpr size_t kLargestCopied = 256 << 10;

}  // namespace

Result<std::unique_ptr<RandomReader>> LocalReader::open(std::shared_ptr<const Context> context, std::string_view key,
                                                        const OpenOptions& options) {
  ASSIGN_OR_RETURN(std::string path, path_of(*context, key));
  // O_NONBLOCK: opening a pipe must not wait for the other end.
  auto opened = open_fd(*context->sys, path, O_RDONLY | O_NONBLOCK);
  if (!opened && opened.error().code() == ErrorCode::kPermissionDenied) {
    const auto info = stat_path(*context->sys, path);
    const Status refused = tl::unexpected<Error>(opened.error());
    if (info && may_be_stub(*info)) return open_stub(std::move(path), *info, options, refused);
  }
  if (!opened) return tl::unexpected<Error>(std::move(opened).error());
  Fd fd = *std::move(opened);
  ASSIGN_OR_RETURN(const auto info, stat_fd(*context->sys, fd, path));
  RETURN_IF_ERROR(check_is_file(info, path));
  if (!has_content(fd.get(), info)) return open_stub(std::move(path), info, options, {});
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

// Pages that were cached before stay cached: another program uses them.
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
  if (now.st_size == opened_.st_size && FileTime(now.st_mtim) == FileTime(opened_.st_mtim)) return {};
  return fail(ErrorCode::kCorruption, "read {}: changed while reading: version {} became {}", path_, version_,
              version_of(now));
}

}  // namespace millrace::local

namespace millrace {

OwnContentScope::OwnContentScope() {
  ++local::own_content_scopes;
}
OwnContentScope::~OwnContentScope() {
  --local::own_content_scopes;
}

void set_stub_opener(StubOpener opener) {
  local::stub_opener() = std::move(opener);
}

void set_stub_mode(StubMode mode) {
  local::stub_mode_hook() = std::move(mode);
}
std::optional<uint32_t> stub_mode(const ObjectInfo& file) {
  const StubMode& mode = local::stub_mode_hook();
  return mode ? mode("/" + file.key, file) : std::nullopt;
}

std::string local_version(const struct stat& info) {
  return local::version_of(info);
}

Status check_has_content(int fd, const std::string& path) {
  struct stat info{};
  if (::fstat(fd, &info) != 0 || local::has_content(fd, info)) return {};
  return fail(ErrorCode::kUnavailable,
              "{}: its content is only in the bucket of its link; `millrace link restore {}` brings it", path, path);
}

}  // namespace millrace
