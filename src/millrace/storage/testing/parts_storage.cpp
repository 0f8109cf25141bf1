// SPDX-License-Identifier: Apache-2.0
#include "millrace/storage/testing/parts_storage.h"

#include <algorithm>

#include "millrace/base/thread/per_process.h"
#include "millrace/storage/detail/backend.h"
#include "millrace/storage/md5.h"
#include "millrace/storage/memory.h"
#include "millrace/storage/submit.h"

namespace millrace {
namespace {

constexpr int64_t kSmallestPart = 5 << 20;

struct Upload {
  std::string key;
  int64_t part_bytes = 0;
  std::map<int64_t, std::string> parts;  // by offset
  bool is_open = false;                  // by a writer that lives
};

struct Shared {
  std::shared_ptr<Storage> objects = make_memory_storage("parts");
  std::shared_ptr<PartsService> service;
  Mutex mutex;
  std::map<std::string, Upload> uploads GUARDED_BY(mutex);
  int64_t begun GUARDED_BY(mutex) = 0;
};

class CountedReader final : public RandomReader {
 public:
  CountedReader(std::unique_ptr<RandomReader> inner, std::shared_ptr<Shared> shared)
      : inner_(std::move(inner)), shared_(std::move(shared)) {}
  std::string_view name() const override { return inner_->name(); }
  int64_t size() const override { return inner_->size(); }
  std::string_view version() const override { return inner_->version(); }
  [[nodiscard]] Status read_at(int64_t offset, std::span<std::byte> out) const override {
    shared_->service->read_bytes += std::ssize(out);
    return inner_->read_at(offset, out);
  }
  const RandomReader& inner() const { return *inner_; }

 private:
  const std::unique_ptr<RandomReader> inner_;
  const std::shared_ptr<Shared> shared_;
};

class PartsWriter final : public Writer {
 public:
  PartsWriter(std::shared_ptr<Shared> shared, std::string id, std::string key, const WriteOptions& options)
      : shared_(std::move(shared)), id_(std::move(id)), key_(std::move(key)), options_(options) {
    MutexLock lock(shared_->mutex);
    Upload& upload = shared_->uploads[id_];
    part_bytes_ = upload.part_bytes;
    upload.is_open = true;
    for (const auto& [offset, content] : upload.parts) {
      parts_.push_back({.offset = offset, .size = std::ssize(content), .etag = md5_hex(as_bytes(content))});
    }
  }
  ~PartsWriter() override {
    MutexLock lock(shared_->mutex);
    if (ended_) return;
    if (shared_->service->parts_left > 0) {
      shared_->uploads.erase(id_);
    } else {
      shared_->uploads[id_].is_open = false;
    }
  }

  int64_t part_bytes() const override { return part_bytes_; }
  std::span<const WrittenPart> parts() const override { return parts_; }

  [[nodiscard]] Status write_at(int64_t offset, std::span<const std::byte> data) override {
    MutexLock lock(shared_->mutex);
    RETURN_IF_ERROR(check_open());
    if (offset < 0 || std::ssize(data) > INT64_MAX - offset) return fail(ErrorCode::kInvalidArgument, "no such range");
    if (offset > INT64_MAX / 2) return fail(ErrorCode::kResourceExhausted, "no such size");
    const int64_t end = offset + std::ssize(data);
    if (offset < sequence_end_ && end <= std::ssize(pending_) && pending_begin_ == 0) {  // a head, written again
      pending_.replace(static_cast<size_t>(offset), data.size(), as_text(data));
      return {};
    }
    if (pending_.empty() && offset % part_bytes_ == 0 &&
        (std::ssize(data) == part_bytes_ || end == options_.size_hint_bytes)) {
      sequence_end_ = end;
      return put(offset, std::string(as_text(data)));
    }
    return write_next(offset, data);
  }

