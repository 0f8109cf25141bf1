// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "millrace/storage/local/detail/directories.h"
#include "millrace/storage/local/detail/writer.h"

// A commit, in the order that makes it safe:
//
//   write ".millrace-tmp.*" in the target's directory, under a lock that dies with the process; or a brief write a file
//   without a name, where there can be one, which needs no lock and is gone after a kill
//   set the modification time        - makes the version unique, see next_mtime_ns
//   owner and mode, where asked for
//   fdatasync(file)                  - the content is on the disk before its name points to it     (durable)
//   check the condition, rename      - the one step that makes it visible; or link, where no file is there yet
//   unlink the note, if any          - not before: what is killed in between must not be sent again. A note without
//                                      its file, which a crash may leave, is a separate upload, see uploads.cpp
//   fsync(directory and new parents) - the name is on the disk                                     (durable)
//
// crash_test.cpp cuts the power before each of these calls.

namespace millrace::local {
namespace {

// The system stamps files with a clock that ticks every few ms, and inode numbers are used again at once: two objects
// of one size, one after the other, could share a version. A finer time that never repeats in this process prevents
// it.
int64_t next_mtime_ns() {
  static std::atomic<int64_t> last{0};
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const int64_t wanted = std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
  int64_t before = last.load();
  int64_t next = 0;
  do {
    next = std::max(wanted, before + 1);
  } while (!last.compare_exchange_weak(before, next));
  return next;
}

}  // namespace

Result<ObjectInfo> LocalWriter::commit(Durability durability) {
  RETURN_IF_ERROR(check_open("commit"));
  auto file = finish_file(durability);
  Status published = file ? publish() : Status(tl::unexpected<Error>(file.error()));
  if (!published) {
    discard();
    return tl::unexpected<Error>(std::move(published).error());
  }
  remove_note();
  ObjectInfo committed = object_info(key_, *file);
  committed.changed = {};  // the new name came after
  if (const auto now = stat_fd(sys(), fd_, path_); now && version_of(*now) == committed.version) {
    committed = object_info(key_, *now);
  }
  leave();
  if (durability == Durability::kDurable) {
    RETURN_IF_ERROR(with_context(sync_directory(*context_, parent_of(path_)),
                                 fmt::format("commit {}: visible, but may not survive a power cut", path_)));
  }
  return committed;
}

Result<struct stat> LocalWriter::finish_file(Durability durability) {
  const int64_t end = end_.load();
  if (options_.size_hint_bytes > end) {  // give back what was reserved behind the end
    const int64_t cut = retry([&] { return sys().ftruncate(fd_.get(), end); });
    if (cut < 0) return sys_fail(cut, "commit " + path_);
  }
  RETURN_IF_ERROR(set_attributes());
  const int64_t synced =
      durability == Durability::kDurable ? retry([&] { return sys().fdatasync(fd_.get()); }) : hand_over();
  if (synced < 0) return sys_fail(synced, "sync " + path_);
  return stat_fd(sys(), fd_, path_);
}

Status LocalWriter::set_attributes() {
  if (options_.posix) return set_posix_attributes(*context_, fd_, path_, *options_.posix);
  if ((options_.mode | kOwnerMode) != options_.mode && options_.mode != 0) {
    const int64_t changed = retry([&] { return sys().fchmod(fd_.get(), options_.mode & ~current_umask()); });
    if (changed < 0) return sys_fail(changed, "change the mode of " + path_);
  }
  const int64_t mtime = next_mtime_ns();
  const timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {mtime / 1'000'000'000, mtime % 1'000'000'000}};
  const int64_t stamped = retry([&] { return sys().futimens(fd_.get(), times); });
  if (stamped < 0) return sys_fail(stamped, "commit " + path_);
  return {};
}

// Closes a second descriptor: NFS then sends what it holds and answers the errors of earlier writes, and other hosts
// see whole content under the new name. Elsewhere it is free. The first descriptor keeps the lock.
int64_t LocalWriter::hand_over() {
  const int64_t second = retry([&] { return sys().dup(fd_.get()); });
  if (second < 0) return second;
  return sys().close(static_cast<int>(second)) < 0 ? -int64_t{errno} : 0;
}

// Where no file is there yet it gets its name at once, without the lock of the directory: an if_version writes only
// where something is. Else it gets that of a temporary file, to be renamed: false.
Result<bool> LocalWriter::publish_unnamed() {
  const auto name_it = [&](const std::string& name) -> int64_t {
    const auto link = [&] { return retry([&] { return sys().link_fd(fd_.get(), name.c_str()); }); };
    const int64_t named = link();
    // A file without a name does not keep another process from removing its empty directory.
    return named == -ENOENT && make_directories(*context_, parent_of(path_)) ? link() : named;
  };
  int64_t named = name_it(path_);
  if (named == 0) return true;
  if (named == -EEXIST) {
    RETURN_IF_ERROR(check_target());
    const std::string dir = parent_of(path_);
    std::string temp = dir + "/" + temp_name(std::string_view(path_).substr(dir.size() + 1));
    RETURN_IF_ERROR(lock_temp(temp));  // before anybody can see it
    named = name_it(temp);
    if (named == 0) temp_path_ = std::move(temp);
  }
  if (named < 0) return sys_fail(named, "commit " + path_);
  return false;
}

Status LocalWriter::publish() {
  using Condition = WriteOptions::Condition;
  if (temp_path_.empty()) {
    ASSIGN_OR_RETURN(const bool done, publish_unnamed());
    if (done) return {};
  }
  const bool if_version = options_.condition == Condition::kIfVersion;
  ASSIGN_OR_RETURN(const auto lock,
                   DirectoryLock::take(sys(), parent_of(path_), if_version ? LockMode::kExclusive : LockMode::kShared));
  if (options_.condition == Condition::kIfAbsent) return publish_if_absent();
  if (if_version) {
    const auto current = stat_path(sys(), path_);
    if (!current && current.error().code() != ErrorCode::kNotFound) return tl::unexpected<Error>(current.error());
    if (!current || version_of(*current) != options_.version) {
      return fail(ErrorCode::kAlreadyExists, "commit {}: its version is {}, not {}", path_,
                  current ? version_of(*current) : "that of no file", options_.version);
    }
  }
  const int64_t renamed = retry([&] { return sys().rename(temp_path_.c_str(), path_.c_str()); });
  if (renamed < 0) return sys_fail(renamed, "commit " + path_);
  return {};
}

Status LocalWriter::publish_if_absent() {
  int64_t made = retry([&] { return sys().rename_noreplace(temp_path_.c_str(), path_.c_str()); });
  if (made == -EINVAL || made == -ENOSYS) {  // NFS and old file systems; a hard link is as atomic
    made = retry([&] { return sys().link(temp_path_.c_str(), path_.c_str()); });
    if (made == 0) static_cast<void>(retry([&] { return sys().unlink(temp_path_.c_str()); }));
  }
  if (made == -EEXIST) return fail(ErrorCode::kAlreadyExists, "commit {}: it exists", path_);
  if (made < 0) return sys_fail(made, "commit " + path_);
  return {};
}

}  // namespace millrace::local
