// SPDX-License-Identifier: Apache-2.0
#pragma once

// The folders of a test on the file systems under test. The destructor removes them. If this process is killed, a
// child process notices that a pipe closes, and removes them. If both die, the next start or --clean removes them. Not
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

  const std::vector<std::string>& folders() const { return folders_; }  // one per parent
  // Removes the folders and says what could not be removed.
  [[nodiscard]] Status remove();

 private:
  Workplace() = default;
  [[nodiscard]] Status watch_over();

  std::vector<std::string> folders_;
  std::vector<int> locks_;
  int pipe_ = -1;
};

// Removes the folders in `parent` that a dead test left, and returns how many. Folders in use stay.
[[nodiscard]] Result<int> remove_left_folders(const std::string& parent);

}  // namespace millrace::bench
