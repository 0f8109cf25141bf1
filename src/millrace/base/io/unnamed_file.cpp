// SPDX-License-Identifier: Apache-2.0
#include "millrace/base/io/unnamed_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <utility>

namespace millrace {
namespace {

std::string temporary_folder() {
  const char* const folder = std::getenv("TMPDIR");
  return folder != nullptr && *folder != '\0' ? folder : "/tmp";
}

Error error_of(std::string_view purpose, std::string_view folder) {
  return errno_error(errno, fmt::format("keep {} in {}, which TMPDIR may change", purpose, folder));
}

Result<Descriptor> open_file(std::string_view purpose, const std::string& folder) {
  Descriptor file(::open(folder.c_str(), O_RDWR | O_TMPFILE | O_CLOEXEC, 0600));
  if (file.get() >= 0) return file;
  // Some file systems, NFS among them, make no file without a name.
  std::string path = folder + "/millrace-XXXXXX";
  file = Descriptor(::mkostemp(path.data(), O_CLOEXEC));
  if (file.get() < 0) return tl::unexpected(error_of(purpose, folder));
  ::unlink(path.c_str());
  return file;
}

// Moves all of `bytes` by pread or pwrite.
template <class Call, class Bytes>
bool move_all(Call call, int file, Bytes bytes, int64_t at) {
  while (!bytes.empty()) {
    const ssize_t moved = call(file, bytes.data(), bytes.size(), at);
    if (moved < 0 && errno == EINTR) continue;
    if (moved == 0) errno = EIO;  // the file is shorter than what was written
    if (moved <= 0) return false;
    at += moved;
    bytes = bytes.subspan(static_cast<size_t>(moved));
  }
  return true;
}

}  // namespace

Result<UnnamedFile> UnnamedFile::create(std::string purpose) {
  std::string folder = temporary_folder();
  ASSIGN_OR_RETURN(Descriptor file, open_file(purpose, folder));
  return UnnamedFile(std::move(file), std::move(purpose), std::move(folder));
}

Status UnnamedFile::write_at(int64_t offset, std::span<const std::byte> bytes) {
  if (move_all(::pwrite, file_.get(), bytes, offset)) return {};
  return tl::unexpected(error_of(purpose_, folder_));
}

Status UnnamedFile::read_at(int64_t offset, std::span<std::byte> out) const {
  if (move_all(::pread, file_.get(), out, offset)) return {};
  return tl::unexpected(errno_error(errno, fmt::format("read back {}, which is kept in {}", purpose_, folder_)));
}

Result<std::unique_ptr<std::FILE, CloseStream>> open_unnamed_stream(std::string_view purpose) {
  ASSIGN_OR_RETURN(Descriptor file, open_file(purpose, temporary_folder()));
  std::unique_ptr<std::FILE, CloseStream> stream(::fdopen(file.get(), "w+b"));
  if (!stream) return tl::unexpected(unnamed_stream_error(purpose));
  file.release();
  return stream;
}

Error unnamed_stream_error(std::string_view purpose) {
  return error_of(purpose, temporary_folder());
}

}  // namespace millrace
