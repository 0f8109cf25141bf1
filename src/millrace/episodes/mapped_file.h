// SPDX-License-Identifier: Apache-2.0
#pragma once

// A file of this machine, mapped for reading. Thread-safe; usable after fork. A file that another process truncates
// while it is mapped ends this one with SIGBUS when the lost part is read; files here are replaced by renaming.

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "millrace/base/status.h"

namespace millrace::episodes {

class MappedFile {
 public:
  // Errors: not_found, permission_denied, invalid_argument (a folder).
  [[nodiscard]] static Result<std::shared_ptr<const MappedFile>> open(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  explicit MappedFile(std::span<const std::byte> bytes) : bytes_(bytes) {}
  const std::span<const std::byte> bytes_;
};

// The path of a plain path or file:// URL. Errors: unsupported: only files of this machine can be mapped.
[[nodiscard]] Result<std::string> local_path(const std::string& url);

}  // namespace millrace::episodes
