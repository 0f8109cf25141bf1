// SPDX-License-Identifier: Apache-2.0
#include "millrace/sync/detail/spooled_part.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <utility>

#include "millrace/sync/transfer.h"

namespace millrace::sync {
namespace {

class SpooledPart final : public FileRange {
 public:
  static Result<std::unique_ptr<SpooledPart>> make(int64_t size) {
    std::error_code error;
    const auto folder = std::filesystem::temp_directory_path(error);
    if (error) return tl::unexpected(errno_error(error.value(), "find the folder for temporary files"));
    std::string path = (folder / "millrace-part-XXXXXX").string();
    const int descriptor = ::mkostemp(path.data(), O_CLOEXEC);
    if (descriptor < 0) return tl::unexpected(errno_error(errno, "make " + path));
    ::unlink(path.c_str());
    return std::unique_ptr<SpooledPart>(new SpooledPart(descriptor, size, folder.string()));
  }
  SpooledPart(const SpooledPart&) = delete;
  SpooledPart& operator=(const SpooledPart&) = delete;
  ~SpooledPart() override { ::close(descriptor_); }

  [[nodiscard]] Status write_at(int64_t offset, std::span<const std::byte> data) {
    while (!data.empty()) {
      const ssize_t put = ::pwrite(descriptor_, data.data(), data.size(), offset);
      if (put < 0 && errno == EINTR) continue;
      if (put < 0) {
        return tl::unexpected(
            errno_error(errno, fmt::format("keep a part of {} bytes in {}, which TMPDIR may change", size_, folder_)));
      }
      offset += put;
      data = data.subspan(static_cast<size_t>(put));
    }
    return {};
  }

  int descriptor() const override { return descriptor_; }
  int64_t offset() const override { return 0; }
  int64_t size() const override { return size_; }
  [[nodiscard]] Status check_unchanged() const override { return {}; }  // no other process knows of it

 private:
  SpooledPart(int descriptor, int64_t size, std::string folder)
      : descriptor_(descriptor), size_(size), folder_(std::move(folder)) {}

  const int descriptor_;
  const int64_t size_;
  const std::string folder_;
};

}  // namespace

Result<std::unique_ptr<FileRange>> spool_part(Storage& storage, const RandomReader& source, int64_t offset,
                                              int64_t size, std::span<std::byte> memory, BufferPool& buffers,
                                              const std::stop_token& stop) {
  struct Piece {
    Buffer buffer;  // empty: it lies in `memory`
    std::span<std::byte> content;
  };
  ASSIGN_OR_RETURN(auto part, SpooledPart::make(size));
  CompletionQueue queue;
  std::map<int64_t, Piece> under_way;  // by their place in the part
  bool memory_is_free = true;
  Status status;
  for (int64_t next = 0;;) {
    while (status && next < size) {
      const auto bytes = static_cast<size_t>(std::min(std::ssize(memory), size - next));
      Piece piece;
      if (std::exchange(memory_is_free, false)) {
        piece.content = memory.first(bytes);
      } else {
        auto buffer = buffers.try_acquire(bytes);
        if (!buffer) status = tl::unexpected<Error>(buffer.error());
        if (!buffer || !*buffer) break;
        piece.buffer = *std::move(buffer);
        piece.content = piece.buffer.span();
      }
      const Operation read{.tag = static_cast<uint64_t>(next),
                           .what = Operation::Read{&source, offset + next, piece.content},
                           .stop = stop};
      under_way[next] = std::move(piece);
      storage.submit(std::span(&read, 1), queue);
      next += static_cast<int64_t>(bytes);
    }
    if (under_way.empty()) break;
    Completion done = queue.wait();
    const auto ended = under_way.find(static_cast<int64_t>(done.tag));
    if (status) status = std::move(done.status);
    if (status) status = part->write_at(ended->first, ended->second.content);
    memory_is_free = memory_is_free || !ended->second.buffer;
    under_way.erase(ended);
  }
  RETURN_IF_ERROR(std::move(status));
  return part;
}

}  // namespace millrace::sync
