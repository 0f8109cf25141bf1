// SPDX-License-Identifier: Apache-2.0
#pragma once

// A lease of fcntl(2). The kernel grants it only while no other process has the file open. A process that opens the
// file later waits until the lease is given back, for at most /proc/sys/fs/lease-break-time. Works for this user's
// files on local file systems. For one thread.

#include <string>

#include "millrace/storage/storage.h"

namespace millrace::link {

class FileLease {
 public:
  enum class Kind {
    kNoWriter,  // nobody has the file open or mapped for writing
    kNobody,    // nobody has it open or mapped at all
  };
  // `fd` must outlive the lease. With kNoWriter it must be open for reading only.
  FileLease(int fd, Kind kind);
  ~FileLease();
  FileLease(const FileLease&) = delete;
  FileLease& operator=(const FileLease&) = delete;

  bool is_held() const { return error_ == 0; }
  bool is_in_use() const;               // refused because somebody has it open; any other refusal says nothing
  int error() const { return error_; }  // an errno value; 0 while held

 private:
  const int fd_;
  int error_ = 0;
};

// Whether a new file was complete when it got its name by link(2), as local storage commits files (writer_commit.cpp).
enum class Committed {
  kNo,     // perhaps not: its last change may be a write, or the kernel does not report writers
  kInUse,  // committed by link(2), but a process still has it open for writing; it closes the file soon
  kYes,    // its last change is not a write, and nobody has it open for writing
};
[[nodiscard]] Committed how_committed(const std::string& path);

// Returns whether no process writes to the file, as far as the kernel reports, and it was last modified at least
// `quiet_s` ago.
[[nodiscard]] bool is_finished(const std::string& path, const ObjectInfo& listed, double quiet_s);

}  // namespace millrace::link
