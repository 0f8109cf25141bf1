// SPDX-License-Identifier: Apache-2.0
#include "millrace/prepare/detail/standard_input.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <utility>
#include <vector>

#include "millrace/base/io/unnamed_file.h"
#include "millrace/base/text/units.h"

namespace millrace::prepare {

namespace {

constexpr std::string_view kName = "standard input";
constexpr size_t kPieceBytes = 1 << 20;
constexpr int kStopPollMs = 100;

class SpoolFile final : public RandomReader {
 public:
  explicit SpoolFile(UnnamedFile file) : file_(std::move(file)) {}

  std::string_view name() const override { return kName; }
  int64_t size() const override { return size_; }
  std::string_view version() const override { return {}; }

  [[nodiscard]] Status read_at(int64_t offset, std::span<std::byte> out) const override {
    if (offset + std::ssize(out) > size_) {
      return fail(ErrorCode::kOutOfRange, "read {}: {} bytes at {} are past its end at {}", kName, out.size(), offset,
                  size_);
    }
    return file_.read_at(offset, out);
  }

  // Errors: those of UnnamedFile.
  [[nodiscard]] Status append(std::span<const std::byte> bytes) {
    RETURN_IF_ERROR(file_.write_at(size_, bytes));
    size_ += std::ssize(bytes);
    return {};
  }

 private:
  UnnamedFile file_;
  int64_t size_ = 0;
};

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
  ASSIGN_OR_RETURN(UnnamedFile made, UnnamedFile::create(std::string(kName)));
  const auto file = std::make_shared<SpoolFile>(std::move(made));
  std::vector<std::byte> piece(kPieceBytes);
  Xxh3Stream hash;
  for (;;) {
    ASSIGN_OR_RETURN(const size_t size, read_piece(piece, stop));
    if (size == 0) break;
    const auto bytes = std::span(piece).first(size);
    hash.update(bytes);
    RETURN_IF_ERROR(
        with_context(file->append(bytes), fmt::format("after {} of standard input", format_bytes(file->size()))));
  }
  return SpooledInput{file, hash.digest()};
}

}  // namespace millrace::prepare
