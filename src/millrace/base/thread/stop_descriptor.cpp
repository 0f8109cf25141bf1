// SPDX-License-Identifier: Apache-2.0
#include "millrace/base/thread/stop_descriptor.h"

#include <sys/eventfd.h>

#include <cerrno>

namespace millrace {

void StopDescriptor::Signal::operator()() const {
  // Fails only when the event is readable already.
  static_cast<void>(::eventfd_write(event, 1));
}

Result<std::unique_ptr<StopDescriptor>> StopDescriptor::open(const std::stop_token& stop) {
  Descriptor event(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (event.get() < 0) return tl::unexpected(errno_error(errno, "make an event to wait for a stop"));
  return std::unique_ptr<StopDescriptor>(new StopDescriptor(std::move(event), stop));
}

}  // namespace millrace
