// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <linux/falloc.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <random>
#include <thread>
#include <utility>

#include "millrace/base/log.h"
#include "millrace/base/units.h"
#include "millrace/storage/detail/backend.h"
#include "millrace/storage/local/detail/directories.h"
#include "millrace/storage/local/detail/list.h"
#include "millrace/storage/local/detail/objects.h"
#include "millrace/storage/local/detail/space.h"
#include "millrace/storage/local/detail/stream.h"
#include "millrace/storage/local/lustre.h"

// A commit, in the order that makes it safe:
//
//   write ".millrace-tmp.*" in the target's directory, under a lock that dies with the process; or a brief write a file
//   without a name, where there can be one, which leaves nothing and needs no lock
//   set the modification time        - makes the version unique, see next_mtime_ns
//   owner and mode, where asked for
//   fdatasync(file)                  - the content is on the disk before its name points to it     (durable)
//   check the condition, rename      - the one step that makes it visible; or link, where nothing is there yet
//   unlink the note, if any          - not before: what is killed in between must not be sent again. A note without
//                                      its file, which a crash may leave, is an upload of its own, see uploads.cpp
//   fsync(directory and new parents) - the name is on the disk                                     (durable)
//
// crash_test.cpp cuts the power before each of these calls.

namespace millrace::local {
namespace {

constexpr int kTempTries = 100;
constexpr mode_t kNewFileMode = 0666;
constexpr mode_t kOwnerMode = 0600;  // while it is written: another process may have to go on with it
constexpr size_t kNameMaxBytes = 255;
constexpr size_t kHoleBytes = 64 << 10;  // a shorter run of zeros saves no request to the disk
constexpr int64_t kNoteLimitBytes = 1 << 20;
constexpr size_t kNotePageBytes = 4096;  // nobody is killed in the middle of a page
constexpr int kResumeTries = 5;          // a listing holds the lock for a moment, to see that nobody else does
constexpr std::chrono::milliseconds kResumeWait{2};

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

// The host and the nonce keep hosts that share a file system apart, the pid and the counter keep forks and threads
// apart; the target's name is for people and for list_uploads.
std::string temp_name(std::string_view target_name) {
  static const std::string origin = [] {
    char host[65] = {};
    ::gethostname(host, sizeof host - 1);
    std::string name(host);
    std::replace_if(name.begin(), name.end(), [](char c) { return c == '/' || c == '.'; }, '-');
    std::random_device random;
    return fmt::format("{}.{:08x}{:08x}", name, random(), random());
  }();
  static std::atomic<uint64_t> counter{0};
  std::string name = fmt::format("{}{}.{}.{}.", kTempPrefix, origin, ::getpid(), counter.fetch_add(1));
  name += target_name.substr(0, kNameMaxBytes - kNewNoteMark.size() - name.size());
  return name;
}

// Of this process, which can only be asked for by changing it, but for what the system prints.
mode_t current_umask() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("Umask:")) return static_cast<mode_t>(std::strtoul(line.c_str() + 6, nullptr, 8));
  }
  return 022;
}

bool is_zero(std::span<const std::byte> bytes) {
  return std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0 && bytes.front() == std::byte{0};
}

class LocalWriter final : public RingWriter {
 public:
  LocalWriter(std::shared_ptr<const Context> context, std::string key, std::string path, const WriteOptions& options)
      : context_(std::move(context)), key_(std::move(key)), path_(std::move(path)), options_(options) {}
  ~LocalWriter() override { discard(); }

  Status begin();
  Status begin_resumed(const ObjectInfo& upload);
  [[nodiscard]] Status write_at(int64_t offset, std::span<const std::byte> data) override;
  std::optional<Transfer> transfer(int64_t offset, std::span<const std::byte> data) const override;
  void transferred(const Transfer& whole) override { raise_end(whole.offset + std::ssize(whole.memory)); }
  [[nodiscard]] Status copy_range(const RandomReader& source, int64_t source_offset, int64_t size,
                                  int64_t offset) override;
  [[nodiscard]] Result<ObjectInfo> commit(Durability durability) override;
  [[nodiscard]] Status suspend() override;
  [[nodiscard]] Status set_note(std::string_view note) override;
  std::string_view note() const override { return resumed_note_; }
  [[nodiscard]] Status read_back(int64_t offset, std::span<std::byte> out) override;

