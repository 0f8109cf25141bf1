// SPDX-License-Identifier: Apache-2.0
#pragma once

// Gives Arrow a RandomReader as a file. The position is for one thread. ReadAt is thread-safe, because Arrow reads
// ahead on its own threads. `file` must outlive this object.

#include <arrow/api.h>
#include <arrow/io/interfaces.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "millrace/base/io/io.h"
#include "millrace/base/status.h"
#include "millrace/base/thread/sync.h"

namespace millrace::formats {

class ArrowFile final : public arrow::io::RandomAccessFile {
 public:
  explicit ArrowFile(const RandomReader& file) : file_(file) {}

  arrow::Status Close() override { return {}; }
  bool closed() const override { return false; }
  arrow::Result<int64_t> Tell() const override { return at_; }
  arrow::Status Seek(int64_t at) override {
    at_ = at;
    return {};
  }
  arrow::Result<int64_t> GetSize() override { return file_.size(); }
  arrow::Result<int64_t> ReadAt(int64_t offset, int64_t bytes, void* out) override {
    const int64_t size = std::clamp<int64_t>(file_.size() - offset, 0, bytes);
    // SAFETY: the caller gives `bytes` bytes at `out`.
    const auto read = file_.read_at(offset, std::span(static_cast<std::byte*>(out), static_cast<size_t>(size)));
    if (read) return size;
    MutexLock lock(mutex_);
    error_ = read.error();
    return arrow::Status::IOError(read.error().message());
  }
  arrow::Result<std::shared_ptr<arrow::Buffer>> ReadAt(int64_t offset, int64_t bytes) override {
    ARROW_ASSIGN_OR_RAISE(auto buffer, arrow::AllocateResizableBuffer(bytes));
    ARROW_ASSIGN_OR_RAISE(const int64_t size, ReadAt(offset, bytes, buffer->mutable_data()));
    ARROW_RETURN_NOT_OK(buffer->Resize(size));
    return std::shared_ptr<arrow::Buffer>(std::move(buffer));
  }
  arrow::Result<int64_t> Read(int64_t bytes, void* out) override {
    ARROW_ASSIGN_OR_RAISE(const int64_t size, ReadAt(at_, bytes, out));
    at_ += size;
    return size;
  }
  arrow::Result<std::shared_ptr<arrow::Buffer>> Read(int64_t bytes) override {
    ARROW_ASSIGN_OR_RAISE(auto buffer, ReadAt(at_, bytes));
    at_ += buffer->size();
    return buffer;
  }

  // The error of the last failed read, which Arrow would lose.
  std::optional<Error> error() const {
    MutexLock lock(mutex_);
    return error_;
  }

 private:
  const RandomReader& file_;
  int64_t at_ = 0;
  mutable Mutex mutex_;
  std::optional<Error> error_ GUARDED_BY(mutex_);
};

}  // namespace millrace::formats
