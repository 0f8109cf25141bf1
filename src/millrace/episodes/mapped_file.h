// SPDX-License-Identifier: Apache-2.0
#pragma once

// A local file, mapped for reading. Thread-safe; usable after fork. If another process truncates the mapped file,
// reading the lost part ends this process with SIGBUS. Millrace therefore replaces files by renaming.

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

// Returns the path of a plain path or file:// URL. Errors: unsupported (a remote URL; only local files can be mapped).
[[nodiscard]] Result<std::string> local_path(const std::string& url);

}  // namespace millrace::episodes
