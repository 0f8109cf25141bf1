// SPDX-License-Identifier: Apache-2.0
#include "millrace/link/filler.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <optional>

#include "millrace/base/text/units.h"
#include "millrace/link/guarded_stub.h"
#include "millrace/link/stub_reader.h"
#include "millrace/storage/local/local.h"
#include "millrace/storage/url.h"

namespace millrace::link {

namespace {

using State = LinkFile::State;

constexpr int64_t kBegin = -1;  // the part before the first

std::string by_descriptor(int fd) {
  return fmt::format("/proc/self/fd/{}", fd);
}

int error_of_open(const Error& error) {
  return error.code() == ErrorCode::kResourceExhausted ? ENOSPC : EIO;
}

Status write_at(int fd, int64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t put = ::pwrite(fd, bytes.data(), bytes.size(), offset);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return tl::unexpected<Error>(errno_error(errno, "write the content"));
    bytes = bytes.subspan(static_cast<size_t>(put));
    offset += put;
  }
  return {};
}

// The file is a whole stub, and gives its blocks back.
Status empty_again(int fd, GuardedStub stub, const FileTime& modified) {
  struct stat info{};
  const timespec times[2] = {{.tv_sec = 0, .tv_nsec = UTIME_OMIT}, modified.as_timespec()};
  if (::fstat(fd, &info) != 0 ||
      ::fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, std::max<int64_t>(info.st_size, 1)) != 0 ||
      ::futimens(fd, times) != 0) {
    return tl::unexpected<Error>(errno_error(errno, "make it a stub again"));
  }
  stub.is_filling = false;
  return mark_guarded_stub(fd, stub);
}

}  // namespace

struct Filler::File {
  Descriptor event;  // as the guardian sent it, for reading
  std::pair<uint64_t, uint64_t> identity;
  std::vector<Done> done;

  // Held for the first part only.
  std::optional<InodeLock> lock;
  Descriptor out;
  GuardedStub stub;
  struct stat before{};
  bool is_touched = false;  // somebody gave the stub another size or time
  bool is_newer = false;    // than the version that the link knows
  bool has_content = false;
  std::string path;  // below the directory, for messages and where the state does not know the inode
  std::optional<LinkFile> known;
  std::string version;  // of the object
  std::unique_ptr<RandomReader> content;
  int64_t bytes = 0;
  std::optional<Hash128> hash;

  // Under the filler's mutex.
  int64_t next = kBegin, parts = 0, ended = 0;
  Status failure;
};

Result<std::unique_ptr<Filler>> Filler::open(const LinkConfig& config, const LinkHome& home,
                                             std::function<void(const LinkEvent&)> on_event,
                                             const std::stop_token& stop, const Options& options) {
  ASSIGN_OR_RETURN(auto state, LinkState::open(home.state_path()));
  return std::unique_ptr<Filler>(new Filler(config, home, std::move(state), std::move(on_event), stop, options));
}

Filler::Filler(const LinkConfig& config, LinkHome home, std::unique_ptr<LinkState> state,
               std::function<void(const LinkEvent&)> on_event, const std::stop_token& stop, const Options& options)
    : config_(config),
      home_(std::move(home)),
      state_(std::move(state)),
      on_event_(std::move(on_event)),
      options_(options),
      stops_(stop, [this] { stop_.request_stop(); }) {
  for (int i = 0; i < options_.threads; ++i) threads_.emplace_back("mr-fill", [this] { work(); });
}

Filler::~Filler() {
  stop_.request_stop();
  {
    const MutexLock lock(mutex_);
    is_ending_ = true;
    changed_.notify_all();
  }
  threads_.clear();
}

void Filler::fill(Descriptor file, Done done) {
  struct stat info{};
  if (::fstat(file.get(), &info) != 0) return done(EIO);
  const std::pair<uint64_t, uint64_t> identity(info.st_dev, info.st_ino);
  const MutexLock lock(mutex_);
  if (const auto same = files_.find(identity); same != files_.end()) {
    same->second->done.push_back(std::move(done));
    return;
  }
  auto made = std::make_shared<File>();
  made->event = std::move(file);
  made->identity = identity;
  made->done.push_back(std::move(done));
  files_.emplace(identity, made);
  queue_.push_back(std::move(made));
  changed_.notify_one();
}

