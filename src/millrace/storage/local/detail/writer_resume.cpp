// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "millrace/storage/detail/backend.h"
#include "millrace/storage/local/detail/list.h"
#include "millrace/storage/local/detail/writer.h"

// An unfinished file outlives its process with a note beside it, which says what the writer knew. The lock on the file
// tells the living from the dead: resume takes it first. None of this is made durable: after a power cut a note may be
// old, empty or damaged, so the process that resumes proves what it says.

namespace millrace::local {
namespace {

// What is read of a note, and what may be written: a choice, far above the 60 bytes that sync writes.
constexpr int64_t kNoteLimitBytes = 1 << 20;
constexpr size_t kNotePageBytes = 4096;  // a write within a page is not cut in two by a kill
// A listing holds the lock for a few system calls, to see that no process does: 10 ms are plenty. By the clock, because
// flock(2) has no deadline, and a living writer keeps the lock.
constexpr int kResumeTries = 5;
constexpr std::chrono::milliseconds kResumeWait{2};

}  // namespace

// What was written stays when this fails.
Status LocalWriter::begin_resumed(const ObjectInfo& upload) {
  ASSIGN_OR_RETURN(const std::string path, upload_path(*context_, upload, "resume"));
  RETURN_IF_ERROR(open_abandoned_temp(path));
  if (parse_temp_name(upload.version)->is_note()) {
    discard();
    return fail(ErrorCode::kNotFound, "resume {}: {} is all that is left of it, a note", path_, path);
  }
  const auto prepare = [&]() -> Status {
    RETURN_IF_ERROR(check_target());
    RETURN_IF_ERROR(read_note());
    ASSIGN_OR_RETURN(const auto info, stat_fd(sys(), fd_, path));
    end_ = info.st_size;
    open_stream();
    return preallocate(int64_t{info.st_blocks} * kStatBlockBytes);
  };
  Status prepared = prepare();
  if (!prepared) leave();
  return prepared;
}

Status LocalWriter::open_abandoned_temp(const std::string& path) {
  ASSIGN_OR_RETURN(Fd fd, open_fd(sys(), path, O_RDWR | O_NOFOLLOW));
  bool locked = false;
  for (int i = 0; i < kResumeTries && !locked; ++i) {
    if (i > 0) std::this_thread::sleep_for(kResumeWait);
    ASSIGN_OR_RETURN(locked, try_lock(sys(), fd, path, LockMode::kExclusive));
  }
  if (!locked) return fail(ErrorCode::kUnavailable, "resume {}: another process is writing it", path_);
  ASSIGN_OR_RETURN(const auto info, stat_path(sys(), path));
  ASSIGN_OR_RETURN(const auto opened, stat_fd(sys(), fd, path));
  if (info.st_ino != opened.st_ino || !S_ISREG(info.st_mode)) {
    return fail(ErrorCode::kNotFound, "resume {}: {} is gone", path_, path);
  }
  temp_path_ = path;
  fd_ = std::move(fd);
  is_locked_ = true;
  return {};
}

Status LocalWriter::read_note() {
  static_cast<void>(retry([&] { return sys().unlink(note_path(temp_path_, kNewNoteMark).c_str()); }));
  const std::string path = note_path(temp_path_, kNoteMark);
  auto fd = open_fd(sys(), path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
  if (!fd && fd.error().code() == ErrorCode::kNotFound) return {};
  if (!fd) return tl::unexpected<Error>(std::move(fd).error());
  ASSIGN_OR_RETURN(const auto info, stat_fd(sys(), *fd, path));
  resumed_note_.resize(static_cast<size_t>(std::min<int64_t>(info.st_size, kNoteLimitBytes)));
  RETURN_IF_ERROR(pread_all(sys(), *fd, path, 0, std::as_writable_bytes(std::span(resumed_note_))));
  MutexLock lock(note_mutex_);
  has_note_ = true;
  return {};
}

Status LocalWriter::suspend() {
  RETURN_IF_ERROR(check_open("suspend"));
  RETURN_IF_ERROR(check_not_brief("suspend"));
  leave();
  return {};
}

Status LocalWriter::set_note(std::string_view note) {
  RETURN_IF_ERROR(check_open("set the note of"));
  RETURN_IF_ERROR(check_not_brief("set the note of"));
  if (std::ssize(note) > kNoteLimitBytes) {
    return fail(ErrorCode::kInvalidArgument, "a note of {} bytes on {}: more than {}", note.size(), path_,
                kNoteLimitBytes);
  }
  MutexLock lock(note_mutex_);
  // Each rename over a note makes ext4 write the new one to the disk at once, which is dear for every part of a file.
  const bool over_last = note_fd_ && note.size() == std::exchange(note_bytes_, 0) && note.size() <= kNotePageBytes;
  if (over_last) {
    RETURN_IF_ERROR(pwrite_all(sys(), note_fd_, note_path(temp_path_, kNoteMark), 0, as_bytes(note)));
  } else {
    has_note_ = true;
    const std::string fresh = note_path(temp_path_, kNewNoteMark);
    ASSIGN_OR_RETURN(note_fd_, open_fd(sys(), fresh, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW, 0600));
    RETURN_IF_ERROR(pwrite_all(sys(), note_fd_, fresh, 0, as_bytes(note)));
    const int64_t moved = retry([&] { return sys().rename(fresh.c_str(), note_path(temp_path_, kNoteMark).c_str()); });
    if (moved < 0) return sys_fail(moved, "write " + fresh);
  }
  note_bytes_ = note.size();
  return {};
}

// One that stays is found by list_uploads.
void LocalWriter::remove_note() {
  MutexLock lock(note_mutex_);
  if (!std::exchange(has_note_, false)) return;
  for (const std::string_view mark : {kNewNoteMark, kNoteMark}) {
    static_cast<void>(retry([&] { return sys().unlink(note_path(temp_path_, mark).c_str()); }));
  }
}

Status LocalWriter::read_back(int64_t offset, std::span<std::byte> out) {
  RETURN_IF_ERROR(check_open("read"));
  RETURN_IF_ERROR(check_write_range(path_, offset, out.size()));
  if (offset + std::ssize(out) > end_) {
    return fail(ErrorCode::kOutOfRange, "read {} bytes at offset {} of the unfinished {}: it has {}", out.size(),
                offset, path_, end_.load());
  }
  return pread_all(sys(), fd_, temp_path_, offset, out);
}

}  // namespace millrace::local
