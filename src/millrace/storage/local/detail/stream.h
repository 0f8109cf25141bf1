// SPDX-License-Identifier: Apache-2.0
#pragma once

// Private to local/: moves large files that are read or written once and need not stay in memory. On disk file systems
// a piece bypasses the page cache (O_DIRECT). Elsewhere it goes through the cache and is dropped from it afterwards.
// Thread-safe.

#include <cstdint>
#include <optional>
#include <set>

#include "millrace/storage/local/detail/files.h"
#include "millrace/storage/local/detail/ring.h"
#include "millrace/storage/local/local.h"

namespace millrace::local {

// Decides how large pieces are moved.
class StreamPolicy {
 public:
  explicit StreamPolicy(LocalDirect mode) : mode_(mode) {}

  // The smallest object (written, or read once) that is streamed, and its smallest streamed piece.
  int64_t smallest_object_bytes(bool write) const;
  size_t smallest_piece_bytes() const;
  // Whether objects are streams even without OpenOptions::once.
  bool takes_all() const { return mode_ == LocalDirect::kAlways; }
  // Whether pieces bypass the page cache. `type` is statfs.f_type.
  bool is_direct(dev_t device, int64_t type);
  // Call when the file system refused a direct transfer that was aligned.
  void note_refusal(dev_t device);

 private:
  const LocalDirect mode_;
  Mutex mutex_;
  std::set<dev_t> refusing_ GUARDED_BY(mutex_);
};

// One open file as a stream. Moves as much as it can and returns how much. The caller moves the rest in the ordinary
// way, which also handles every error.
class Stream {
 public:
  // Streams the file at `path`, which is open as `fd`. Opens a second descriptor for O_DIRECT, if `path` is still the
  // same file. REQUIRES: `sys`, `policy` and `fd` outlive the stream.
  Stream(Syscalls& sys, StreamPolicy& policy, const std::string& path, const Fd& fd, bool write);

  size_t read(int64_t offset, std::span<std::byte> out) const;
  size_t write(int64_t offset, std::span<const std::byte> data) const;

  // Returns the whole piece as one transfer that bypasses the page cache, if the piece would bypass it.
  std::optional<Transfer> direct_transfer(int64_t offset, std::span<std::byte> memory, bool write) const;

 private:
  template <class Span, class Call>
  size_t move(Span bytes, Call&& call) const;
  bool is_cached(int64_t offset, size_t size) const;
  // Whether the piece, except its unaligned end, bypasses the page cache.
  bool goes_direct(int64_t offset, std::span<const std::byte> memory) const;
  size_t direct_write(int64_t offset, std::span<const std::byte> data) const;
  size_t buffered_read(int64_t offset, std::span<std::byte> out, bool cached) const;
  size_t buffered_write(int64_t offset, std::span<const std::byte> data) const;

  Syscalls& sys_;
  StreamPolicy& policy_;
  const Fd& fd_;
  Fd direct_;  // empty when O_DIRECT is not available
  dev_t device_ = 0;
  int64_t file_system_ = 0;  // statfs.f_type
};

}  // namespace millrace::local