void Filler::work() {
  const StopScope scope(stop_.get_token());
  std::vector<std::byte> buffer;
  while (true) {
    FilePtr file;
    int64_t part = 0;
    {
      MutexLock lock(mutex_);
      while (queue_.empty() && !is_ending_) changed_.wait(mutex_);
      if (queue_.empty()) return;
      file = queue_.front();
      part = file->next++;
      if (part == kBegin || file->next >= file->parts) queue_.pop_front();
    }
    run_part(file, part, buffer);
  }
}

// The thread that ends the last part finishes the file.
void Filler::run_part(const FilePtr& file, int64_t part, std::vector<std::byte>& buffer) {
  if (buffer.empty()) buffer.resize(options_.part_bytes);
  if (part == kBegin) {
    const Status begun = stop_.stop_requested() ? fail(ErrorCode::kCancelled, "stopped") : begin(*file);
    if (!begun || file->has_content) return ended(file, begun);
    if (begin_parts(file)) return;
  } else {
    Status copied = stop_.stop_requested() ? fail(ErrorCode::kCancelled, "stopped") : copy_part(*file, part, buffer);
    const MutexLock lock(mutex_);
    if (!copied && file->failure) {
      file->failure = std::move(copied);
      // Nobody begins its other parts.
      std::erase(queue_, file);
      file->ended += file->parts - file->next;
      file->next = file->parts;
    }
    if (++file->ended < file->parts) return;
  }
  if (!file->failure && file->failure.error().code() == ErrorCode::kCorruption && may_take_newer(*file)) {
    const Status newer = take_newer(*file);
    if (!newer) return ended(file, newer);
    if (begin_parts(file)) return;
  }
  ended(file, file->failure ? finish(*file, buffer) : file->failure);
}

// False: there are none.
bool Filler::begin_parts(const FilePtr& file) {
  const MutexLock lock(mutex_);
  const auto part_bytes = static_cast<int64_t>(options_.part_bytes);
  file->parts = (file->bytes + part_bytes - 1) / part_bytes;
  file->next = file->ended = 0;
  file->failure = {};
  if (file->parts == 0) return false;
  queue_.push_front(file);
  changed_.notify_all();
  return true;
}

std::string Filler::path_below(int fd) const {
  std::error_code error;
  const std::string whole = std::filesystem::read_symlink(by_descriptor(fd), error).string();
  for (const std::string& root : {config_.show_at + "/", config_.directory + "/"}) {
    if (whole.starts_with(root)) return whole.substr(root.size());
  }
  return "";
}

Status Filler::begin(File& file) {
  file.path = path_below(file.event.get());
  ASSIGN_OR_RETURN(file.lock, InodeLock::take(home_, file.identity.second));
  const auto stub = read_guarded_stub(file.event.get());
  file.has_content = !stub;
  if (!stub) return {};
  file.stub = *stub;
  // With O_RDWR the guardian's own descriptor would fail on a read-only mount, and keep a program from being executed.
  file.out = Descriptor(::open(by_descriptor(file.event.get()).c_str(), O_RDWR | O_CLOEXEC));
  if (file.out.get() < 0 && errno == EROFS && !file.path.empty()) {
    file.out = Descriptor(::open(fmt::format("{}/{}", config_.directory, file.path).c_str(), O_RDWR | O_CLOEXEC));
  }
  if (file.out.get() < 0) return tl::unexpected<Error>(errno_error(errno, "open the stub for writing"));
  if (file.stub.is_filling) {
    // A process died while it wrote: what the file has of content and time is its own.
    const timespec times[2] = {{.tv_sec = 0, .tv_nsec = UTIME_OMIT}, file.stub.modified.as_timespec()};
    if (::futimens(file.out.get(), times) != 0) return tl::unexpected<Error>(errno_error(errno, "set the time"));
  }
  if (::fstat(file.out.get(), &file.before) != 0 || file.before.st_ino != file.stub.inode) {
    return fail(ErrorCode::kUnavailable, "the file is no longer there");
  }
  file.is_touched = file.before.st_size != file.stub.size || FileTime(file.before.st_mtim) != file.stub.modified;
  RETURN_IF_ERROR(find_object(file));
  ObjectInfo as_made;
  as_made.size = file.stub.size;
  as_made.modified = file.stub.modified;
  auto content = open_object(config_.url, file.path, as_made, file.version);
  if (content) return begin_content(file, *std::move(content));
  if (content.error().code() == ErrorCode::kCorruption && may_take_newer(file)) return take_newer(file);
  return tl::unexpected<Error>(content.error());
}