  [[nodiscard]] Status copy_range(const RandomReader& source, int64_t source_offset, int64_t size,
                                  int64_t offset) override {
    RETURN_IF_ERROR(check_read_range(source, source_offset, size));
    // A cast, as S3's own.
    const auto* counted = dynamic_cast<const CountedReader*>(&source.copy_source());
    if (counted == nullptr || offset % part_bytes_ != 0 || size > part_bytes_ || size == 0) {
      return copy_through_memory(source, source_offset, size, *this, offset);
    }
    std::string content(static_cast<size_t>(size), '\0');
    RETURN_IF_ERROR(counted->inner().read_at(source_offset, std::as_writable_bytes(std::span(content))));
    MutexLock lock(shared_->mutex);
    RETURN_IF_ERROR(check_open());
    if (size < part_bytes_ && offset + size != options_.size_hint_bytes) {  // not the last part: others follow
      return write_next(offset, as_bytes(content));
    }
    shared_->service->copied_bytes += size;
    shared_->service->written_bytes -= size;
    return put(offset, std::move(content));
  }

  [[nodiscard]] Result<ObjectInfo> commit(Durability durability) override {
    std::map<int64_t, std::string> parts;
    {
      MutexLock lock(shared_->mutex);
      RETURN_IF_ERROR(check_open());
      if (!pending_.empty()) RETURN_IF_ERROR(put(pending_begin_, std::move(pending_)));
      parts = shared_->uploads[id_].parts;
    }
    ASSIGN_OR_RETURN(const auto writer, shared_->objects->open_write(key_, options_));
    int64_t end = 0;
    for (const auto& [offset, content] : parts) {
      if (offset != end) return fail(ErrorCode::kInvalidArgument, "no part at {}", end);
      RETURN_IF_ERROR(writer->write_at(offset, as_bytes(content)));
      end += std::ssize(content);
    }
    ASSIGN_OR_RETURN(ObjectInfo object, writer->commit(durability));
    MutexLock lock(shared_->mutex);
    shared_->uploads.erase(id_);
    ended_ = true;
    return object;
  }

  [[nodiscard]] Status suspend() override {
    MutexLock lock(shared_->mutex);
    RETURN_IF_ERROR(check_open());
    shared_->uploads[id_].is_open = false;
    ended_ = true;
    return {};
  }

 private:
  Status check_open() const REQUIRES_LOCK(shared_->mutex) {
    if (ended_) return fail(ErrorCode::kInvalidArgument, "{}: it was committed or suspended before", key_);
    if (!shared_->uploads.contains(id_)) return fail(ErrorCode::kNotFound, "{}: no such upload", key_);
    return {};
  }
  Status write_next(int64_t offset, std::span<const std::byte> data) REQUIRES_LOCK(shared_->mutex) {
    if (offset != sequence_end_) return fail(ErrorCode::kInvalidArgument, "not a part, and not behind the last write");
    if (pending_.empty()) pending_begin_ = offset;
    pending_ += as_text(data);
    sequence_end_ = offset + std::ssize(data);
    return {};
  }
  Status put(int64_t offset, std::string content) REQUIRES_LOCK(shared_->mutex) {
    if (--shared_->service->parts_left < 0) {
      shared_->service->parts_left = 0;
      return fail(ErrorCode::kUnavailable, "{}: the service is gone", key_);
    }
    shared_->service->written_bytes += std::ssize(content);
    shared_->uploads[id_].parts[offset] = std::move(content);
    return {};
  }

  const std::shared_ptr<Shared> shared_;
  const std::string id_, key_;
  const WriteOptions options_;
  int64_t part_bytes_ = 0;
  std::vector<WrittenPart> parts_;
  std::string pending_;
  int64_t pending_begin_ = 0;
  int64_t sequence_end_ = 0;
  bool ended_ = false;
};

class PartsStorage final : public Storage {
 public:
  explicit PartsStorage(std::shared_ptr<PartsService> service) { shared_->service = std::move(service); }

