// SPDX-License-Identifier: Apache-2.0
#pragma once

// A file descriptor that is closed with its owner.

#include <unistd.h>

#include <utility>

namespace millrace {

class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  // Returns the descriptor; -1: none.
  int get() const { return fd_; }
  // Gives the descriptor up: the caller closes it, or leaves it open.
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_ = -1;
};

}  // namespace millrace
