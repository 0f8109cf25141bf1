// SPDX-License-Identifier: Apache-2.0
#pragma once

// Folders that a test makes on the file systems under test, and that are removed whatever happens: by the destructor;
// by a child process that holds a pipe when this one is killed; by the next start, or --clean, when both died. Not
// thread-safe.

#include <string>
#include <vector>

#include "millrace/base/status.h"

namespace millrace::bench {

class Workplace {
 public:
  // Makes one folder in each of `parents`, which must exist. Errors: not_found, those of mkdir.
  [[nodiscard]] static Result<Workplace> make(const std::vector<std::string>& parents);
  ~Workplace();
  Workplace(Workplace&& other) noexcept;
  Workplace& operator=(Workplace&&) = delete;

  const std::vector<std::string>& folders() const { return folders_; }  // one a parent
  // Removes the folders and says what could not be removed.
  [[nodiscard]] Status remove();

 private:
  Workplace() = default;
  [[nodiscard]] Status watch_over();

  std::vector<std::string> folders_;
  std::vector<int> locks_;
  int pipe_ = -1;
};

// Removes folders in `parent` that a dead test left; those in use stay. The number of removed ones.
[[nodiscard]] Result<int> remove_left_folders(const std::string& parent);

}  // namespace millrace::bench
