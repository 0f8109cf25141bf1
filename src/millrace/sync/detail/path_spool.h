// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "millrace/base/io/unnamed_file.h"
#include "millrace/sync/record.h"

namespace millrace::sync {

// Stores paths until the end of a run in an unnamed file, each with size and version. Not thread-safe.
class PathSpool {
 public:
  struct Item {
    std::string path;
    int64_t size = 0;
    RecordedVersion version;
  };
  PathSpool() = default;
  PathSpool(const PathSpool&) = delete;
  PathSpool& operator=(const PathSpool&) = delete;
  [[nodiscard]] Status add(const Item& item) {
    if (!file_) {
      ASSIGN_OR_RETURN(file_, open_unnamed_stream(kPurpose));
    }
    const bool written = write_text(item.path) && write_number(item.size) && write_text(item.version.version) &&
                         write_number(item.version.changed_ns);
    if (!written) return tl::unexpected(unnamed_stream_error(kPurpose));
    ++count_;
    return {};
  }
  int64_t count() const { return count_; }
  // Returns the next items, at most `limit`, in the order in which they were added; empty after the last item. After
  // the first call, no more items may be added.
  [[nodiscard]] Result<std::vector<Item>> take(size_t limit) {
    if (taken_ == 0 && file_) std::rewind(file_.get());
    std::vector<Item> taken;
    while (taken.size() < limit && taken_ < count_) {
      Item& item = taken.emplace_back();
      const bool good = read_text(item.path) && read_number(item.size) && read_text(item.version.version) &&
                        read_number(item.version.changed_ns);
      if (!good) return tl::unexpected(unnamed_stream_error(kPurpose));
      ++taken_;
    }
    return taken;
  }

 private:
  static constexpr std::string_view kPurpose = "the list of paths";
  bool write_number(int64_t number) { return std::fwrite(&number, sizeof number, 1, file_.get()) == 1; }
  bool write_text(std::string_view text) {
    return write_number(static_cast<int64_t>(text.size())) &&
           std::fwrite(text.data(), 1, text.size(), file_.get()) == text.size();
  }
  bool read_number(int64_t& number) { return std::fread(&number, sizeof number, 1, file_.get()) == 1; }
  bool read_text(std::string& text) {
    int64_t size = 0;
    if (!read_number(size)) return false;
    text.resize(static_cast<size_t>(size));
    return std::fread(text.data(), 1, text.size(), file_.get()) == text.size();
  }

  std::unique_ptr<std::FILE, CloseStream> file_;
  int64_t count_ = 0;
  int64_t taken_ = 0;
};

}  // namespace millrace::sync