Status Filler::begin_content(File& file, std::unique_ptr<RandomReader> content) {
  file.content = std::move(content);
  // A program that has cut the stub, or made it longer, gets what it would have of the content.
  file.bytes = std::min<int64_t>(file.before.st_size, file.content->size());
  file.stub.is_filling = true;
  RETURN_IF_ERROR(mark_guarded_stub(file.out.get(), file.stub));
  // A full disk says so before the content is asked for.
  if (file.bytes > 0 && ::fallocate(file.out.get(), FALLOC_FL_KEEP_SIZE, 0, file.bytes) != 0 && errno == ENOSPC) {
    return tl::unexpected<Error>(errno_error(ENOSPC, "make room for the content"));
  }
  return {};
}

Status Filler::find_object(File& file) {
  ASSIGN_OR_RETURN(file.known, state_->find_here(version_of(file.stub, file.before)));
  if (file.known && !file.known->there.empty()) {
    file.path = file.known->path;
    file.version = file.known->there;
    return {};
  }
  file.known.reset();
  if (!file.path.empty()) return {};
  return fail(ErrorCode::kUnavailable, "the link does not know the file");
}

bool Filler::may_take_newer(const File& file) {
  return !file.is_touched && !file.is_newer;
}

// The bucket has a version that no sweep has seen yet: the stub becomes that one's.
Status Filler::take_newer(File& file) {
  ASSIGN_OR_RETURN(const Location there, open_url(config_.url));
  ASSIGN_OR_RETURN(const ObjectInfo now, there.storage->stat(there.child(file.path).key));
  ASSIGN_OR_RETURN(auto content, open_object(config_.url, file.path, now, now.version));
  const FileTime modified = now.posix ? now.posix->modified : now.modified;
  const timespec times[2] = {{.tv_sec = 0, .tv_nsec = UTIME_OMIT}, modified.as_timespec()};
  if (::ftruncate(file.out.get(), now.size) != 0 || ::futimens(file.out.get(), times) != 0 ||
      ::fstat(file.out.get(), &file.before) != 0) {
    return tl::unexpected<Error>(errno_error(errno, "give the stub its new size"));
  }
  if (file.known && file.version != now.version) {
    file.known->hash.reset();
    file.known->proof.clear();
  }
  file.is_newer = true;
  file.version = now.version;
  file.stub.size = now.size;
  file.stub.modified = modified;
  return begin_content(file, std::move(content));
}

Status Filler::copy_part(const File& file, int64_t part, std::vector<std::byte>& buffer) const {
  const auto part_bytes = static_cast<int64_t>(options_.part_bytes);
  const int64_t offset = part * part_bytes;
  const std::span<std::byte> bytes(buffer.data(), static_cast<size_t>(std::min(part_bytes, file.bytes - offset)));
  RETURN_IF_ERROR(file.content->read_at(offset, bytes));
  return write_at(file.out.get(), offset, bytes);
}

// What the file holds now, against the hash that was known before it was released.
Status Filler::check_content(File& file, std::vector<std::byte>& buffer) const {
  Xxh3Stream hash;
  for (int64_t at = 0; at < file.bytes;) {
    const ssize_t got = ::pread(file.out.get(), buffer.data(), buffer.size(), at);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return tl::unexpected<Error>(errno_error(errno, "read the content again"));
    if (got == 0) return fail(ErrorCode::kUnavailable, "the file became shorter while it was filled");
    hash.update(std::span(buffer).first(static_cast<size_t>(got)));
    at += got;
  }
  file.hash = hash.digest();
  if (!file.known || !file.known->hash || *file.known->hash == *file.hash) return {};
  return fail(ErrorCode::kCorruption, "the bucket gave content whose hash is {}, not {} as it was released",
              to_hex(*file.hash), to_hex(*file.known->hash));
}

