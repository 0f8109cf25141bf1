// SPDX-License-Identifier: Apache-2.0
#pragma once

// Private to local/: large files that are read or written once, so that they need not stay in memory. A piece goes past
// the page cache (O_DIRECT), or through it and is dropped behind; which is faster is measured on each file system with
// the first pieces of real work, of those that are written with their first 2 MiB. Thread-safe.

#include <array>
#include <map>
#include <optional>
#include <utility>

#include "millrace/storage/local/detail/files.h"
#include "millrace/storage/local/detail/ring.h"
#include "millrace/storage/local/local.h"

namespace millrace::local {

// The way of one piece.
struct Turn {
  bool direct = false;
  bool measured = false;  // tell how it went
};

// What is known of each file system (by device, for reads and writes apart).
class StreamPolicy {
 public:
  explicit StreamPolicy(LocalDirect mode) : mode_(mode) {}

  // What is worth a way of its own: an object that is written, or read once, and a piece of it.
  int64_t smallest_object_bytes(bool write) const;
  size_t smallest_piece_bytes() const;
  // Objects are streams though nobody said that they are read once.
  bool takes_all() const { return mode_ == LocalDirect::kAlways; }
  Turn next(dev_t device, bool write);
  // Whether pieces go past the page cache and need not be measured any more.
  bool is_direct(dev_t device, bool write);
  void tell(dev_t device, bool write, bool direct, size_t bytes, double seconds);
  // It refuses direct transfers that are aligned as they should be.
  void refused(dev_t device, bool write);

 private:
  struct Way {
    int pieces = 0;  // that were measured
    double bytes = 0, seconds = 0;
    double rate() const { return bytes / seconds; }
  };
  struct Contest {
    std::array<Way, 2> ways;  // buffered, direct
    int begun = 0;
    std::optional<bool> direct;  // decided
  };

  const LocalDirect mode_;
  Mutex mutex_;
  std::map<std::pair<dev_t, bool>, Contest> contests_ GUARDED_BY(mutex_);
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
  size_t move(Span bytes, bool write, Call&& call) const;
  bool is_cached(int64_t offset, size_t size) const;
  // Whether it can go past the page cache, but for its end.
  bool may_be_direct(int64_t offset, std::span<const std::byte> memory) const;
  size_t direct_write(int64_t offset, std::span<const std::byte> data) const;
  size_t buffered_read(int64_t offset, std::span<std::byte> out, bool cached) const;
  size_t buffered_write(int64_t offset, std::span<const std::byte> data, bool wait) const;

  Syscalls& sys_;
  StreamPolicy& policy_;
  const Fd& fd_;
  Fd direct_;  // empty where it cannot be had
  dev_t device_ = 0;
};

}  // namespace millrace::local