  std::string_view name() const override { return "parts:"; }
  Capabilities capabilities() const override {
    return {.conditional_write = true,
            .copy_range = true,
            .list_uploads = true,
            .knows_dead = true,
            .resume = true,
            .sends_files = true};
  }
  [[nodiscard]] Result<std::unique_ptr<RandomReader>> open_read(std::string_view key,
                                                                const OpenOptions& options) override {
    ++shared_->service->opens;
    ASSIGN_OR_RETURN(auto reader, shared_->objects->open_read(key, options));
    return std::make_unique<CountedReader>(std::move(reader), shared_);
  }
  [[nodiscard]] Result<std::unique_ptr<Writer>> open_write(std::string_view key, const WriteOptions& options) override {
    RETURN_IF_ERROR(shared_->objects->open_write(key, options).map([](const auto&) {}));  // what is wrong with them
    const int64_t fixed = shared_->service->part_bytes;
    std::string id;
    {
      MutexLock lock(shared_->mutex);
      id = "upload-" + std::to_string(++shared_->begun);
      shared_->uploads[id] = {.key = std::string(key),
                              .part_bytes = fixed > 0 ? fixed : std::max(kSmallestPart, options.part_bytes)};
    }
    return std::make_unique<PartsWriter>(shared_, id, std::string(key), options);
  }
  [[nodiscard]] Result<std::unique_ptr<Writer>> resume_write(const ObjectInfo& upload,
                                                             const WriteOptions& options) override {
    {
      MutexLock lock(shared_->mutex);
      const auto found = shared_->uploads.find(upload.version);
      if (found == shared_->uploads.end()) return fail(ErrorCode::kNotFound, "{}: no such upload", upload.key);
    }
    return std::make_unique<PartsWriter>(shared_, upload.version, upload.key, options);
  }
  void submit(std::span<const Operation> operations, CompletionQueue& queue) override {
    submit_operations(executor_.get(), operations, queue);
  }
  [[nodiscard]] Result<ObjectInfo> stat(std::string_view key) override { return shared_->objects->stat(key); }
  [[nodiscard]] Result<std::optional<ContentChecksum>> checksum(const ObjectInfo& object) override {
    if (!shared_->service->keeps_checksums) return std::nullopt;
    ASSIGN_OR_RETURN(const std::string content, read_object(*shared_->objects, object.key));
    return ContentChecksum::of(ContentChecksum::Kind::kCrc64Nvme, as_bytes(content));
  }
  [[nodiscard]] Result<ListPage> list(std::string_view prefix, const ListOptions& options) override {
    return shared_->objects->list(prefix, options);
  }
  [[nodiscard]] Status remove(std::span<const std::string> keys) override { return shared_->objects->remove(keys); }
  [[nodiscard]] Result<std::vector<ObjectInfo>> list_uploads(std::string_view prefix) override {
    RETURN_IF_ERROR(shared_->objects->list_uploads(prefix).map([](const auto&) {}));  // what is wrong with it
    ++shared_->service->lists;
    std::vector<ObjectInfo> uploads;
    MutexLock lock(shared_->mutex);
    for (const auto& [id, upload] : shared_->uploads) {
      if (upload.is_open || !upload.key.starts_with(prefix)) continue;
      uploads.push_back({.key = upload.key, .version = id});
    }
    return uploads;
  }
  [[nodiscard]] Status abort_uploads(std::span<const ObjectInfo> uploads) override {
    MutexLock lock(shared_->mutex);
    for (const ObjectInfo& upload : uploads) shared_->uploads.erase(upload.version);
    return {};
  }
  [[nodiscard]] Status make_durable(std::span<const std::string> keys) override {
    return shared_->objects->make_durable(keys);
  }
  [[nodiscard]] Result<FreeSpace> free_space(std::string_view prefix) override {
    return shared_->objects->free_space(prefix);
  }

 private:
  const std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
  const PerProcess<Executor> executor_{[] { return std::make_unique<Executor>(4, "mr-parts"); }};
};

}  // namespace

std::shared_ptr<Storage> make_parts_storage(std::shared_ptr<PartsService> service) {
  return std::make_shared<PartsStorage>(std::move(service));
}

}  // namespace millrace
