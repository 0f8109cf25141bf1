// SPDX-License-Identifier: Apache-2.0
#pragma once

// Private to local/: large files that are read or written once, so that they need not stay in memory. A piece goes past
// the page cache (O_DIRECT) on the file systems of disks, and through it elsewhere, after which it is dropped from the
// cache. Thread-safe.

#include <cstdint>
#include <optional>
#include <set>

#include "millrace/storage/local/detail/files.h"
#include "millrace/storage/local/detail/ring.h"
#include "millrace/storage/local/local.h"

namespace millrace::local {

// Which way large pieces go.
class StreamPolicy {
 public:
  explicit StreamPolicy(LocalDirect mode) : mode_(mode) {}

  // The smallest object (written, or read once) and the smallest piece of it that are streamed.
  int64_t smallest_object_bytes(bool write) const;
  size_t smallest_piece_bytes() const;
  // Objects are streams though nobody said that they are read once.
  bool takes_all() const { return mode_ == LocalDirect::kAlways; }
  // Whether pieces go past the page cache. `type` is statfs.f_type.
  bool is_direct(dev_t device, int64_t type);
  // It refuses direct transfers that are aligned as they should be.
  void note_refusal(dev_t device);

 private:
  const LocalDirect mode_;
  Mutex mutex_;
  std::set<dev_t> refusing_ GUARDED_BY(mutex_);
};

// One open file as a stream. Moves what it can and answers how much; the rest, and every error, is left to the caller,
// who does it in the ordinary way.
class Stream {
 public:
  // Of the file at `path` that is open as `fd`: another descriptor for O_DIRECT, where that is the same file. REQUIRES:
  // `sys`, `policy` and `fd` outlive the stream.
  Stream(Syscalls& sys, StreamPolicy& policy, const std::string& path, const Fd& fd, bool write);

  size_t read(int64_t offset, std::span<std::byte> out) const;
  size_t write(int64_t offset, std::span<const std::byte> data) const;

  // The whole piece as one transfer past the page cache, where it would go there.
  std::optional<Transfer> direct_transfer(int64_t offset, std::span<std::byte> memory, bool write) const;

 private:
  template <class Span, class Call>
  size_t move(Span bytes, Call&& call) const;
  bool is_cached(int64_t offset, size_t size) const;
  // Whether the piece goes past the page cache, but for its end.
  bool goes_direct(int64_t offset, std::span<const std::byte> memory) const;
  size_t direct_write(int64_t offset, std::span<const std::byte> data) const;
  size_t buffered_read(int64_t offset, std::span<std::byte> out, bool cached) const;
  size_t buffered_write(int64_t offset, std::span<const std::byte> data) const;

  Syscalls& sys_;
  StreamPolicy& policy_;
  const Fd& fd_;
  Fd direct_;  // empty where it cannot be had
  dev_t device_ = 0;
  int64_t file_system_ = 0;  // statfs.f_type
};

}  // namespace millrace::local
