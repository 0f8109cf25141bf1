// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>

#include <algorithm>

#include "millrace/storage/local/detail/list.h"

namespace millrace::local {
namespace {

// Opens a file whose writer is gone: its lock is free. The result holds the lock shared, so a writer that has just made
// the file and waits for the lock notices a removal. Empty when the lock is held, or the file is gone.
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
      if (entry.is_directory()) {
        const std::string deeper = dir + entry.name;
        if (deeper.starts_with(prefix_)) RETURN_IF_ERROR(walk(deeper));
      } else if (const auto temp = parse_temp_name(entry.name)) {
        const std::string key = dir + std::string(temp->target);
        if (key.starts_with(prefix_)) RETURN_IF_ERROR(add(dir, entry.name, *temp, key));
      }
    }
    path_.leave();
    return {};
  }

  Status add(const std::string& dir, const std::string& temp, const TempName& parsed, const std::string& key) {
    const std::string path = context_.path(dir + temp);
    ASSIGN_OR_RETURN(const bool belongs, has_owner(path, parsed));
    if (belongs) return {};
    ASSIGN_OR_RETURN(const Fd fd, open_abandoned(*context_.sys, path));
    if (!fd) return {};
    ASSIGN_OR_RETURN(const auto info, stat_fd(*context_.sys, fd, path));
    ObjectInfo upload = object_info(key, info);
    upload.version = temp;
    upload.size = std::max(upload.size, int64_t{info.st_blocks} * kStatBlockBytes);  // space may have been reserved
    uploads_.push_back(std::move(upload));
    return {};
  }

  // A note is not an upload, unless a crash left it without its file.
  Result<bool> has_owner(const std::string& path, const TempName& parsed) const {
    std::string owner = path;
    for (const std::string_view mark : {kNewNoteMark, kNoteMark}) {
      if (!parsed.counter.ends_with(mark)) continue;
      owner.erase(path.size() - parsed.target.size() - 1 - mark.size(), mark.size());
      const auto info = stat_path(*context_.sys, owner);
      if (!info && info.error().code() != ErrorCode::kNotFound) return tl::unexpected<Error>(info.error());
      return info.has_value();
    }
    return false;
  }

  const Context& context_;
  const std::string_view prefix_;
  WalkPath path_;
  std::vector<ObjectInfo> uploads_;
};

Status abort_upload(const Context& context, const ObjectInfo& upload) {
  ASSIGN_OR_RETURN(const std::string path, upload_path(context, upload, "abort"));
  ASSIGN_OR_RETURN(const Fd fd, open_abandoned(*context.sys, path));
  if (!fd) return {};
  for (const std::string& gone : {note_path(path, kNewNoteMark), note_path(path, kNoteMark), path}) {
    const int64_t removed = retry([&] { return context.sys->unlink(gone.c_str()); });
    if (removed < 0 && removed != -ENOENT) return sys_fail(removed, "remove " + gone);
  }
  return {};
}

}  // namespace

Result<std::vector<ObjectInfo>> list_local_uploads(const Context& context, std::string_view prefix) {
  return UploadFinder(context, prefix).run();
}

Result<std::string> upload_path(const Context& context, const ObjectInfo& upload, std::string_view what) {
  RETURN_IF_ERROR(check_key(upload.key));
  const bool one_name = upload.version.find_first_of(std::string_view("/\0", 2)) == std::string::npos;
  if (!one_name || !parse_temp_name(upload.version)) {
    return fail(ErrorCode::kInvalidArgument, "{} {}: \"{}\" is no upload", what, context.path(upload.key),
                upload.version);
  }
  return context.path(std::string(directory_part(upload.key)) + upload.version);
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
