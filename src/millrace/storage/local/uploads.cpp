// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>

#include "millrace/storage/local/list.h"

namespace millrace::local {
namespace {

// The target's name in ".millrace-tmp.host.nonce.pid.counter.target"; nothing for a name that is not of this form.
std::string_view target_of(std::string_view temp_name) {
  if (!temp_name.starts_with(kTempPrefix)) return {};
  size_t at = kTempPrefix.size();
  for (int field = 0; field < 4; ++field) {
    at = temp_name.find('.', at);
    if (at == temp_name.npos) return {};
    ++at;
  }
  return temp_name.substr(at);
}

// A file whose writer is gone: nobody holds its lock. The answer holds the lock shared, so that a writer that has just
// made the file and waits for its lock sees what happens to it. Empty when somebody does, or the file is gone.
Result<Fd> open_abandoned(Syscalls& sys, const std::string& path) {
  auto fd = open_fd(sys, path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
  if (!fd && fd.error().code() == ErrorCode::kNotFound) return Fd();
  if (!fd) return fd;
  ASSIGN_OR_RETURN(const bool locked, try_lock(sys, *fd, path, LockMode::kShared));
  return locked ? std::move(*fd) : Fd();
}

class UploadFinder {
 public:
  UploadFinder(const Context& context, std::string_view prefix) : context_(context), prefix_(prefix) {}

  Result<std::vector<ObjectInfo>> run() {
    RETURN_IF_ERROR(walk(std::string(directory_part(prefix_))));
    return std::move(uploads_);
  }

 private:
  Status walk(const std::string& dir) {
    ASSIGN_OR_RETURN(const Directory directory,
                     read_directory(*context_.sys, context_.path(dir.substr(0, dir.rfind('/')))));
    if (!path_.enter(directory)) return {};
    for (const auto& entry : directory.entries) {
      const std::string key = dir + (entry.is_directory() ? entry.name : std::string(target_of(entry.name)));
      if (!key.starts_with(prefix_)) continue;
      if (entry.is_directory()) {
        RETURN_IF_ERROR(walk(key));
      } else if (entry.name.starts_with(kTempPrefix) && key.size() > dir.size()) {
        RETURN_IF_ERROR(add(dir, entry.name, key));
      }
    }
    path_.leave();
    return {};
  }

  Status add(const std::string& dir, const std::string& temp, const std::string& key) {
    const std::string path = context_.path(dir + temp);
    ASSIGN_OR_RETURN(const Fd fd, open_abandoned(*context_.sys, path));
    if (!fd) return {};
    ASSIGN_OR_RETURN(const auto info, stat_fd(*context_.sys, fd, path));
    ObjectInfo upload = object_info(key, info);
    upload.version = temp;
    uploads_.push_back(std::move(upload));
    return {};
  }

  const Context& context_;
  const std::string_view prefix_;
  WalkPath path_;
  std::vector<ObjectInfo> uploads_;
};

Status abort_upload(const Context& context, const ObjectInfo& upload) {
  RETURN_IF_ERROR(check_key(upload.key));
  const bool one_name = upload.version.find_first_of(std::string_view("/\0", 2)) == std::string::npos;
  if (!one_name || target_of(upload.version).empty()) {
    return fail(ErrorCode::kInvalidArgument, "abort {}: \"{}\" is no upload", context.path(upload.key), upload.version);
  }
  const std::string path = context.path(std::string(directory_part(upload.key)) + upload.version);
  ASSIGN_OR_RETURN(const Fd fd, open_abandoned(*context.sys, path));
  if (!fd) return {};
  const int64_t removed = retry([&] { return context.sys->unlink(path.c_str()); });
  if (removed < 0 && removed != -ENOENT) return sys_fail(removed, "remove " + path);
  return {};
}

}  // namespace

Result<std::vector<ObjectInfo>> list_local_uploads(const Context& context, std::string_view prefix) {
  return UploadFinder(context, prefix).run();
}

Status abort_local_uploads(const Context& context, std::span<const ObjectInfo> uploads) {
  Status first;
  for (const ObjectInfo& upload : uploads) {
    auto status = abort_upload(context, upload);
    if (first && !status) first = std::move(status);
  }
  return first;
}

}  // namespace millrace::local
