// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cerrno>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "millrace/base/status.h"

namespace millrace::sync {

// Paths that wait for the end of a run, with the sizes of what lies there, in a file without a name. Not thread-safe.
class PathSpool {
 public:
  PathSpool() = default;
  PathSpool(const PathSpool&) = delete;
  PathSpool& operator=(const PathSpool&) = delete;
  ~PathSpool() {
    if (file_ != nullptr) std::fclose(file_);
  }
  [[nodiscard]] Status add(std::string_view path, int64_t size) {
    if (file_ == nullptr) file_ = std::tmpfile();
    const uint64_t length = path.size();
    const bool written = file_ != nullptr && std::fwrite(&length, sizeof length, 1, file_) == 1 &&
                         std::fwrite(&size, sizeof size, 1, file_) == 1 &&
                         std::fwrite(path.data(), 1, path.size(), file_) == path.size();
    if (!written) return tl::unexpected<Error>(errno_error(errno, "write a temporary file"));
    ++count_;
    return {};
  }
  int64_t count() const { return count_; }
  // Up to `limit` of what was added, from the first on; empty after the last. No more may be added.
  [[nodiscard]] Result<std::vector<std::pair<std::string, int64_t>>> take(size_t limit) {
    if (taken_ == 0 && file_ != nullptr) std::rewind(file_);
    std::vector<std::pair<std::string, int64_t>> taken;
    while (taken.size() < limit && taken_ < count_) {
      uint64_t length = 0;
      auto& [path, size] = taken.emplace_back();
      bool good = std::fread(&length, sizeof length, 1, file_) == 1 && std::fread(&size, sizeof size, 1, file_) == 1;
      path.resize(good ? length : 0);
      good = good && std::fread(path.data(), 1, path.size(), file_) == path.size();
      if (!good) return tl::unexpected<Error>(errno_error(errno, "read a temporary file"));
      ++taken_;
    }
    return taken;
  }

 private:
  std::FILE* file_ = nullptr;
  int64_t count_ = 0;
  int64_t taken_ = 0;
};

}  // namespace millrace::sync
