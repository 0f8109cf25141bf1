// SPDX-License-Identifier: Apache-2.0
#include "millrace/storage/memory.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "millrace/base/thread/per_process.h"
#include "millrace/storage/detail/backend.h"
#include "millrace/storage/page_token.h"
#include "millrace/storage/submit.h"

namespace millrace {
namespace {

constexpr size_t kMetadataLimitBytes = 2048;           // as S3's
constexpr int kMemoryThreads = 2;                      // so that tests see operations at the same time
constexpr size_t kObjectLimitBytes = size_t{4} << 30;  // a wrong offset must not take the machine's memory

using Bytes = std::vector<std::byte>;

struct MemoryObject {
  ObjectInfo info;
  Bytes bytes;
};

// A suspended write, which another writer may resume.
struct SuspendedWrite {
  std::string key;
  Bytes bytes;
  std::string note;
};

// Shared by the storage, its readers and its writers. Objects are never changed, only replaced.
struct MemoryState {
  std::string name;
  Mutex mutex;
  std::map<std::string, std::shared_ptr<const MemoryObject>, std::less<>> objects GUARDED_BY(mutex);
  uint64_t commits GUARDED_BY(mutex) = 0;
  std::map<std::string, SuspendedWrite, std::less<>> suspended GUARDED_BY(mutex);  // by upload
  uint64_t suspensions GUARDED_BY(mutex) = 0;

  std::string path(std::string_view key) const { return name + "/" + std::string(key); }
};

class PinnedObject final : public RandomReader {
 public:
  PinnedObject(std::shared_ptr<const MemoryObject> object, std::string name)
      : object_(std::move(object)), name_(std::move(name)) {}
  std::string_view name() const override { return name_; }
  int64_t size() const override { return object_->info.size; }
  std::string_view version() const override { return object_->info.version; }
  [[nodiscard]] Status read_at(int64_t offset, std::span<std::byte> out) const override {
    RETURN_IF_ERROR(check_read_range(*this, offset, static_cast<int64_t>(out.size())));
    if (!out.empty()) std::memcpy(out.data(), object_->bytes.data() + offset, out.size());
    return {};
  }

 private:
  const std::shared_ptr<const MemoryObject> object_;
  const std::string name_;
};

Status check_metadata(std::string_view key, const std::map<std::string, std::string>& metadata) {
  size_t total = 0;
  for (const auto& [name, value] : metadata) {
    total += name.size() + value.size();
    for (const unsigned char c : name + value) {
      if (c >= 0x80) return fail(ErrorCode::kInvalidArgument, "write {}: metadata \"{}\" is not ASCII", key, name);
    }
  }
  if (total <= kMetadataLimitBytes) return {};
  return fail(ErrorCode::kInvalidArgument, "write {}: {} bytes of metadata, more than {}", key, total,
              kMetadataLimitBytes);
}

class MemoryWriter final : public Writer {
 public:
  MemoryWriter(std::shared_ptr<MemoryState> state, std::string_view key, const WriteOptions& options)
      : state_(std::move(state)), key_(key), options_(options) {}
  MemoryWriter(std::shared_ptr<MemoryState> state, SuspendedWrite before, const WriteOptions& options)
      : state_(std::move(state)),
        key_(std::move(before.key)),
        options_(options),
        resumed_note_(before.note),
        bytes_(std::move(before.bytes)),
        note_(std::move(before.note)) {}

  [[nodiscard]] Status write_at(int64_t offset, std::span<const std::byte> data) override {
    const std::string path = state_->path(key_);
    RETURN_IF_ERROR(check_write_range(path, offset, data.size()));
    MutexLock lock(mutex_);
    RETURN_IF_ERROR(check_open("write"));
    const size_t end = static_cast<size_t>(offset) + data.size();
    const auto no_room = [&] {
      return fail(ErrorCode::kResourceExhausted, "write {}: no room for {} bytes", path, end);
    };
    if (end > kObjectLimitBytes) return no_room();
    try {
      bytes_.resize(std::max(bytes_.size(), end));
    } catch (const std::bad_alloc&) {
      return no_room();
    }
    std::copy(data.begin(), data.end(), bytes_.begin() + offset);
    return {};
  }

  [[nodiscard]] Status copy_range(const RandomReader& source, int64_t source_offset, int64_t size,
                                  int64_t offset) override {
    return copy_through_memory(source.copy_source(), source_offset, size, *this, offset);
  }