 private:
  Syscalls& sys() const { return *context_->sys; }
  Status check_target() const;
  mode_t new_file_mode() const { return options_.mode != 0 ? options_.mode | kOwnerMode : kNewFileMode; }
  Result<bool> open_unnamed();
  Status create_temp();
  Result<Fd> open_temp(const std::string& temp);
  Status open_abandoned_temp(const std::string& path);
  Status read_note();
  void remove_note();
  Status set_attributes();
  Status preallocate(int64_t allocated);
  void open_stream();
  Status write_piece(int64_t offset, std::span<const std::byte> data);
  Status write_sparse(int64_t offset, std::span<const std::byte> data);
  void leave();
  Status check_open(std::string_view what) const;
  Status check_not_brief(std::string_view what) const;
  Status copy_in_kernel(const LocalReader& source, int64_t source_offset, int64_t size, int64_t offset, int64_t& done);
  Result<struct stat> finish_file(Durability durability);
  int64_t hand_over();
  Status publish();
  Result<bool> publish_unnamed();
  Status lock_temp(const std::string& name);
  Status publish_if_absent();
  void raise_end(int64_t end);
  void discard();

  const std::shared_ptr<const Context> context_;
  const std::string key_;
  const std::string path_;
  const WriteOptions options_;
  const uint64_t generation_ = fork_generation();
  std::string temp_path_;  // empty where there is none (any more)
  Fd fd_;                  // until the commit
  bool is_locked_ = false;
  std::optional<Stream> stream_;  // of a large object
  std::atomic<int64_t> end_{0};   // behind the last byte written
  std::string resumed_note_;
  Mutex note_mutex_;
  bool has_note_ GUARDED_BY(note_mutex_) = false;
  Fd note_fd_ GUARDED_BY(note_mutex_);             // of what this writer has set
  size_t note_bytes_ GUARDED_BY(note_mutex_) = 0;  // of that, where it may be written over
};

Status LocalWriter::begin() {
  ASSIGN_OR_RETURN(const bool is_unnamed, open_unnamed());
  if (!is_unnamed) {
    RETURN_IF_ERROR(check_target());
    RETURN_IF_ERROR(create_temp());
  }
  open_stream();
  return preallocate(0);
}

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

Status LocalWriter::check_target() const {
  const auto target = stat_path(sys(), path_);
  if (!target) {
    const int reason = target.error().sys_errno();
    return reason == ENOENT || reason == ENOTDIR ? Status() : tl::unexpected<Error>(target.error());
  }
  RETURN_IF_ERROR(check_is_file(*target, path_));
  if (options_.condition == WriteOptions::Condition::kIfAbsent) {
    return fail(ErrorCode::kAlreadyExists, "write {}: it exists", path_);
  }
  return {};
}

// False where it has to be one with a name.
Result<bool> LocalWriter::open_unnamed() {
  static const bool can_be_named_later = ::access("/proc/self/fd", X_OK) == 0;
  auto& needs_names = context_->state->get().needs_names;
  const bool may = options_.brief && options_.condition == WriteOptions::Condition::kReplace;
  if (!may || !can_be_named_later || needs_names) return false;
  const std::string dir = parent_of(path_);
  for (int i = 0; i < kTempTries; ++i) {
    auto fd = open_fd(sys(), dir.empty() ? "/" : dir, O_RDWR | O_TMPFILE, new_file_mode());
    if (fd) {
      fd_ = std::move(*fd);
      return true;
    }
    const int reason = fd.error().sys_errno();
    if (reason == EOPNOTSUPP || reason == EISDIR || reason == EINVAL) needs_names = true;
    if (reason != ENOENT) return false;  // what is wrong shows when it is made with a name
    RETURN_IF_ERROR(make_directories(*context_, dir));
  }
  return false;
}