Status Filler::finish(File& file, std::vector<std::byte>& buffer) {
  if (!file.is_touched) RETURN_IF_ERROR(check_content(file, buffer));
  // Without the attribute a power cut must not leave zeros.
  if (::fdatasync(file.out.get()) != 0) return tl::unexpected<Error>(errno_error(errno, "write the content to disk"));
  const FileTime modified = file.is_touched ? FileTime(file.before.st_mtim) : file.stub.modified;
  const timespec times[2] = {{.tv_sec = 0, .tv_nsec = UTIME_OMIT}, modified.as_timespec()};
  if (::futimens(file.out.get(), times) != 0) return tl::unexpected<Error>(errno_error(errno, "set the time"));
  if (::fremovexattr(file.out.get(), kGuardedStubAttribute) != 0) {
    return tl::unexpected<Error>(errno_error(errno, "take the stub's attribute away"));
  }
  return file.is_touched ? Status() : remember(file);
}

// A sweep would learn the same, by comparing the content.
Status Filler::remember(const File& file) {
  if (!file.known) return {};
  ASSIGN_OR_RETURN(const std::optional<LinkFile> now, state_->find(file.known->path));
  if (!now || now->here.version != file.known->here.version || now->there != file.known->there) return {};
  ASSIGN_OR_RETURN(const Location here, open_url(config_.directory));
  const auto info = here.storage->stat(here.child(file.known->path).key);
  struct stat filled{};
  if (!info || ::fstat(file.out.get(), &filled) != 0 || info->version != local_version(filled)) return {};
  LinkFile learned = *file.known;
  learned.size = file.bytes;
  learned.here = sync::recorded_version(*info);
  learned.there = file.version;
  learned.hash = file.hash;
  learned.state = State::kEqual;
  RETURN_IF_ERROR(state_->put(learned));
  RETURN_IF_ERROR(state_->clear_problem(learned.path));
  return state_->commit();
}

void Filler::ended(const FilePtr& file, const Status& status) {
  // Where it fails the file says that it is being filled, and the next open begins anew.
  if (!status && file->before.st_ino != 0) {
    static_cast<void>(empty_again(file->out.get(), file->stub, FileTime(file->before.st_mtim)));
  }
  if (!status && !stop_.stop_requested() && !file->path.empty()) {
    static_cast<void>(
        state_->set_problem(file->path, "a program opened it: " + status.error().to_string()).and_then([&] {
          return state_->commit();
        }));
  }
  // The guardian lets the program go on: nothing may hold the file open for writing then.
  file->out = Descriptor();
  file->lock.reset();
  std::vector<Done> done;
  {
    const MutexLock lock(mutex_);
    files_.erase(file->identity);
    done = std::move(file->done);
  }
  for (const Done& each : done) each(status ? 0 : error_of_open(status.error()));
  if (on_event_ && !file->has_content) {
    on_event_({status ? "fill" : "fail", file->path,
               status ? "a program opened it" : "a program opened it: " + status.error().to_string(), file->bytes,
               file->bytes});
  }
}

Status settle_fills(const LinkConfig& config, const LinkHome& home, LinkState& state) {
  constexpr size_t kPage = 4096;
  std::string after;
  while (true) {
    ASSIGN_OR_RETURN(const std::vector<std::string> paths, state.paths_in(State::kReleased, after, kPage));
    if (paths.empty()) return {};
    for (const std::string& path : paths) {
      const std::string whole = fmt::format("{}/{}", config.directory, path);
      const auto seen = read_guarded_stub(whole);
      if (!seen || !seen->is_filling) continue;
      ASSIGN_OR_RETURN(const InodeLock lock, InodeLock::take(home, seen->inode));
      const Descriptor file(::open(whole.c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC));
      if (file.get() < 0) return tl::unexpected<Error>(errno_error(errno, "open " + whole));
      const auto now = read_guarded_stub(file.get());
      if (now && now->is_filling) {
        RETURN_IF_ERROR(with_context(empty_again(file.get(), *now, now->modified), whole));
      }
    }
    after = paths.back();
  }
}

}  // namespace millrace::link
