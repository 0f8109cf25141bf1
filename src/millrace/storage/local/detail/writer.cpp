// SPDX-License-Identifier: Apache-2.0
#include "millrace/storage/local/detail/writer.h"

#include <fcntl.h>
#include <linux/falloc.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <utility>

#include "millrace/base/log.h"
#include "millrace/base/text/units.h"
#include "millrace/base/thread/sync.h"
#include "millrace/storage/detail/backend.h"
#include "millrace/storage/local/detail/directories.h"
#include "millrace/storage/local/detail/list.h"
#include "millrace/storage/local/detail/space.h"
#include "millrace/storage/local/detail/submit.h"
#include "millrace/storage/local/lustre.h"

namespace millrace::local {
namespace {

// Names are taken, and directories removed, by other processes between two calls: a choice, far above what races need.
constexpr int kTempTries = 100;
constexpr size_t kNameMaxBytes = 255;    // NAME_MAX of Linux
constexpr size_t kHoleBytes = 64 << 10;  // a shorter run of zeros saves no request to the disk

bool is_zero(std::span<const std::byte> bytes) {
  return std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0 && bytes.front() == std::byte{0};
}

}  // namespace

// The host and the nonce keep hosts that share a file system apart, the pid and the counter keep forks and threads
// apart; the target's name is for people and for list_uploads.
std::string temp_name(std::string_view target_name) {
  static const std::string origin = [] {
    std::string name = host_name().substr(0, 64);
    std::replace_if(name.begin(), name.end(), [](char c) { return c == '/' || c == '.'; }, '-');
    std::random_device random;
    return fmt::format("{}.{:08x}{:08x}", name, random(), random());
  }();
  static std::atomic<uint64_t> counter{0};
  std::string name = fmt::format("{}{}.{}.{}.", kTempPrefix, origin, ::getpid(), counter.fetch_add(1));
  name += target_name.substr(0, kNameMaxBytes - kNewNoteMark.size() - name.size());
  return name;
}

mode_t current_umask() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("Umask:")) return static_cast<mode_t>(std::strtoul(line.c_str() + 6, nullptr, 8));
  }
  return 022;
}

Status LocalWriter::begin() {
  ASSIGN_OR_RETURN(const bool is_unnamed, open_unnamed());
  if (!is_unnamed) {
    RETURN_IF_ERROR(check_target());
    RETURN_IF_ERROR(create_temp());
  }
  open_stream();
  return preallocate(0);
}

Status LocalWriter::check_target() const {
  const auto target = stat_path(sys(), path_);
  if (!target) {
    const int reason = target.error().sys_errno();
    return reason == ENOENT || reason == ENOTDIR ? Status() : tl::unexpected<Error>(target.error());
  }
  RETURN_IF_ERROR(check_is_file(*target, path_));
  // /dev/stdout, which leads to a file where the output is redirected.
  std::error_code error;
  const std::string leads_to = std::filesystem::read_symlink(path_, error).string();
  if (leads_to.starts_with("/proc/") || leads_to.starts_with("/dev/")) {
    return fail(
        ErrorCode::kInvalidArgument,
        "{} leads to {}, an open file of a process, which cannot be replaced; `millrace cat` writes to standard "
        "output",
        path_, leads_to);
  }
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
    discard();  // between open and lock it looked abandoned, and another process removed it
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

void LocalWriter::start_writes(std::vector<std::unique_ptr<PendingOperation>>& writes) {
  RingBatch batch(*context_);
  for (auto& one : writes) {
    const auto piece = transfer(*one);
    const int64_t end = piece ? piece->offset + std::ssize(piece->memory) : 0;
    batch.add(one, piece, [this, end] {
      raise_end(end);
      return Status();
    });
  }
  std::erase(writes, nullptr);
  batch.submit();
}

// The write as one transfer that waits for the disk alone, if it is one.
std::optional<Transfer> LocalWriter::transfer(const PendingOperation& pending) const {
  const auto* write = std::get_if<Operation::Write>(&pending.operation().what);
  if (write == nullptr || !stream_ || options_.sparse || !check_open("write")) return {};
  const auto& [writer, offset, data] = *write;
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
  RETURN_IF_ERROR(copy_in_kernel(source, source_offset, size, offset, done));
  return copy_through_memory(source, source_offset + done, size - done, *this, offset + done);
}

// Copies as much as the kernel can; what is left (no file, other file system, none of this) is not an error.
Status LocalWriter::copy_in_kernel(const RandomReader& source, int64_t source_offset, int64_t size, int64_t offset,
                                   int64_t& done) {
  const LocalFile* const file = source.copy_source().local_file();
  if (file == nullptr) return {};
  while (done < size) {
    const int64_t moved = retry([&] {
      return sys().copy_file_range(file->descriptor(), source_offset + done, fd_.get(), offset + done,
                                   static_cast<size_t>(size - done));
    });
    if (moved == -ENOSPC || moved == -EDQUOT || moved == -EFBIG) {
      return sys_fail(moved, fmt::format("copy {} to {}", source.name(), path_));
    }
    if (moved <= 0) break;
    done += moved;
    raise_end(offset + done);
  }
  return file->check_unchanged();
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
