// SPDX-License-Identifier: Apache-2.0
#include "millrace/base/io/standard_input.h"

#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>

namespace millrace {

Result<StandardInput> StandardInput::open(const std::stop_token& stop) {
  ASSIGN_OR_RETURN(auto descriptor, StopDescriptor::open(stop));
  return StandardInput(std::move(descriptor));
}

Result<size_t> StandardInput::read(std::span<std::byte> out) const {
  for (;;) {
    if (stop_->is_stopped()) return fail(ErrorCode::kCancelled, "read standard input: stopped");
    std::array<pollfd, 2> waiting{pollfd{STDIN_FILENO, POLLIN, 0}, pollfd{stop_->get(), POLLIN, 0}};
    if (::poll(waiting.data(), waiting.size(), -1) < 0 || waiting[0].revents == 0) continue;
    const ssize_t size = ::read(STDIN_FILENO, out.data(), out.size());
    if (size >= 0) return static_cast<size_t>(size);
    if (errno != EINTR && errno != EAGAIN) return tl::unexpected(errno_error(errno, "read standard input"));
  }
}

}  // namespace millrace
