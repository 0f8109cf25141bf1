// SPDX-License-Identifier: Apache-2.0
#pragma once

// Private to local/: reads and writes one object.

#include <memory>
#include <string>
#include <string_view>

#include "millrace/storage/local/detail/files.h"
#include "millrace/storage/local/detail/stream.h"

namespace millrace::local {

// Reads one open file. Thread-safe.
class LocalReader final : public RandomReader, public LocalFile {
 public:
  // Returns the read as one transfer that waits only for the disk, if it is one. Call check_unchanged() after the
  // transfer.
  std::optional<Transfer> transfer(int64_t offset, std::span<std::byte> out) const;

  [[nodiscard]] static Result<std::unique_ptr<RandomReader>> open(std::shared_ptr<const Context> context,
                                                                  std::string_view key, const OpenOptions& options);

  std::string_view name() const override { return path_; }
  int64_t size() const override { return opened_.st_size; }
  std::string_view version() const override { return version_; }
  bool has_holes() const override { return int64_t{opened_.st_blocks} * kStatBlockBytes < opened_.st_size; }
  [[nodiscard]] Status read_at(int64_t offset, std::span<std::byte> out) const override;
  const LocalFile* local_file() const override { return this; }
  int descriptor() const override { return fd_.get(); }
  [[nodiscard]] Status check_unchanged() const override;
  bool is_cached() const override;
  std::unique_ptr<FileRange> file_range(int64_t offset, int64_t size) const override;

 private:
  class CachedRange;
  LocalReader(std::shared_ptr<const Context> context, std::string path, Fd fd, const struct stat& opened, bool once);
  const std::shared_ptr<const Context> context_;
  const std::string path_;
  const Fd fd_;
  const struct stat opened_;
  const std::string version_;
  std::optional<Stream> stream_;  // set with OpenOptions::once
};

// Implements Storage::open_write.
[[nodiscard]] Result<std::unique_ptr<Writer>> open_local_writer(std::shared_ptr<const Context> context,
                                                                std::string_view key, const WriteOptions& options);
// Implements Storage::resume_write.
[[nodiscard]] Result<std::unique_ptr<Writer>> resume_local_writer(std::shared_ptr<const Context> context,
                                                                  const ObjectInfo& upload,
                                                                  const WriteOptions& options);

}  // namespace millrace::local