  [[nodiscard]] Result<ObjectInfo> commit(Durability) override {
    MutexLock own_lock(mutex_);
    RETURN_IF_ERROR(check_open("commit"));
    ended_ = true;
    auto object = std::make_shared<MemoryObject>();
    object->bytes = std::move(bytes_);
    MutexLock lock(state_->mutex);
    auto& place = state_->objects[key_];
    if (auto allowed = check_condition(place.get()); !allowed) {
      if (!place) state_->objects.erase(key_);
      return tl::unexpected<Error>(std::move(allowed).error());
    }
    object->info = {.key = key_,
                    .size = static_cast<int64_t>(object->bytes.size()),
                    .version = std::to_string(++state_->commits),
                    .modified = options_.posix ? options_.posix->modified : std::chrono::system_clock::now(),
                    .metadata = std::move(options_.metadata),
                    .posix = options_.posix};
    place = std::move(object);
    return place->info;
  }

  [[nodiscard]] Status suspend() override {
    MutexLock own_lock(mutex_);
    RETURN_IF_ERROR(check_open("suspend"));
    ended_ = true;
    MutexLock lock(state_->mutex);
    state_->suspended["upload-" + std::to_string(++state_->suspensions)] = {key_, std::move(bytes_), std::move(note_)};
    return {};
  }
  [[nodiscard]] Status set_note(std::string_view note) override {
    MutexLock lock(mutex_);
    RETURN_IF_ERROR(check_open("set the note of"));
    note_ = note;
    return {};
  }
  std::string_view note() const override { return resumed_note_; }
  [[nodiscard]] Status read_back(int64_t offset, std::span<std::byte> out) override {
    MutexLock lock(mutex_);
    RETURN_IF_ERROR(check_open("read"));
    return MemoryReader(bytes_, state_->path(key_)).read_at(offset, out);
  }

 private:
  Status check_open(std::string_view what) const REQUIRES_LOCK(mutex_) {
    if (!ended_) return {};
    return fail(ErrorCode::kInvalidArgument, "{} {}: it was committed or suspended before", what, state_->path(key_));
  }
  Status check_condition(const MemoryObject* current) const {
    using Condition = WriteOptions::Condition;
    if (options_.condition == Condition::kIfAbsent && current != nullptr) {
      return fail(ErrorCode::kAlreadyExists, "commit {}: it exists", state_->path(key_));
    }
    if (options_.condition == Condition::kIfVersion &&
        (current == nullptr || current->info.version != options_.version)) {
      return fail(ErrorCode::kAlreadyExists, "commit {}: its version is not {}", state_->path(key_), options_.version);
    }
    return {};
  }

  const std::shared_ptr<MemoryState> state_;
  const std::string key_;
  WriteOptions options_;
  const std::string resumed_note_;
  Mutex mutex_;
  Bytes bytes_ GUARDED_BY(mutex_);
  std::string note_ GUARDED_BY(mutex_);
  bool ended_ GUARDED_BY(mutex_) = false;
};

class MemoryStorage final : public Storage {
 public:
  explicit MemoryStorage(std::string name) : state_(std::make_shared<MemoryState>()) {
    state_->name = "mem://" + std::move(name);
  }

  std::string_view name() const override { return state_->name; }
  Capabilities capabilities() const override {
    return {.locality = Locality::kLocal,
            .conditional_write = true,
            .copy_range = true,
            .list_uploads = true,
            .knows_dead = true,
            .resume = true,
            .notes = true};
  }

  [[nodiscard]] Result<std::unique_ptr<RandomReader>> open_read(std::string_view key,
                                                                const OpenOptions& options) override {
    ASSIGN_OR_RETURN(auto object, find(key, "open"));
    if (!options.expected_version.empty() && options.expected_version != object->info.version) {
      return fail(ErrorCode::kCorruption, "open {}: version {}, not {} as expected", state_->path(key),
                  object->info.version, options.expected_version);
    }
    return std::make_unique<PinnedObject>(std::move(object), state_->path(key));
  }

  [[nodiscard]] Result<std::unique_ptr<Writer>> open_write(std::string_view key, const WriteOptions& options) override {
    RETURN_IF_ERROR(check_write(key, options));
    return std::make_unique<MemoryWriter>(state_, key, options);
  }
  [[nodiscard]] Result<std::unique_ptr<Writer>> resume_write(const ObjectInfo& upload,
                                                             const WriteOptions& options) override {
    RETURN_IF_ERROR(check_write(upload.key, options));
    MutexLock lock(state_->mutex);
    const auto found = state_->suspended.find(upload.version);
    if (found == state_->suspended.end() || found->second.key != upload.key) {
      return fail(ErrorCode::kNotFound, "resume {}: no write was left", state_->path(upload.key));
    }
    auto writer = std::make_unique<MemoryWriter>(state_, std::move(found->second), options);
    state_->suspended.erase(found);
    return writer;
  }

