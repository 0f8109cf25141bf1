// SPDX-License-Identifier: Apache-2.0
#pragma once

// Reads new lines of a growing log file. For one thread.

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
    std::string text;          // whole lines; with `to_the_end` also an unfinished last line
    bool began_again = false;  // the file was emptied or replaced, as a requeue without --open-mode=append does
    bool more = false;         // true: call again, because one call returns at most 1 MiB
  };
  // Returns the lines added since the last call; none if the file is missing. Errors: those of open and read.
  [[nodiscard]] Result<News> read(bool to_the_end);

 private:
  std::string path_, rest_;
  int64_t offset_ = 0;
  ino_t inode_ = 0;
};

// Puts a label before each line of `text`: "[12_3] epoch 1". Each line then ends in a newline.
std::string with_label(const std::string& text, const std::string& label);

}  // namespace millrace::jobs
