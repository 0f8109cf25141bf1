// SPDX-License-Identifier: Apache-2.0
#include "millrace/storage/local/local.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <set>

#include "millrace/storage/detail/backend.h"
#include "millrace/storage/local/detail/directories.h"
#include "millrace/storage/local/detail/durable.h"
#include "millrace/storage/local/detail/list.h"
#include "millrace/storage/local/detail/objects.h"
#include "millrace/storage/local/detail/space.h"
#include "millrace/storage/local/detail/stream.h"
#include "millrace/storage/local/detail/submit.h"
#include "millrace/storage/local/lustre.h"

namespace millrace {
namespace local {
namespace {

class LocalStorage final : public Storage {
 public:
  explicit LocalStorage(std::shared_ptr<const Context> context) : context_(std::move(context)) {}

  std::string_view name() const override { return context_->name; }
  Capabilities capabilities() const override {
    return {.locality = Locality::kLocal,
            .conditional_write = true,
            .copy_range = true,
            .list_uploads = true,
            .knows_dead = true,
            .free_space = true,
            .durable = true,
            .resume = true,
            .notes = true,
            .folders = true};
  }

  [[nodiscard]] Result<std::unique_ptr<RandomReader>> open_read(std::string_view key,
                                                                const OpenOptions& options) override {
    return LocalReader::open(context_, key, options);
  }
  [[nodiscard]] Result<std::unique_ptr<Writer>> open_write(std::string_view key, const WriteOptions& options) override {
    return open_local_writer(context_, key, options);
  }
  void submit(std::span<const Operation> operations, CompletionQueue& queue) override {
    submit_local(*context_, operations, queue);
  }

  [[nodiscard]] Result<ObjectInfo> stat(std::string_view key) override {
    ASSIGN_OR_RETURN(const std::string path, path_of(*context_, key));
    ASSIGN_OR_RETURN(const auto info, stat_path(*context_->sys, path));
    RETURN_IF_ERROR(check_is_file(info, path));
    ObjectInfo object = object_info(std::string(key), info);
    object.posix = posix_attributes(info);
    return object;
  }
  [[nodiscard]] Result<ListPage> list(std::string_view prefix, const ListOptions& options) override {
    RETURN_IF_ERROR(check_listing(prefix, options));
    return list_objects(*context_, prefix, options);
  }
  [[nodiscard]] Status remove(std::span<const std::string> keys) override {
    Status first;
    for (const std::string& key : keys) {
      auto status = remove_one(key);
      if (first && !status) first = std::move(status);
    }
    return first;
  }

  [[nodiscard]] Status remove_empty_folder(std::string_view key) override {
    ASSIGN_OR_RETURN(const std::string path, path_of(*context_, key));
    return remove_empty_directory(path);
  }
  [[nodiscard]] Status make_folder(std::string_view key) override {
    ASSIGN_OR_RETURN(const std::string path, path_of(*context_, key));
    return make_directories(*context_, path);
  }
  [[nodiscard]] Status remove_folder(std::string_view key) override {
    ASSIGN_OR_RETURN(const std::string path, path_of(*context_, key));
    if (::rmdir(path.c_str()) == 0 || errno == ENOENT) return {};
    if (errno == ENOTEMPTY || errno == EEXIST) {
      return fail(ErrorCode::kInvalidArgument, "remove directory {}: it is not empty", path);
    }
    return tl::unexpected<Error>(errno_error(errno, "remove directory " + path));
  }

  [[nodiscard]] Result<std::optional<PosixAttributes>> folder_attributes(std::string_view key) override {
    ASSIGN_OR_RETURN(const std::string path, path_of(*context_, key));
    const auto info = stat_path(*context_->sys, path);
    if (!info && info.error().code() != ErrorCode::kNotFound) return tl::unexpected<Error>(info.error());
    if (!info || !S_ISDIR(info->st_mode)) return std::nullopt;
    return posix_attributes(*info);
  }
  [[nodiscard]] Status set_folder_attributes(std::string_view key, const PosixAttributes& attributes) override {
    ASSIGN_OR_RETURN(const std::string path, path_of(*context_, key));
    return set_directory_attributes(*context_, path, attributes);
  }

