// SPDX-License-Identifier: Apache-2.0
#include "millrace/base/io/file_text.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "millrace/base/io/descriptor.h"

namespace millrace {

std::optional<std::string> read_text(const std::filesystem::path& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) return std::nullopt;
  std::string text;
  char piece[16384];
  for (;;) {
    const ssize_t got = ::read(file.get(), piece, sizeof(piece));
    if (got == 0) return text;
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return std::nullopt;
    text.append(piece, static_cast<size_t>(got));
  }
}

}  // namespace millrace
