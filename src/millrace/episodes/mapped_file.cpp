// SPDX-License-Identifier: Apache-2.0
#include "millrace/episodes/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "millrace/base/io/descriptor.h"
#include "millrace/storage/local/local.h"

namespace millrace::episodes {
Result<std::shared_ptr<const MappedFile>> MappedFile::open(const std::string& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat info;
  if (file.get() < 0 || ::fstat(file.get(), &info) != 0) return tl::unexpected(errno_error(errno, "open " + path));
  if (!S_ISREG(info.st_mode)) return fail(ErrorCode::kInvalidArgument, "{}: not a file", path);
  RETURN_IF_ERROR(check_has_content(file.get(), path));
  const auto size = static_cast<size_t>(info.st_size);
  if (size == 0) return std::shared_ptr<const MappedFile>(new MappedFile({}));
  void* const memory = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file.get(), 0);
  if (memory == MAP_FAILED) return tl::unexpected(errno_error(errno, "map " + path));
  return std::shared_ptr<const MappedFile>(new MappedFile({static_cast<const std::byte*>(memory), size}));
}

MappedFile::~MappedFile() {
  // SAFETY: mapped for reading only; munmap takes no const pointer.
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

Result<std::string> local_path(const std::string& url) {
  if (url.starts_with("file://")) return url.substr(7);
  if (url.find("://") == std::string::npos) return url;
  return fail(ErrorCode::kUnsupported, "{}: only files of this machine can be mapped: copy it first (millrace cp)",
              url);
}

}  // namespace millrace::episodes
