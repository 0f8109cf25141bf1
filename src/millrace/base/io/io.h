// SPDX-License-Identifier: Apache-2.0
#pragma once

// The reader and the sink that `formats/` uses, so that a format needs neither a path nor a network. A RandomReader
// may be read from many threads at once; a ByteSink belongs to one thread.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/status.h"
#include "millrace/base/thread/sync.h"

namespace millrace {

class LocalFile;  // local_file.h

// A fixed sequence of bytes: two reads of one range by the same reader give the same bytes.
class RandomReader {
 public:
  virtual ~RandomReader() = default;

  // The path or URL, for messages.
  virtual std::string_view name() const = 0;
  virtual int64_t size() const = 0;
  // An opaque version. Equal versions of one name mean equal bytes. Empty when the source has no versions.
  virtual std::string_view version() const = 0;

  // Fills `out` with bytes [offset, offset + out.size()); never a short read. Blocks.
  // On error the content of `out` is unspecified, but no write to it is still under way.
  // Errors: out_of_range (past the end), corruption (changed while reading), unavailable, cancelled.
  // REQUIRES: offset >= 0.
  [[nodiscard]] virtual Status read_at(int64_t offset, std::span<std::byte> out) const = 0;

  // Starts the same read without waiting, if the reader needs no thread for it. Returns true if it did: `done` is then
  // called exactly once, perhaps before this function returns, when nothing writes to `out` any more. Returns false if
  // no read was started: the caller must use read_at. Errors: also timeout (the deadline).
  [[nodiscard]] virtual bool start_read(int64_t /*offset*/, std::span<std::byte> /*out*/,
                                        const std::stop_token& /*stop*/, Clock::time_point /*deadline*/,
                                        std::function<void(Status)> /*done*/) const {
    return false;
  }
  // The reader whose bytes a server or the kernel may copy directly. A reader around another forwards the call.
  virtual const RandomReader& copy_source() const { return *this; }
  // The local file whose bytes may be read without read_at; null: none. A reader that acts on each read does not
  // forward the call.
  virtual const LocalFile* local_file() const { return nullptr; }
};

class ByteSink {
 public:
  virtual ~ByteSink() = default;
  // Appends all of `bytes` or fails. The caller may reuse their memory when it returns.
  [[nodiscard]] virtual Status append(std::span<const std::byte> bytes) = 0;
};

// A reader over memory that the caller keeps alive.
class MemoryReader final : public RandomReader {
 public:
  explicit MemoryReader(std::span<const std::byte> bytes, std::string name = "memory")
      : bytes_(bytes), name_(std::move(name)) {}
  std::string_view name() const override { return name_; }
  int64_t size() const override { return static_cast<int64_t>(bytes_.size()); }
  std::string_view version() const override { return {}; }
  [[nodiscard]] Status read_at(int64_t offset, std::span<std::byte> out) const override;

 private:
  std::span<const std::byte> bytes_;
  std::string name_;
};

// A sink that keeps everything in memory.
class MemorySink final : public ByteSink {
 public:
  [[nodiscard]] Status append(std::span<const std::byte> bytes) override;
  const std::vector<std::byte>& bytes() const { return bytes_; }
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

// Checks the size of a reader. Errors: resource_exhausted when it is larger than `limit_bytes`.
[[nodiscard]] Status check_size(const RandomReader& reader, int64_t limit_bytes);

// Reads the whole reader into a string. For small files, such as manifests. Errors: those of read_at and check_size.
[[nodiscard]] Result<std::string> read_all(const RandomReader& reader, int64_t limit_bytes);

inline std::span<const std::byte> as_bytes(std::string_view text) {
  return std::as_bytes(std::span<const char>(text.data(), text.size()));
}
inline std::string_view as_text(std::span<const std::byte> bytes) {
  // SAFETY: char may alias any object.
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace millrace
