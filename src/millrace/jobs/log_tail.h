// SPDX-License-Identifier: Apache-2.0
#pragma once

// Reads what a growing log file gets, line by line. For one thread.

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "millrace/base/status.h"

namespace millrace::jobs {

class LogTail {
 public:
  explicit LogTail(std::string path) : path_(std::move(path)) {}

  const std::string& path() const { return path_; }

  struct News {
    std::string text;          // whole lines; with `to_the_end` also the rest
    bool began_again = false;  // the file was emptied or replaced, as a requeue without --open-mode=append does
    bool more = false;         // call again: at most 1 MiB comes at once
  };
  // The lines added since the last call. Nothing new where the file is missing. Errors: those of open and read.
  [[nodiscard]] Result<News> read(bool to_the_end);

 private:
  std::string path_, rest_;
  int64_t offset_ = 0;
  ino_t inode_ = 0;
};

// `text` with a label before each line: "[12_3] epoch 1". Lines end in a newline afterwards.
std::string with_label(const std::string& text, const std::string& label);

}  // namespace millrace::jobs
