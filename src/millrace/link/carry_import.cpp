// SPDX-License-Identifier: Apache-2.0
// What the directory takes from the bucket: copies, stubs, and the content of released files.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <utility>
#include <vector>

#include "millrace/link/carry.h"
#include "millrace/link/detail/carry_work.h"
#include "millrace/link/hsm.h"
#include "millrace/link/stub.h"

namespace millrace::link {

namespace {

using State = LinkFile::State;
namespace fs = std::filesystem;

// A folder has no object, so one that its last file has left must not keep an object of its name away.
void remove_empty_folder(const std::string& path) {
  if (::rmdir(path.c_str()) == 0 || errno != ENOTEMPTY) return;
  std::error_code error;
  std::vector<std::string> folders;
  for (fs::recursive_directory_iterator entry(path, error); !error && entry != fs::recursive_directory_iterator();
       entry.increment(error)) {
    if (!fs::is_directory(entry->symlink_status(error)) || error) return;
    folders.push_back(entry->path().string());
  }
  if (error) return;
  for (size_t i = folders.size(); i-- > 0;) {
    if (::rmdir(folders[i].c_str()) != 0) return;
  }
  static_cast<void>(::rmdir(path.c_str()));
}

}  // namespace

Status Carrier::bring_back(const LinkFile& file) {
  if (const std::string link = link_above(config_, file.path); !link.empty()) {
    return fail(ErrorCode::kInvalidArgument, "{}: {} is a symbolic link, and nothing is written through it",
                local_path(file.path), link);
  }
  const std::string key = here_.child(file.path).key;
  ASSIGN_OR_RETURN(ObjectInfo stub, here_.storage->stat(key));
  if (!sync::is_version(file.here, stub)) {
    return fail(ErrorCode::kUnavailable, "{} is no longer the released file", local_path(file.path));
  }
  stub.mode = file.mode;  // which the copy gives the file where the object has no attributes
  ObjectInfo object;
  object.key = there_.child(file.path).key;
  object.size = file.size;
  object.version = file.there;
  const Decision decision{.step = Step::kImport, .reason = "restored"};
  ASSIGN_OR_RETURN(const Step started, start(std::make_shared<Work>(Work{.path = file.path,
                                                                         .known = file,
                                                                         .here = std::move(stub),
                                                                         .there = std::move(object),
                                                                         .decision = decision,
                                                                         .restores = true})));
  (void)started;
  return {};
}

Result<bool> Carrier::bring_renamed(const std::string& path) {
  ASSIGN_OR_RETURN(ObjectInfo stub, here_.storage->stat(here_.child(path).key));
  ASSIGN_OR_RETURN(const std::optional<LinkFile> known, state_.find(path));
  ASSIGN_OR_RETURN(const std::optional<LinkFile> origin, origin_of(path, known, stub));
  if (!origin) return false;
  const Location from = there_.child(origin->path);
  ObjectInfo object;
  object.key = from.key;
  object.size = origin->size;
  object.version = origin->there;
  sync::TransferOptions options{.posix = true, .target = stub, .replaces = stub.version};
  options.target->mode = origin->mode;
  const auto copied = engine_.copy(from, object, here_.child(path), options, stop_);
  if (!copied) return tl::unexpected<Error>(copied.error());
  return true;
}

// The time of a file that is restored, where the object has no attributes to give it.
void Carrier::keep_time(const Work& work, sync::TransferReport& report) const {
  if (!work.restores || report.object.modified == work.here->modified) return;
  const timespec times[2] = {{.tv_sec = 0, .tv_nsec = UTIME_OMIT}, work.here->modified.as_timespec()};
  if (::utimensat(AT_FDCWD, local_path(work.path).c_str(), times, AT_SYMLINK_NOFOLLOW) != 0) return;
  if (auto now = here_.storage->stat(here_.child(work.path).key)) report.object = *std::move(now);
}

// Whether the file needs no content: it is new, or has none yet.
bool Carrier::stays_stub(const Work& work) const {
  const bool has_none = !work.here || (work.known && work.known->state == State::kReleased);
  return config_.lazy && !work.restores && work.there->size > 0 && has_none;
}

// A file of the object's size and time without content.
Status Carrier::import_stub(const Work& work) {
  constexpr uint32_t kUsualMode = 0644;  // which it gets with its content, where the object has no attributes
  ObjectInfo object = *work.there;
  PosixAttributes attributes{.mode = kUsualMode};
  if (!config_.show_at.empty()) {
    // Who may open it is decided before its content is here.
    ASSIGN_OR_RETURN(object, there_.storage->stat(there_.child(work.path).key));
    if (object.posix && object.posix->mode != 0) attributes = *object.posix;
    if (object.posix) object.modified = object.posix->modified;
  }
  RETURN_IF_ERROR(make_stub(local_path(work.path), object.size, object.modified, work.here.has_value(),
                            config_.show_at.empty() ? nullptr : &attributes));
  ASSIGN_OR_RETURN(const ObjectInfo stub, here_.storage->stat(here_.child(work.path).key));
  RETURN_IF_ERROR(state_.put({.path = work.path,
                              .size = object.size,
                              .here = sync::recorded_version(stub),
                              .there = object.version,
                              .state = State::kReleased,
                              .mode = attributes.mode & 07777}));
  {
    const MutexLock lock(mutex_);
    note_carried(work);
    ++counts_.imported;
    counts_.imported_bytes += work.there->size;
  }
  tell("import", work.path, fmt::format("{}; its content stays in the bucket", work.decision.reason), work.there->size);
  return {};
}

void Carrier::start_import(const WorkPtr& work) {
  work->decision.step = Step::kImport;
  if (!work->here) remove_empty_folder(local_path(work->path));
  if (stays_stub(*work)) {
    if (config_.show_at.empty()) return ended(work, import_stub(*work));
    return attributes_.submit([this, work] { ended(work, import_stub(*work)); });
  }
  sync::CopyRequest request{.from = there_.child(work->path), .source = *work->there, .to = here_.child(work->path)};
  request.options.posix = true;
  request.options.target = work->here;
  if (config_.hsm && has_no_blocks(local_path(work->path))) {
    // Its blocks are no help: Lustre would have to bring them first.
    request.options.target.reset();
    request.options.delta = false;
  }
  // A stub's blocks are zeros, and its readers wait for content that comes here anyway.
  if (!config_.show_at.empty() && looks_released(local_path(work->path))) request.options.delta = false;
  request.options.replaces = work->here ? work->here->version : "";
  start_copy(work, std::move(request), [this, work](sync::TransferReport& report) {
    keep_time(*work, report);
    remember(*work, sync::recorded_version(report.object), work->there->version, report.hash);
    {
      const MutexLock lock(mutex_);
      note_carried(*work);
      ++counts_.imported;
      counts_.imported_bytes += work->there->size;
      counts_.moved_bytes += report.moved_bytes;
    }
    tell("import", work->path, work->decision.reason, work->there->size, report.moved_bytes);
    ended(work, {});
  });
}

}  // namespace millrace::link
