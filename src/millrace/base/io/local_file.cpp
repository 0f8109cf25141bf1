// SPDX-License-Identifier: Apache-2.0
#include "millrace/base/io/local_file.h"

#include <unistd.h>

#include <cerrno>

namespace millrace {

Status FileRange::read_at(int64_t at, std::span<std::byte> out) const {
  for (size_t done = 0; done < out.size();) {
    const ssize_t got =
        ::pread(descriptor(), out.data() + done, out.size() - done, offset() + at + static_cast<int64_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return tl::unexpected(errno_error(errno, "read a file that is written"));
    if (got == 0) return fail(ErrorCode::kCorruption, "a file became shorter while it was written");
    done += static_cast<size_t>(got);
  }
  return {};
}

}  // namespace millrace