  [[nodiscard]] Result<std::vector<ObjectInfo>> list_uploads(std::string_view prefix) override {
    RETURN_IF_ERROR(check_listing(prefix, {}));
    return list_local_uploads(*context_, prefix);
  }
  [[nodiscard]] Status abort_uploads(std::span<const ObjectInfo> uploads) override {
    return abort_local_uploads(*context_, uploads);
  }
  [[nodiscard]] Result<std::unique_ptr<Writer>> resume_write(const ObjectInfo& upload,
                                                             const WriteOptions& options) override {
    return resume_local_writer(context_, upload, options);
  }

  [[nodiscard]] Status make_durable(std::span<const std::string> keys) override;
  [[nodiscard]] Result<FreeSpace> free_space(std::string_view prefix) override {
    RETURN_IF_ERROR(check_listing(prefix, {}));
    return free_space_at(*context_, parent_of(context_->path(prefix)));
  }

 private:
  Status remove_one(const std::string& key) {
    ASSIGN_OR_RETURN(const std::string path, path_of(*context_, key));
    ASSIGN_OR_RETURN(const auto lock, DirectoryLock::take(*context_->sys, parent_of(path), LockMode::kShared));
    const int64_t removed = retry([&] { return context_->sys->unlink(path.c_str()); });
    if (removed < 0 && removed != -ENOENT && removed != -ENOTDIR) return sys_fail(removed, "remove " + path);
    return {};
  }

  const std::shared_ptr<const Context> context_;
};

Status LocalStorage::make_durable(std::span<const std::string> keys) {
  std::vector<std::string> paths;
  for (const std::string& key : keys) {
    ASSIGN_OR_RETURN(paths.emplace_back(), path_of(*context_, key));
  }
  return make_files_durable(*context_, paths);
}

constexpr int kFewestThreads = 2;  // so that one slow file does not hold up all others
constexpr int kMostThreads = 16;   // more threads did not make one file system faster

}  // namespace
}  // namespace local

Result<LocalDirect> local_direct_from_environment() {
  const char* const value = std::getenv("MILLRACE_DIRECT_IO");
  const std::string_view mode = value != nullptr ? value : "";
  if (mode.empty() || mode == "auto") return LocalDirect::kByFileSystem;
  if (mode == "never") return LocalDirect::kNever;
  if (mode == "always") return LocalDirect::kAlways;
  return fail(ErrorCode::kInvalidArgument, "MILLRACE_DIRECT_IO is \"{}\", not auto, never or always", mode);
}

Result<std::shared_ptr<Storage>> open_local_storage(std::string root, const LocalOptions& options) {
  std::error_code error;
  std::string absolute = std::filesystem::absolute(root, error).lexically_normal().string();
  if (error || root.empty()) return fail(ErrorCode::kInvalidArgument, "\"{}\" is not a path of a directory", root);
  while (absolute.ends_with('/')) absolute.pop_back();

  auto context = std::make_shared<local::Context>();
  context->root = std::move(absolute);
  context->name = "file://" + (context->root.empty() ? "/" : context->root);
  context->sys = options.syscalls != nullptr ? options.syscalls : &real_syscalls();
  context->rings = options.rings;
  context->streams = std::make_shared<local::StreamPolicy>(options.direct);
  const int threads = options.io_threads > 0 ? options.io_threads
                                             : std::clamp(available_cpus(), local::kFewestThreads, local::kMostThreads);
  context->state = std::make_unique<PerProcess<local::ProcessState>>([threads, shared = context.get()] {
    return std::make_unique<local::ProcessState>(*shared->sys, threads,
                                                 local::open_file_system(*shared->sys, shared->root));
  });
  ASSIGN_OR_RETURN(const auto info, local::stat_path(*context->sys, context->root + "/."));
  static_cast<void>(info);
  return std::make_shared<local::LocalStorage>(std::move(context));
}

}  // namespace millrace
