// SPDX-License-Identifier: Apache-2.0
#pragma once

// For the tests of this room: small trees, and a Storage whose behaviour a test can change.

#include <gmock/gmock.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "millrace/storage/memory.h"
#include "millrace/storage/url.h"

namespace millrace::sync {

using Tree = std::map<std::string, std::string>;  // path -> content

// Passes all calls on, except where a test has set a function or value.
class BentStorage final : public Storage {
 public:
  explicit BentStorage(std::shared_ptr<Storage> inner) : inner_(std::move(inner)) {}

  std::function<void(ListPage&)> bend_page;
  std::optional<int64_t> free_bytes;
  std::function<void(std::string_view key)> on_open;
  std::function<Status(std::string_view key)> on_write;  // called when a writer is opened
  std::function<Status(std::span<const std::string> keys)> on_durable;
  std::function<void(std::span<const Operation>, CompletionQueue&)> on_submit;  // must submit them sooner or later
  int64_t part_bytes = 0;                                                       // part size of writes; 0: as requested
  std::function<void()> on_resume;
  std::vector<ObjectInfo> left;  // unfinished uploads, for list_uploads
  std::function<void(std::span<const ObjectInfo>)> on_abort;
  bool forgets_dead = false;  // like S3, cannot tell which writers are dead

  std::string_view name() const override { return inner_->name(); }
  Capabilities capabilities() const override {
    Capabilities capabilities = inner_->capabilities();
    capabilities.free_space = capabilities.free_space || free_bytes.has_value();
    capabilities.knows_dead = capabilities.knows_dead && !forgets_dead;
    return capabilities;
  }
  [[nodiscard]] Result<std::unique_ptr<RandomReader>> open_read(std::string_view key,
                                                                const OpenOptions& options) override {
    if (on_open) on_open(key);
    return inner_->open_read(key, options);
  }
  [[nodiscard]] Result<std::unique_ptr<Writer>> open_write(std::string_view key, const WriteOptions& options) override {
    if (on_write) RETURN_IF_ERROR(on_write(key));
    WriteOptions asked = options;
    if (part_bytes > 0) asked.part_bytes = part_bytes;
    return inner_->open_write(key, asked);
  }
  [[nodiscard]] Result<std::unique_ptr<Writer>> resume_write(const ObjectInfo& upload,
                                                             const WriteOptions& options) override {
    if (on_resume) on_resume();
    return inner_->resume_write(upload, options);
  }
  void submit(std::span<const Operation> operations, CompletionQueue& queue) override {
    if (on_submit) return on_submit(operations, queue);
    inner_->submit(operations, queue);
  }
  [[nodiscard]] Result<ObjectInfo> stat(std::string_view key) override { return inner_->stat(key); }
  [[nodiscard]] Result<std::optional<ContentChecksum>> checksum(const ObjectInfo& object) override {
    return inner_->checksum(object);
  }
  [[nodiscard]] Result<ObjectTags> tags(std::string_view key) override { return inner_->tags(key); }
  [[nodiscard]] Result<ListPage> list(std::string_view prefix, const ListOptions& options) override {
    ASSIGN_OR_RETURN(ListPage page, inner_->list(prefix, options));
    if (bend_page) bend_page(page);
    return page;
  }
  [[nodiscard]] Status remove(std::span<const std::string> keys) override { return inner_->remove(keys); }
  [[nodiscard]] Result<std::vector<ObjectInfo>> list_uploads(std::string_view prefix) override {
    return left.empty() ? inner_->list_uploads(prefix) : left;
  }
  [[nodiscard]] Status abort_uploads(std::span<const ObjectInfo> uploads) override {
    if (on_abort) on_abort(uploads);
    return inner_->abort_uploads(uploads);
  }
  [[nodiscard]] Status make_durable(std::span<const std::string> keys) override {
    if (on_durable) RETURN_IF_ERROR(on_durable(keys));
    return inner_->make_durable(keys);
  }
  [[nodiscard]] Result<FreeSpace> free_space(std::string_view prefix) override {
    if (free_bytes) return FreeSpace{*free_bytes, "the quota of a test"};
    return inner_->free_space(prefix);
  }

 private:
  const std::shared_ptr<Storage> inner_;
};

inline void put(const Location& at, const std::string& path, std::string_view content) {
  const auto written = write_object(*at.storage, at.child(path).key, content, {}, Durability::kVisible);
  ASSERT_TRUE(written) << written.error().to_string();
}

inline void put_all(const Location& at, const Tree& tree) {
  for (const auto& [path, content] : tree) put(at, path, content);
}

// Returns all files below `at`; the folders that Millrace keeps only with `hidden`.
inline Tree tree_of(const Location& at, bool hidden = false) {
  Tree tree;
  const std::string prefix = at.key.empty() ? "" : at.key + "/";
  EXPECT_TRUE(for_each_object(*at.storage, prefix, [&](const ObjectInfo& object) -> Status {
    const std::string path = object.key.substr(prefix.size());
    if (!hidden && path.find(".millrace") != path.npos) return {};
    ASSIGN_OR_RETURN(tree[path], read_object(*at.storage, object.key));
    return {};
  }));
  return tree;
}

inline Location memory_location(const std::string& key = "") {
  return {make_memory_storage("test"), key, "mem://test/" + key};
}

inline Location located(std::shared_ptr<Storage> storage, const std::string& key) {
  return {std::move(storage), key, "test:" + key};
}

}  // namespace millrace::sync
