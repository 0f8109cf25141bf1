// SPDX-License-Identifier: Apache-2.0
#pragma once

// Temporary files without a name, in the folder that TMPDIR names, else in /tmp. The system frees a file when it is
// closed, even after a kill.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "millrace/base/io/descriptor.h"
#include "millrace/base/status.h"

namespace millrace {

// Several threads may read at once. A write must run alone.
class UnnamedFile {
 public:
  // `purpose` names the content in messages: "standard input". Errors: those of the file system, naming the folder and
  // TMPDIR.
  [[nodiscard]] static Result<UnnamedFile> create(std::string purpose);

  // Writes all of `bytes`, also past the end of the file. Errors: those of create(); resource_exhausted (no room).
  [[nodiscard]] Status write_at(int64_t offset, std::span<const std::byte> bytes);
  // Fills `out`. REQUIRES: the whole range was written.
  [[nodiscard]] Status read_at(int64_t offset, std::span<std::byte> out) const;

 private:
  UnnamedFile(Descriptor file, std::string purpose, std::string folder)
      : file_(std::move(file)), purpose_(std::move(purpose)), folder_(std::move(folder)) {}

  Descriptor file_;
  std::string purpose_, folder_;
};

struct CloseStream {
  void operator()(std::FILE* stream) const { std::fclose(stream); }
};
// Opens an unnamed file for buffered reads and writes. Errors: those of UnnamedFile::create().
[[nodiscard]] Result<std::unique_ptr<std::FILE, CloseStream>> open_unnamed_stream(std::string_view purpose);
// Returns the error for the current errno of a stream for `purpose`.
Error unnamed_stream_error(std::string_view purpose);

}  // namespace millrace