  void submit(std::span<const Operation> operations, CompletionQueue& queue) override {
    submit_operations(executor_.get(), operations, queue);
  }

  [[nodiscard]] Result<ObjectInfo> stat(std::string_view key) override {
    ASSIGN_OR_RETURN(const auto object, find(key, "stat"));
    return object->info;
  }

  [[nodiscard]] Result<ListPage> list(std::string_view prefix, const ListOptions& options) override {
    RETURN_IF_ERROR(check_object_listing(prefix, options));
    ListPage page;
    std::string last;
    const std::string_view behind = key_of_token(options.page_token);
    MutexLock lock(state_->mutex);
    for (auto it = state_->objects.lower_bound(prefix); it != state_->objects.end(); ++it) {
      const std::string& key = it->first;
      if (!key.starts_with(prefix)) break;
      const size_t slash = options.recursive ? key.npos : key.find('/', prefix.size());
      const std::string entry = slash == key.npos ? key : key.substr(0, slash + 1);
      if (entry == last || entry <= behind) continue;
      if (static_cast<int64_t>(page.objects.size() + page.prefixes.size()) == options.max_keys) {
        page.next_page_token = page_token_behind(last);
        break;
      }
      last = entry;
      if (slash != key.npos) {
        page.prefixes.push_back(entry);
      } else {
        page.objects.push_back(it->second->info);
        page.objects.back().metadata.clear();
        page.objects.back().posix.reset();
      }
    }
    return page;
  }

  [[nodiscard]] Status remove(std::span<const std::string> keys) override {
    Status first;
    for (const std::string& key : keys) {
      if (auto valid = check_object_key(key); !valid) {
        if (first) first = std::move(valid);
        continue;
      }
      MutexLock lock(state_->mutex);
      state_->objects.erase(key);
    }
    return first;
  }

  // Lists suspended writes. The writes of a dead process died with it.
  [[nodiscard]] Result<std::vector<ObjectInfo>> list_uploads(std::string_view prefix) override {
    RETURN_IF_ERROR(check_object_listing(prefix, {}));
    std::vector<ObjectInfo> uploads;
    MutexLock lock(state_->mutex);
    for (const auto& [upload, write] : state_->suspended) {
      if (!write.key.starts_with(prefix)) continue;
      uploads.push_back({.key = write.key, .size = std::ssize(write.bytes), .version = upload});
    }
    return uploads;
  }
  [[nodiscard]] Status abort_uploads(std::span<const ObjectInfo> uploads) override {
    MutexLock lock(state_->mutex);
    for (const ObjectInfo& upload : uploads) state_->suspended.erase(upload.version);
    return {};
  }

  [[nodiscard]] Status make_durable(std::span<const std::string> keys) override {
    for (const std::string& key : keys) RETURN_IF_ERROR(stat(key).map([](const ObjectInfo&) {}));
    return {};
  }

  [[nodiscard]] Result<FreeSpace> free_space(std::string_view) override {
    return fail(ErrorCode::kUnsupported, "{}: memory has no free space to tell", state_->name);
  }

 private:
  Status check_write(std::string_view key, const WriteOptions& options) const {
    RETURN_IF_ERROR(check_object_key(key));
    RETURN_IF_ERROR(check_metadata(key, options.metadata));
    if (options.size_hint_bytes < 0) {
      return fail(ErrorCode::kInvalidArgument, "write {}: a size hint of {}", key, options.size_hint_bytes);
    }
    MutexLock lock(state_->mutex);
    if (options.condition == WriteOptions::Condition::kIfAbsent && state_->objects.contains(key)) {
      return fail(ErrorCode::kAlreadyExists, "write {}: it exists", state_->path(key));
    }
    return {};
  }

  Result<std::shared_ptr<const MemoryObject>> find(std::string_view key, std::string_view what) const {
    RETURN_IF_ERROR(check_object_key(key));
    MutexLock lock(state_->mutex);
    const auto found = state_->objects.find(key);
    if (found == state_->objects.end()) {
      return fail(ErrorCode::kNotFound, "{} {}: no such key", what, state_->path(key));
    }
    return found->second;
  }

  const std::shared_ptr<MemoryState> state_;
  const PerProcess<Executor> executor_{[] { return std::make_unique<Executor>(kMemoryThreads, "mr-memory"); }};
};

}  // namespace

std::shared_ptr<Storage> make_memory_storage(std::string name) {
  return std::make_shared<MemoryStorage>(std::move(name));
}

}  // namespace millrace
