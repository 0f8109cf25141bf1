// SPDX-License-Identifier: Apache-2.0
#include "millrace/cache/cached_storage.h"

#include <sys/statfs.h>

#include <utility>

#include "millrace/cache/detail/file_system.h"
#include "millrace/storage/submit.h"

namespace millrace::cache {

namespace {

// What the readers of a storage share.
struct Shared {
  std::shared_ptr<Storage> inner;
  std::shared_ptr<NodeCache> cache;
  CachedStorageOptions options;

  NodeCache::Call call() const { return {.stop = options.stop, .metrics = options.metrics}; }
};

// Opens the object in the inner storage when a block is missing, at the version that the cache knows.
class LateReader final : public RandomReader {
 public:
  LateReader(std::shared_ptr<const Shared> shared, std::string key, NodeCache::Opened opened, std::string name,
             std::unique_ptr<RandomReader> reader)
      : shared_(std::move(shared)),
        key_(std::move(key)),
        opened_(std::move(opened)),
        name_(std::move(name)),
        reader_(std::move(reader)) {}

  std::string_view name() const override { return name_; }
  int64_t size() const override { return opened_.size; }
  std::string_view version() const override { return opened_.version; }
  [[nodiscard]] Status read_at(int64_t offset, std::span<std::byte> out) const override {
    ASSIGN_OR_RETURN(const RandomReader* reader, this->reader());
    return reader->read_at(offset, out);
  }
  const RandomReader& copy_source() const override {
    const auto reader = this->reader();
    return reader ? (*reader)->copy_source() : *this;  // where it fails to open, a read says why
  }

 private:
  Result<const RandomReader*> reader() const {
    MutexLock lock(mutex_);
    if (reader_ == nullptr) {
      ASSIGN_OR_RETURN(
          reader_, shared_->inner->open_read(key_, {.expected_version = opened_.version, .known_size = opened_.size}));
    }
    return reader_.get();
  }

  const std::shared_ptr<const Shared> shared_;
  const std::string key_;
  const NodeCache::Opened opened_;
  const std::string name_;
  mutable Mutex mutex_;
  mutable std::unique_ptr<RandomReader> reader_ GUARDED_BY(mutex_);
};

class CachedReader final : public RandomReader {
 public:
  CachedReader(std::shared_ptr<const Shared> shared, std::string key, NodeCache::Opened opened, std::string name,
               std::unique_ptr<RandomReader> reader)
      : shared_(shared),
        key_(key),
        object_{object_id(shared->inner->identity(), key, opened.version, opened.size), opened.size},
        source_(std::move(shared), std::move(key), std::move(opened), std::move(name), std::move(reader)) {}

  std::string_view name() const override { return source_.name(); }
  int64_t size() const override { return source_.size(); }
  std::string_view version() const override { return source_.version(); }
  [[nodiscard]] Status read_at(int64_t offset, std::span<std::byte> out) const override {
    if (offset < 0 || offset > size() || std::ssize(out) > size() - offset) return source_.read_at(offset, out);
    Status read = shared_->cache->read(object_, source_, offset, out, shared_->call());
    if (!read && read.error().code() == ErrorCode::kCorruption) {  // most likely another version is there now
      shared_->cache->forget_opened(shared_->inner->identity(), key_);
    }
    return read;
  }
  const RandomReader& copy_source() const override { return source_.copy_source(); }

 private:
  const std::shared_ptr<const Shared> shared_;
  const std::string key_;
  const CachedObject object_;
  const LateReader source_;
};

class CachedStorage final : public Storage {
 public:
  explicit CachedStorage(std::shared_ptr<const Shared> shared) : shared_(std::move(shared)) {}

  std::string_view name() const override { return inner().name(); }
  std::string identity() const override { return inner().identity(); }
  Capabilities capabilities() const override {
    Capabilities all = inner().capabilities();
    all.locality = Locality::kRemote;  // a block may be missing
    return all;
  }
  const void* copier() const override { return inner().copier(); }
  [[nodiscard]] Result<std::shared_ptr<Storage>> without_limits() const override { return inner().without_limits(); }
  std::shared_ptr<Storage> with_stop(std::stop_token stop) const override {
    Shared own = *shared_;
    if (auto stoppable = own.inner->with_stop(stop)) own.inner = std::move(stoppable);
    own.options.stop = std::move(stop);
    return std::make_shared<CachedStorage>(std::make_shared<const Shared>(std::move(own)));
  }

