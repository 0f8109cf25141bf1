// SPDX-License-Identifier: Apache-2.0
#include "millrace/prepare/detail/standard_input.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <string>
#include <vector>

namespace millrace::prepare {

namespace {

constexpr std::string_view kName = "standard input";
constexpr size_t kPieceBytes = 1 << 20;
constexpr int kStopPollMs = 100;

class SpoolFile final : public RandomReader {
 public:
  explicit SpoolFile(int descriptor) : descriptor_(descriptor) {}
  ~SpoolFile() override { ::close(descriptor_); }
  SpoolFile(const SpoolFile&) = delete;
  SpoolFile& operator=(const SpoolFile&) = delete;

  std::string_view name() const override { return kName; }
  int64_t size() const override { return size_; }
  std::string_view version() const override { return {}; }

  [[nodiscard]] Status read_at(int64_t offset, std::span<std::byte> out) const override {
    if (offset + std::ssize(out) > size_) {
      return fail(ErrorCode::kOutOfRange, "read {}: {} bytes at {} are past its end at {}", kName, out.size(), offset,
                  size_);
    }
    while (!out.empty()) {
      const ssize_t done = ::pread(descriptor_, out.data(), out.size(), offset);
      if (done < 0 && errno == EINTR) continue;
      if (done <= 0) return tl::unexpected(errno_error(done < 0 ? errno : EIO, "read back standard input"));
      out = out.subspan(static_cast<size_t>(done));
      offset += done;
    }
    return {};
  }

  // Errors: the system's.
  [[nodiscard]] Status append(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t done = ::write(descriptor_, bytes.data(), bytes.size());
      if (done < 0 && errno == EINTR) continue;
      if (done < 0) return tl::unexpected(errno_error(errno, "keep standard input"));
      bytes = bytes.subspan(static_cast<size_t>(done));
      size_ += done;
    }
    return {};
  }

 private:
  const int descriptor_;
  int64_t size_ = 0;
};

std::string spool_folder() {
  const char* folder = std::getenv("TMPDIR");
  return folder != nullptr && *folder != '\0' ? folder : "/tmp";
}

Result<int> open_spool(const std::string& folder) {
  std::string name = folder + "/millrace-stdin-XXXXXX";
  const int descriptor = ::mkostemp(name.data(), O_CLOEXEC);
  if (descriptor < 0) return tl::unexpected(errno_error(errno, "keep standard input below " + folder));
  ::unlink(name.c_str());
  return descriptor;
}

// Empty at the end.
Result<size_t> read_piece(std::span<std::byte> piece, const std::stop_token& stop) {
  for (;;) {
    if (stop.stop_requested()) return fail(ErrorCode::kCancelled, "read {}: stopped", kName);
    pollfd waiting{STDIN_FILENO, POLLIN, 0};
    const int ready = ::poll(&waiting, 1, kStopPollMs);
    if (ready == 0 || (ready < 0 && errno == EINTR)) continue;
    const ssize_t size = ::read(STDIN_FILENO, piece.data(), piece.size());
    if (size >= 0) return static_cast<size_t>(size);
    if (errno != EINTR && errno != EAGAIN) return tl::unexpected(errno_error(errno, "read standard input"));
  }
}

}  // namespace

Result<SpooledInput> spool_standard_input(const std::stop_token& stop) {
  const std::string folder = spool_folder();
  ASSIGN_OR_RETURN(const int descriptor, open_spool(folder));
  const auto file = std::make_shared<SpoolFile>(descriptor);
  std::vector<std::byte> piece(kPieceBytes);
  Xxh3Stream hash;
  for (;;) {
    ASSIGN_OR_RETURN(const size_t size, read_piece(piece, stop));
    if (size == 0) break;
    const auto bytes = std::span(piece).first(size);
    hash.update(bytes);
    Status kept = file->append(bytes);
    if (!kept) {
      kept.error().add_context("after " + std::to_string(file->size()) + " bytes in " + folder +
                               "; TMPDIR names a folder with more room");
      return tl::unexpected(std::move(kept).error());
    }
  }
  return SpooledInput{file, hash.digest()};
}

}  // namespace millrace::prepare
