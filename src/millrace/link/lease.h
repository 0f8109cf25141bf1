// SPDX-License-Identifier: Apache-2.0
#pragma once

// A lease of fcntl(2): the kernel grants it while no other process has the file open, and lets one that opens it
// meanwhile wait until it is given back, for at most /proc/sys/fs/lease-break-time. For files of this user on local
// file systems. For one thread.

#include <string>

#include "millrace/storage/storage.h"

namespace millrace::link {

class FileLease {
 public:
  enum class Kind {
    kNoWriter,  // nobody has the file open for writing, or mapped so
    kNobody,    // nobody has it open or mapped at all
  };
  // `fd` outlives this; it is open for reading only with kNoWriter.
  FileLease(int fd, Kind kind);
  ~FileLease();
  FileLease(const FileLease&) = delete;
  FileLease& operator=(const FileLease&) = delete;

  bool is_held() const { return error_ == 0; }
  bool is_in_use() const;               // refused because somebody has it open; any other refusal says nothing
  int error() const { return error_; }  // of errno; 0 while held

 private:
  const int fd_;
  int error_ = 0;
};

// Whether a new file got its name when it was whole, by link(2), as local storage commits one (writer_commit.cpp).
enum class Committed {
  kNo,     // perhaps not: its last change may be a write, or the kernel does not tell of writers
  kInUse,  // committed by link(2), but a process still has it open for writing; it closes the file soon
  kYes,    // its last change is no write, and nobody has it open for writing
};
[[nodiscard]] Committed how_committed(const std::string& path);

// Whether no process writes to the file, as far as the kernel tells; `quiet_s` since it was modified.
[[nodiscard]] bool is_finished(const std::string& path, const ObjectInfo& listed, double quiet_s);

}  // namespace millrace::link