Status LocalWriter::lock_temp(const std::string& name) {
  auto locked = wait_lock(sys(), fd_, name, LockMode::kExclusive);
  is_locked_ = locked.has_value();
  return is_locked_ || locked.error().code() == ErrorCode::kUnsupported ? Status() : std::move(locked);
}

Status LocalWriter::create_temp() {
  const std::string dir = parent_of(path_);
  Error last(ErrorCode::kUnavailable, fmt::format("write {}: no place for it: {} keeps vanishing", path_, dir));
  for (int i = 0; i < kTempTries; ++i) {
    RETURN_IF_ERROR(make_directories(*context_, dir));
    std::string temp = dir + "/" + temp_name(std::string_view(path_).substr(dir.size() + 1));
    auto fd = open_temp(temp);
    if (!fd) {
      if (fd.error().sys_errno() != ENOENT && fd.error().sys_errno() != EEXIST) {
        return tl::unexpected<Error>(std::move(fd).error());
      }
      continue;  // the directory was removed, or the name is taken
    }
    temp_path_ = std::move(temp);
    fd_ = std::move(*fd);
    RETURN_IF_ERROR(lock_temp(temp_path_));
    ASSIGN_OR_RETURN(const auto info, stat_fd(sys(), fd_, temp_path_));
    if (info.st_nlink > 0) return {};
    discard();  // between open and lock it looked abandoned, and somebody cleaned up
  }
  return tl::unexpected<Error>(std::move(last));
}

// On Lustre with the layout that fits; elsewhere, and where lfs fails, an ordinary file.
Result<Fd> LocalWriter::open_temp(const std::string& temp) {
  const auto stripes = stripes_for(options_.size_hint_bytes, options_.stripe_count);
  if (stripes && is_lustre(sys(), parent_of(temp))) {
    if (const Status made = make_striped_file(temp, *stripes); made) {
      ASSIGN_OR_RETURN(Fd fd, open_fd(sys(), temp, O_RDWR | O_NOFOLLOW));
      static_cast<void>(retry([&] { return sys().fchmod(fd.get(), new_file_mode() & ~current_umask()); }));
      return fd;
    } else {
      log(LogLevel::kInfo, "{}: it gets the layout of its directory: {}", path_, made.error().to_string());
    }
  }
  return open_fd(sys(), temp, O_RDWR | O_CREAT | O_EXCL, new_file_mode());
}

Status LocalWriter::preallocate(int64_t allocated) {
  const int64_t size = options_.size_hint_bytes;
  if (size == 0 || options_.sparse) return {};
  ASSIGN_OR_RETURN(const FreeSpace free, free_space_at(*context_, parent_of(path_)));
  if (size - allocated > free.bytes) {
    return fail(ErrorCode::kResourceExhausted, "write {}: it needs {}, and {} are free ({})", path_,
                format_bytes(size - allocated), format_bytes(free.bytes), free.limit);
  }
  // The size stays, so that an unfinished or shorter object needs no care.
  const int64_t result = retry([&] { return sys().fallocate(fd_.get(), FALLOC_FL_KEEP_SIZE, 0, size); });
  if (result == -ENOSPC || result == -EDQUOT || result == -EFBIG) {
    return sys_fail(result, fmt::format("write {}: reserve {}", path_, format_bytes(size)));
  }
  return {};  // other failures: not every file system can, and none must
}

void LocalWriter::open_stream() {
  if (options_.size_hint_bytes < context_->streams->smallest_object_bytes(true)) return;
  stream_.emplace(sys(), *context_->streams, temp_path_, fd_, true);
}

Status LocalWriter::check_open(std::string_view what) const {
  if (!fd_) return fail(ErrorCode::kInvalidArgument, "{} {}: it was committed before", what, path_);
  if (generation_ == fork_generation()) return {};
  return fail(ErrorCode::kInvalidArgument, "{} {}: the writer belongs to the parent process", what, path_);
}

Status LocalWriter::check_not_brief(std::string_view what) const {
  if (!options_.brief) return {};
  return fail(ErrorCode::kUnsupported, "{} {}: it was begun as a brief write", what, path_);
}

