// SPDX-License-Identifier: Apache-2.0
#pragma once

// A file read from front to back, unpacked on the way. Its first bytes say how it is packed, never its
// name: gzip (RFC 1952, any number of members) or zstd (RFC 8878, any number of frames); anything else is as it is. A
// stream belongs to one thread.

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

  // For messages: the file's.
  virtual std::string_view name() const = 0;
  // Fills `out`, or the front of it when the end comes before; answers how many bytes. After an error the same bytes
  // may be asked for again only of a file that is not packed.
  // Errors: corruption (cut or damaged, and where in the file), those of read_at.
  [[nodiscard]] virtual Result<size_t> read(std::span<std::byte> out) = 0;
  // Bytes of the file that have been read so far.
  virtual int64_t file_bytes() const = 0;
};

// Whether a file begins as gzip or zstd do. Errors: those of read_at.
[[nodiscard]] Result<bool> is_packed(const RandomReader& file);

// From byte `begin` of the unpacked content; a packed file is unpacked up to there. `file` must outlive the stream.
// Errors: those of read; out_of_range (the content ends before `begin`).
[[nodiscard]] Result<std::unique_ptr<ByteStream>> open_stream(const RandomReader& file, int64_t begin = 0);

}  // namespace millrace::formats