  [[nodiscard]] Result<std::unique_ptr<RandomReader>> open_read(std::string_view key,
                                                                const OpenOptions& options) override;
  void submit(std::span<const Operation> operations, CompletionQueue& queue) override {
    submit_operations(shared_->cache->threads(), operations, queue);
  }

  [[nodiscard]] Result<std::unique_ptr<Writer>> open_write(std::string_view key, const WriteOptions& options) override {
    return inner().open_write(key, options);
  }
  [[nodiscard]] Result<ObjectInfo> stat(std::string_view key) override { return inner().stat(key); }
  [[nodiscard]] Result<std::optional<ContentChecksum>> checksum(const ObjectInfo& object) override {
    return inner().checksum(object);
  }
  [[nodiscard]] Result<ObjectTags> tags(std::string_view key) override { return inner().tags(key); }
  [[nodiscard]] Result<ListPage> list(std::string_view prefix, const ListOptions& options) override {
    return inner().list(prefix, options);
  }
  [[nodiscard]] Status remove(std::span<const std::string> keys) override { return inner().remove(keys); }
  [[nodiscard]] Status remove_empty_folder(std::string_view key) override { return inner().remove_empty_folder(key); }
  [[nodiscard]] Status make_folder(std::string_view key) override { return inner().make_folder(key); }
  [[nodiscard]] Status remove_folder(std::string_view key) override { return inner().remove_folder(key); }
  [[nodiscard]] Result<std::optional<PosixAttributes>> folder_attributes(std::string_view key) override {
    return inner().folder_attributes(key);
  }
  [[nodiscard]] Status set_folder_attributes(std::string_view key, const PosixAttributes& attributes) override {
    return inner().set_folder_attributes(key, attributes);
  }
  [[nodiscard]] Result<std::vector<ObjectInfo>> list_uploads(std::string_view prefix) override {
    return inner().list_uploads(prefix);
  }
  [[nodiscard]] Status abort_uploads(std::span<const ObjectInfo> uploads) override {
    return inner().abort_uploads(uploads);
  }
  [[nodiscard]] Result<std::unique_ptr<Writer>> resume_write(const ObjectInfo& upload,
                                                             const WriteOptions& options) override {
    return inner().resume_write(upload, options);
  }
  [[nodiscard]] Status make_durable(std::span<const std::string> keys) override { return inner().make_durable(keys); }
  [[nodiscard]] Result<FreeSpace> free_space(std::string_view prefix) override { return inner().free_space(prefix); }

 private:
  Storage& inner() const { return *shared_->inner; }

  const std::shared_ptr<const Shared> shared_;
};

Result<std::unique_ptr<RandomReader>> CachedStorage::open_read(std::string_view key, const OpenOptions& options) {
  std::unique_ptr<RandomReader> reader;
  NodeCache::Opened opened{options.known_size.value_or(-1), options.expected_version};
  if (opened.size < 0 || opened.version.empty()) {
    ASSIGN_OR_RETURN(
        opened, shared_->cache->open_once(inner().identity(), key, shared_->call(), [&]() -> Result<NodeCache::Opened> {
          ASSIGN_OR_RETURN(reader, inner().open_read(key, options));
          return NodeCache::Opened{reader->size(), std::string(reader->version())};
        }));
  }
  if (opened.version.empty()) return reader;
  if (!options.expected_version.empty() && opened.version != options.expected_version) {
    return inner().open_read(key, options);  // what the node knows is older, or the object has changed
  }
  const std::string name = reader != nullptr ? std::string(reader->name()) : fmt::format("{}/{}", inner().name(), key);
  return std::make_unique<CachedReader>(shared_, std::string(key), std::move(opened), name, std::move(reader));
}

}  // namespace

bool lies_on_this_node(const Location& location) {
  if (!location.storage->capabilities().is_local()) return false;
  // open_url() makes a path a key below "/". A key that is not an existing path counts as local.
  struct statfs found = {};
  if (::statfs(("/" + location.key).c_str(), &found) != 0) return true;
  return network_file_system(static_cast<uint32_t>(found.f_type)).empty();
}

std::shared_ptr<Storage> make_cached_storage(std::shared_ptr<Storage> inner, std::shared_ptr<NodeCache> cache,
                                             const CachedStorageOptions& options) {
  return std::make_shared<CachedStorage>(
      std::make_shared<const Shared>(Shared{std::move(inner), std::move(cache), options}));
}

}  // namespace millrace::cache
