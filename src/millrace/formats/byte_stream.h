// SPDX-License-Identifier: Apache-2.0
#pragma once

// Reads a file from front to back and unpacks it. The first bytes of the file decide how, never its name: gzip (RFC
// 1952, any number of members), zstd (RFC 8878, any number of frames), or not packed. A stream belongs to one thread.

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "millrace/base/io/io.h"
#include "millrace/base/status.h"

namespace millrace::formats {

class ByteStream {
 public:
  virtual ~ByteStream() = default;

  // Returns the name of the file, for messages.
  virtual std::string_view name() const = 0;
  // Fills `out`, or less of it at the end of the stream. Returns the number of bytes. After an error the same bytes
  // may be read again only if the file is not packed.
  // Errors: corruption (cut or damaged, and where in the file), those of read_at.
  [[nodiscard]] virtual Result<size_t> read(std::span<std::byte> out) = 0;
  // Returns the bytes of the file that have been read so far.
  virtual int64_t file_bytes() const = 0;
};

// Returns whether a file begins like gzip or zstd. Errors: those of read_at.
[[nodiscard]] Result<bool> is_packed(const RandomReader& file);

// Opens a stream at byte `begin` of the unpacked content. A packed file is unpacked up to there. `file` must outlive
// the stream. Errors: those of read(); out_of_range (the content ends before `begin`).
[[nodiscard]] Result<std::unique_ptr<ByteStream>> open_stream(const RandomReader& file, int64_t begin = 0);

}  // namespace millrace::formats