void LocalWriter::raise_end(int64_t end) {
  int64_t before = end_.load();
  while (before < end && !end_.compare_exchange_weak(before, end)) {
  }
}

Status LocalWriter::write_at(int64_t offset, std::span<const std::byte> data) {
  RETURN_IF_ERROR(check_open("write"));
  RETURN_IF_ERROR(check_write_range(path_, offset, data.size()));
  RETURN_IF_ERROR(options_.sparse ? write_sparse(offset, data) : write_piece(offset, data));
  raise_end(offset + std::ssize(data));
  return {};
}

std::optional<Transfer> LocalWriter::transfer(int64_t offset, std::span<const std::byte> data) const {
  if (!stream_ || options_.sparse || !check_open("write")) return {};
  if (!check_write_range(path_, offset, data.size())) return {};
  // SAFETY: a transfer that writes only reads its memory.
  auto* const memory = const_cast<std::byte*>(data.data());
  return stream_->direct_transfer(offset, {memory, data.size()}, true);
}

Status LocalWriter::write_piece(int64_t offset, std::span<const std::byte> data) {
  const size_t streamed = stream_ ? stream_->write(offset, data) : 0;
  return pwrite_all(sys(), fd_, path_, offset + static_cast<int64_t>(streamed), data.subspan(streamed));
}

// Whole chunks of zeros become holes, but for the last one, so that the file is as long as what was written.
Status LocalWriter::write_sparse(int64_t offset, std::span<const std::byte> data) {
  const auto chunk_at = [&](size_t at) {
    const size_t to_boundary = kHoleBytes - (static_cast<size_t>(offset) + at) % kHoleBytes;
    return data.subspan(at, std::min(to_boundary, data.size() - at));
  };
  const auto is_hole = [&](size_t at) {
    const auto chunk = chunk_at(at);
    return chunk.size() == kHoleBytes && at + kHoleBytes < data.size() && is_zero(chunk);
  };
  for (size_t at = 0; at < data.size();) {
    size_t end = at;
    const bool hole = is_hole(at);
    while (end < data.size() && is_hole(end) == hole) end += chunk_at(end).size();
    const int64_t begin = offset + static_cast<int64_t>(at);
    // Something may have been written there before.
    const bool made = hole && retry([&] {
                                return sys().fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, begin,
                                                       static_cast<off_t>(end - at));
                              }) >= 0;
    if (!made) RETURN_IF_ERROR(write_piece(begin, data.subspan(at, end - at)));
    at = end;
  }
  return {};
}

Status LocalWriter::copy_range(const RandomReader& source, int64_t source_offset, int64_t size, int64_t offset) {
  RETURN_IF_ERROR(check_open("copy to"));
  RETURN_IF_ERROR(check_read_range(source, source_offset, size));
  RETURN_IF_ERROR(check_write_range(path_, offset, static_cast<size_t>(size)));
  int64_t done = 0;
  if (const auto* file = dynamic_cast<const LocalReader*>(&source)) {
    RETURN_IF_ERROR(copy_in_kernel(*file, source_offset, size, offset, done));
  }
  return copy_through_memory(source, source_offset + done, size - done, *this, offset + done);
}

// Copies as much as the kernel can; what is left (other file system, none of this) is not an error.
Status LocalWriter::copy_in_kernel(const LocalReader& source, int64_t source_offset, int64_t size, int64_t offset,
                                   int64_t& done) {
  while (done < size) {
    const int64_t moved = retry([&] {
      return sys().copy_file_range(source.fd().get(), source_offset + done, fd_.get(), offset + done,
                                   static_cast<size_t>(size - done));
    });
    if (moved == -ENOSPC || moved == -EDQUOT || moved == -EFBIG) {
      return sys_fail(moved, fmt::format("copy {} to {}", source.name(), path_));
    }
    if (moved <= 0) break;
    done += moved;
    raise_end(offset + done);
  }
  return source.check_unchanged();
}

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
  const int64_t mtime = next_mtime_ns();
  timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {mtime / 1'000'000'000, mtime % 1'000'000'000}};
  if ((options_.mode | kOwnerMode) != options_.mode && options_.mode != 0 && !options_.posix) {
    const int64_t changed = retry([&] { return sys().fchmod(fd_.get(), options_.mode & ~current_umask()); });
    if (changed < 0) return sys_fail(changed, "change the mode of " + path_);
  }
  if (const auto& posix = options_.posix) {
    if (posix->mode != 0) {
      const int64_t given = retry([&] { return sys().fchown(fd_.get(), posix->owner, posix->group); });
      if (given < 0 && given != -EPERM && given != -EINVAL) return sys_fail(given, "change the owner of " + path_);
      if (given < 0 && !context_->state->get().told_of_owners.exchange(true)) {
        log(LogLevel::kWarning,
            "{}: this user may not give files to others, so that this and further files keep the "
            "owner they have ({}:{} was asked for)",
            path_, posix->owner, posix->group);
      }
      // Whoever owns it now must not lend rights that the former owner gave.
      const mode_t kept = given < 0 ? 01777 : 07777;
      const int64_t changed = retry([&] { return sys().fchmod(fd_.get(), posix->mode & kept); });
      if (changed < 0) return sys_fail(changed, "change the mode of " + path_);
    }
    const auto time = [](std::chrono::nanoseconds since) {
      const auto seconds = std::chrono::floor<std::chrono::seconds>(since);
      return timespec{seconds.count(), (since - seconds).count()};
    };
    times[0] = time(posix->accessed.time_since_epoch());
    times[1] = time(posix->modified.time_since_epoch());
  }
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

// Where nothing is there yet it gets its name at once, without the lock of the directory: an if_version writes only
// where something is. Else it gets that of a temporary file, to be renamed: false.
Result<bool> LocalWriter::publish_unnamed() {
  const auto name_it = [&](const std::string& name) {
    return retry([&] { return sys().link_fd(fd_.get(), name.c_str()); });
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

void LocalWriter::discard() {
  // In a child after fork the file and its lock are the parent's.
  if (!temp_path_.empty() && generation_ == fork_generation()) {
    remove_note();
    static_cast<void>(retry([&] { return sys().unlink(temp_path_.c_str()); }));
  }
  leave();
}

void LocalWriter::leave() {
  // A forked child may hold the descriptor too.
  if (is_locked_ && generation_ == fork_generation()) unlock(sys(), fd_);
  is_locked_ = false;
  temp_path_.clear();
  stream_.reset();
  fd_.close();
}

}  // namespace

namespace {

Result<std::unique_ptr<LocalWriter>> make_writer(std::shared_ptr<const Context> context, std::string_view key,
                                                 const WriteOptions& options) {
  ASSIGN_OR_RETURN(std::string path, path_of(*context, key));
  if (!options.metadata.empty()) {
    return fail(ErrorCode::kUnsupported, "write {}: a file system keeps no metadata of objects", path);
  }
  if (options.size_hint_bytes < 0) {
    return fail(ErrorCode::kInvalidArgument, "write {}: a size hint of {}", path, options.size_hint_bytes);
  }
  static_cast<void>(context->state->get());  // see ProcessState::file_system
  return std::make_unique<LocalWriter>(std::move(context), std::string(key), std::move(path), options);
}

}  // namespace

Result<std::unique_ptr<Writer>> open_local_writer(std::shared_ptr<const Context> context, std::string_view key,
                                                  const WriteOptions& options) {
  ASSIGN_OR_RETURN(auto writer, make_writer(std::move(context), key, options));
  RETURN_IF_ERROR(writer->begin());
  return writer;
}

Result<std::unique_ptr<Writer>> resume_local_writer(std::shared_ptr<const Context> context, const ObjectInfo& upload,
                                                    const WriteOptions& options) {
  ASSIGN_OR_RETURN(auto writer, make_writer(std::move(context), upload.key, options));
  RETURN_IF_ERROR(writer->begin_resumed(upload));
  return writer;
}

}  // namespace millrace::local
