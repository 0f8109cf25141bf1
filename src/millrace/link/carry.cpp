// SPDX-License-Identifier: Apache-2.0
#include "millrace/link/carry.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "millrace/base/text/units.h"
#include "millrace/link/detail/carry_work.h"
#include "millrace/link/hsm.h"
#include "millrace/link/lease.h"
#include "millrace/link/stub.h"
#include "millrace/link/wall_clock.h"
#include "millrace/sync/removal.h"
#include "millrace/sync/verify.h"

namespace millrace::link {

namespace {

namespace fs = std::filesystem;
using State = LinkFile::State;

// As many as the engine has under way, and as many again, so that it always finds the next one.
constexpr size_t kAtWork = 256;
// Fewer large files: a few keep every connection busy, and other tasks of the link can take files that have not begun.
constexpr size_t kLargeAtWork = 8;
constexpr int64_t kBytesAtWork = int64_t{1} << 30;
constexpr int kAtOnce = 32;               // HEADs
constexpr size_t kMostCarried = 100'000;  // between two sweeps; more of them count as known before

int64_t now_s() {
  return latest_now_s();
}

// What becomes of a renamed file that has no content, when its object cannot be copied.
Error of_lost_content(Error error, const LinkFile& old) {
  if (error.code() != ErrorCode::kNotFound && error.code() != ErrorCode::kCorruption) return error;
  return Error(error.code(),
               fmt::format("CONTENT LOST: this released file was {}, and the object of that name was replaced or "
                           "removed; put it back from a version or a backup ({})",
                           old.path, error.to_string()));
}

// The name with `mark` before its ending, cut before the mark where a file system has no room for all of it.
std::string with_mark(const fs::path& name, const std::string& mark) {
  constexpr size_t kNameMaxBytes = 255;  // NAME_MAX of Linux
  constexpr size_t kLongestEnding = 32;  // what is longer is no ending that a program knows files by
  std::string stem = name.stem().string(), ending = name.extension().string();
  if (ending.size() > kLongestEnding) stem += std::exchange(ending, "");
  size_t size = std::min(stem.size(), kNameMaxBytes - std::min(kNameMaxBytes, mark.size() + ending.size()));
  // Not within a character of UTF-8.
  const auto continues = [&](size_t at) { return at < stem.size() && (stem[at] & 0xC0) == 0x80; };
  for (int bytes = 0; bytes < 3 && size > 0 && continues(size); ++bytes) --size;
  return stem.substr(0, size) + mark + ending;
}

std::optional<ObjectInfo> present(Result<ObjectInfo> stat, Status& failure) {
  if (stat) return *std::move(stat);
  if (stat.error().code() != ErrorCode::kNotFound) failure = tl::unexpected<Error>(stat.error());
  return std::nullopt;
}

}  // namespace

Carrier::Carrier(const LinkConfig& config, const Location& here, const Location& there, LinkState& state,
                 sync::TransferEngine& engine, std::function<void(const LinkEvent&)> on_event, std::stop_token stop)
    : config_(config),
      here_(here),
      there_(there),
      state_(state),
      engine_(engine),
      trash_(config, here, there, engine, stop),
      on_event_(std::move(on_event)),
      stop_(std::move(stop)),
      attributes_(kAtOnce, "mr-attributes") {}

Carrier::~Carrier() {
  static_cast<void>(finish());
}

std::string Carrier::local_path(std::string_view path) const {
  return fmt::format("{}/{}", config_.directory, path);
}

void Carrier::tell(std::string_view kind, const std::string& path, std::string_view text, int64_t size, int64_t moved) {
  if (on_event_) on_event_({kind, path, std::string(text), size, moved});
}

void Carrier::take_state(const Status& written) {
  if (written) return;
  const MutexLock lock(mutex_);
  if (failure_) failure_ = written;
}

Result<Step> Carrier::handle(const std::string& path, const std::optional<LinkFile>& known,
                             const std::optional<ObjectInfo>& here, const std::optional<ObjectInfo>& there) {
  return handle(path, known, here, there, false);
}

Result<Step> Carrier::handle(const std::string& path, const std::optional<LinkFile>& known,
                             const std::optional<ObjectInfo>& here, const std::optional<ObjectInfo>& there,
                             bool may_replace) {
  const std::optional<LinkFile> other = known && here ? state_by_looking(*known, *here) : std::nullopt;
  auto work = std::make_shared<Work>(Work{.path = path, .known = other ? other : known, .here = here, .there = there});
  if (here) {
    ASSIGN_OR_RETURN(work->origin, origin_of(path, work->known, *here));
  }
  work->decision =
      work->origin ? decide_renamed_stub(config_, work->known, there) : decide(config_, work->known, here, there);
  if (work->decision.step != Step::kNone && here && is_being_filled(path)) return Step::kNone;
  if (work->decision.step != Step::kNone) {
    const std::string link = link_above(config_, path);
    if (!link.empty()) return leave_behind_link(*work, link);
  }
  if (work->decision.step != Step::kNone || other) {
    // A sweep reads the state a page ahead; `restore` and `release` of another process, or a copy, may have changed it.
    ASSIGN_OR_RETURN(const std::optional<LinkFile> fresh, state_.find(path));
    if (fresh != known) return look_at(path, may_replace);
  }
  // An HSM that archives or restores, and a fill that is about to be remembered, change no more than the change time.
  if ((config_.hsm || !config_.show_at.empty()) && work->decision.step == Step::kExport && work->known && here &&
      there && work->known->state == State::kEqual && work->known->here.version == here->version) {
    work->only_ctime = true;
    work->decision.step = Step::kCompare;
  }
  const bool exports = work->decision.step == Step::kExport;
  const bool was_released = known && known->state == State::kReleased;
  if (exports && was_released && !may_replace && there && there->version == known->there) return Step::kExport;
  // A whole file in the place of a released one is remembered with its copy: until then the state tells of its object.
  if (other && !(exports && was_released)) RETURN_IF_ERROR(state_.put(*other));
  switch (work->decision.step) {
    case Step::kNone:
      RETURN_IF_ERROR(state_.clear_problem(path));
      break;
    case Step::kDeleteHere:
    case Step::kDeleteThere:
      return work->decision.step;
    case Step::kForget:
      RETURN_IF_ERROR(state_.forget(path));
      break;
    case Step::kRemember: {
      LinkFile file = *known;
      file.state = work->decision.state;
      RETURN_IF_ERROR(state_.put(file));
      break;
    }
    case Step::kRefuse:
      RETURN_IF_ERROR(refuse(path, work->decision.reason));
      break;
    case Step::kImport:
    case Step::kExport:
    case Step::kCompare:
      return start(work);
    case Step::kPostpone:
      break;
  }
  // An open transaction would keep other processes waiting until the next write.
  RETURN_IF_ERROR(state_.commit());
  return Step::kNone;
}

Result<Step> Carrier::look_at(const std::string& path) {
  return look_at(path, false);
}

Result<Step> Carrier::look_at_renamed(const std::string& path) {
  renamed_ = path;
  auto step = look_at(path);
  renamed_.clear();
  return step;
}

Result<Step> Carrier::replace(const std::string& path) {
  return look_at(path, true);
}

Result<Step> Carrier::look_at(const std::string& path, bool may_replace) {
  struct stat info{};
  std::optional<ObjectInfo> here;
  if (link_above(config_, path).empty() && ::lstat(local_path(path).c_str(), &info) == 0) {
    if (!S_ISREG(info.st_mode)) return Step::kNone;
    Status failure;
    here = present(here_.storage->stat(here_.child(path).key), failure);
    RETURN_IF_ERROR(failure);
  }
  Status failure;
  const std::optional<ObjectInfo> there = present(there_.storage->stat(there_.child(path).key), failure);
  RETURN_IF_ERROR(failure);
  ASSIGN_OR_RETURN(const std::optional<LinkFile> known, state_.find(path));
  return handle(path, known, here, there, may_replace);
}

// What waits for this thread holds its place until it ran, so it is run here too.
bool Carrier::is_full() const {
  return at_work_ >= kAtWork || (at_work_ >= kLargeAtWork && bytes_at_work_ >= kBytesAtWork);
}

void Carrier::take_place(Work& work) {
  while (true) {
    run_later();
    MutexLock lock(mutex_);
    while (is_full() && later_.empty()) changed_.wait(mutex_);
    if (is_full()) continue;
    ++at_work_;
    work.bytes_at_work = std::max(work.here ? work.here->size : 0, work.there ? work.there->size : 0);
    bytes_at_work_ += work.bytes_at_work;
    return;
  }
}

Result<Step> Carrier::start(const WorkPtr& work) {
  const bool reads_here = work->decision.step != Step::kImport && work->here;
  const double quiet_s = work->path == renamed_ ? 0 : config_.quiet_s;
  if (reads_here && config_.hsm) {
    const auto is_away = is_hsm_released(local_path(work->path), stop_);
    if (!is_away && is_away.error().code() == ErrorCode::kCancelled) return tl::unexpected<Error>(is_away.error());
    work->is_away = is_away && *is_away;
    if (work->is_away) work->not_read = refuse_to_read(local_path(work->path), work->decision.reason).error();
    if (!is_away) work->not_read = is_away.error();
  }
  if (reads_here && !work->not_read && !is_finished(local_path(work->path), *work->here, quiet_s)) {
    const MutexLock lock(mutex_);
    ++counts_.postponed;
    return Step::kPostpone;
  }
  if (work->decision.conflict && work->decision.step != Step::kCompare) {
    RETURN_IF_ERROR(note_conflict(*work, work->decision.step == Step::kImport
                                             ? "the file is back, as the bucket has it"
                                             : "the object is back, as the directory has it"));
  }
  take_place(*work);
  switch (work->decision.step) {
    case Step::kImport:
      start_import(work);
      break;
    case Step::kExport:
      if (!start_move(work)) start_export(work);
      break;
    default:
      start_compare(work);
      break;
  }
  const MutexLock lock(mutex_);
  RETURN_IF_ERROR(failure_);
  return Step::kNone;
}

void Carrier::start_copy(const WorkPtr& work, sync::CopyRequest request,
                         std::function<void(sync::TransferReport&)> done) {
  request.stop = stop_;
  request.done = [this, work, done = std::move(done)](Result<sync::TransferReport> report) {
    if (report) {
      done(*report);
    } else {
      ended(work, tl::unexpected<Error>(std::move(report).error()));
    }
  };
  engine_.start(std::move(request));
}

void Carrier::remember(const Work& work, sync::RecordedVersion here, std::string there, std::optional<Hash128> hash) {
  const int64_t size = work.decision.step == Step::kImport ? work.there->size : work.here->size;
  take_state(
      state_.put({.path = work.path, .size = size, .here = std::move(here), .there = std::move(there), .hash = hash}));
}

void Carrier::start_export(const WorkPtr& work) {
  work->decision.step = Step::kExport;
  if (work->not_read) return ended(work, tl::unexpected<Error>(*work->not_read));
  // Also one that was renamed over another file: reading it might give that one's content.
  if (is_stub(local_path(work->path)) || looks_released(local_path(work->path))) {
    ended(work, fail(ErrorCode::kInvalidArgument,
                     "{} is a released file, or a copy of one, and has no content: remove it, and copy or rename the "
                     "file after `millrace link restore`",
                     local_path(work->path)));
    return;
  }
  sync::CopyRequest request{.from = here_.child(work->path), .source = *work->here, .to = there_.child(work->path)};
  request.options.posix = true;
  request.options.target = work->there;
  request.options.replaces = work->there ? work->there->version : "";
  start_copy(work, std::move(request), [this, work](sync::TransferReport& report) {
    // The version that was sent: when the file has changed since, it differs from what is remembered and goes again.
    remember(*work, sync::recorded_version(*work->here), report.object.version, report.hash);
    {
      const MutexLock lock(mutex_);
      note_carried(*work);
      ++counts_.exported;
      counts_.exported_bytes += work->here->size;
      counts_.moved_bytes += report.moved_bytes;
    }
    tell("export", work->path, work->decision.reason, work->here->size, report.moved_bytes);
    ended(work, {});
  });
}

// A renamed file keeps device, inode, size and time, so the object is copied inside the bucket. The content is held
// against the remembered hash first, because an edit may have put the time back. A released file has no content to
// send, so it moves over another one, too.
bool Carrier::start_move(const WorkPtr& work) {
  if (!there_.storage->capabilities().copy_range) return false;
  const bool released = work->origin.has_value();
  const auto old = std::make_shared<LinkFile>();
  if (released) {
    *old = *work->origin;
  } else {
    if (work->there || work->known) return false;
    auto found = state_.find_here(work->here->version);
    if (!found || !*found || (*found)->path == work->path) return false;
    *old = **std::move(found);
    if (old->state != State::kEqual || (work->not_read && !work->is_away)) return false;
    // One that is in the HSM is known by its version alone.
    if (!work->is_away) {
      if (!old->hash) return false;
      const auto hash = sync::hash_object(*here_.storage, *work->here, stop_);
      if (!hash || *hash != *old->hash) return false;
    }
  }
  sync::CopyRequest request{.from = there_.child(old->path), .to = there_.child(work->path)};
  request.source.key = request.from.key;
  request.source.size = old->size;
  request.source.version = old->there;
  request.options.replaces = work->there ? work->there->version : "";
  request.stop = stop_;
  request.done = [this, work, old, released](Result<sync::TransferReport> report) {
    if (!report) {
      if (released) return ended(work, tl::unexpected<Error>(of_lost_content(std::move(report).error(), *old)));
      // The old object is gone or another one: the bytes go up.
      const MutexLock lock(mutex_);
      later_.emplace_back([this, work] { start_export(work); });
      changed_.notify_all();
      return;
    }
    LinkFile file = *old;
    file.path = work->path;
    file.state = released ? State::kReleased : State::kEqual;
    file.here = sync::recorded_version(*work->here);
    file.there = report->object.version;
    file.proof.clear();
    take_state(state_.put(file));
    {
      const MutexLock lock(mutex_);
      ++counts_.moved;
    }
    tell("move", work->path, "renamed from " + old->path, old->size, 0);
    ended(work, {});
  };
  engine_.start(std::move(request));
  return true;
}

// By what proves it without reading both, an ETag for example; else both are read, on a thread of the engine.
void Carrier::start_compare(const WorkPtr& work) {
  const auto settle_later = [this, work] {
    const MutexLock lock(mutex_);
    later_.emplace_back([this, work] { work->only_ctime ? start_export(work) : settle_conflict(work); });
    changed_.notify_all();
  };
  if (work->here->size != work->there->size) return settle_later();
  if (work->origin) return compare_renamed(work, settle_later);
  if (work->not_read) return ended(work, tl::unexpected<Error>(*work->not_read));
  if (looks_released(local_path(work->path))) {
    take_state(state_.put({.path = work->path,
                           .size = work->here->size,
                           .here = sync::recorded_version(*work->here),
                           .there = work->there->version,
                           .state = State::kReleased}));
    return ended(work, {});
  }
  sync::CopyRequest request{.from = here_.child(work->path), .source = *work->here, .to = there_.child(work->path)};
  request.stop = stop_;
  request.is_wanted = [this, work, settle_later] {
    std::optional<sync::Proof> proof;
    sync::VerifyOptions options{.effort = sync::VerifyOptions::Effort::kRecorded, .files_at_once = 1};
    options.on_file = [&](const sync::VerifyOptions::Finding& finding) {
      if (finding.kind == sync::VerifyOptions::Finding::Kind::kSame) proof = finding.proof;
    };
    const auto compared = sync::verify(local_path(work->path), config_.url + "/" + work->path, options, stop_);
    if (!compared) {
      ended(work, tl::unexpected<Error>(compared.error()));
    } else if (!proof) {
      settle_later();
    } else {
      if (is_stub(local_path(work->path))) clear_stub(local_path(work->path));
      remember(*work, sync::recorded_version(*work->here), work->there->version, std::nullopt);
      ended(work, {});
    }
    return false;  // nothing is copied
  };
  // Only a request that was stopped before its turn comes here.
  request.done = [this, work](Result<sync::TransferReport> report) {
    ended(work, report ? Status() : tl::unexpected<Error>(std::move(report).error()));
  };
  engine_.start(std::move(request));
}

// A released file that was renamed: its object is held against the one that has its new name. They are equal when this
// process was killed after it moved the object.
void Carrier::compare_renamed(const WorkPtr& work, const std::function<void()>& differs) {
  sync::CopyRequest request{.from = here_.child(work->path), .source = *work->here, .to = there_.child(work->path)};
  request.stop = stop_;
  request.is_wanted = [this, work, differs] {
    const LinkFile& origin = *work->origin;
    const auto old = there_.storage->stat(there_.child(origin.path).key);
    bool is_same = false;
    if (old && old->version == origin.there) {
      const auto one = sync::hash_object(*there_.storage, *old, stop_);
      const auto other = sync::hash_object(*there_.storage, *work->there, stop_);
      is_same = one && other && *one == *other;
    }
    if (!is_same) {
      differs();
      return false;
    }
    LinkFile file = origin;
    file.path = work->path;
    file.state = State::kReleased;
    file.here = sync::recorded_version(*work->here);
    file.there = work->there->version;
    file.proof.clear();
    take_state(state_.put(file));
    ended(work, {});
    return false;
  };
  request.done = [this, work](Result<sync::TransferReport> report) {
    ended(work, report ? Status() : tl::unexpected<Error>(std::move(report).error()));
  };
  engine_.start(std::move(request));
}

void Carrier::settle_conflict(const WorkPtr& work) {
  Resolution resolution = resolve(config_.conflict, *work->here, *work->there);
  if (resolution.step == Step::kImport && !config_.imports.changed) resolution = {.step = Step::kExport};
  if (resolution.step == Step::kExport && !config_.exports.changed) {
    ended(work,
          fail(ErrorCode::kAlreadyExists,
               "both sides have another version of {}, and the link carries no changes that way: remove or rename "
               "one of the two",
               work->path));
    return;
  }
  work->decision.reason = work->known ? "both sides changed" : "another version on each side";
  Status prepared;
  if (resolution.both) {
    prepared = give_other_name(*work);
    if (work->origin) postpone();  // its object moves when its new name is seen
  } else if (work->origin && resolution.step == Step::kImport) {
    const bool kept = config_.there.trash.has_value();
    prepared = note_conflict(
        *work, kept
                   ? fmt::format("the bucket's version stays; that of the renamed file is in the bucket's trash, as {}",
                                 work->origin->path)
                   : "the bucket's version stays");
    if (prepared) prepared = keep_content_of(*work->origin);
  } else {
    const bool exports = resolution.step == Step::kExport;
    const bool kept = exports ? config_.there.trash.has_value() : config_.here.trash.has_value();
    const char* const winner = exports ? "directory" : "bucket";
    const char* const loser = exports ? "bucket" : "directory";
    prepared =
        note_conflict(*work, kept ? fmt::format("the {}'s version stays; the {}'s is in its trash", winner, loser)
                                  : fmt::format("the {}'s version stays", winner));
    if (prepared)
      prepared = exports ? trash_.keep_object(work->path, *work->there) : trash_.keep_file(work->path, *work->here);
  }
  if (!prepared) return ended(work, prepared);
  if (resolution.step == Step::kImport) return start_import(work);
  if (!start_move(work)) start_export(work);
}

// Keeps the content of a released file, which only its object has. The object may be gone or replaced meanwhile.
Status Carrier::keep_content_of(const LinkFile& file) {
  ObjectInfo object;
  object.key = there_.child(file.path).key;
  object.size = file.size;
  object.version = file.there;
  const Status kept = trash_.keep_object(file.path, object);
  if (kept || kept.error().code() == ErrorCode::kNotFound || kept.error().code() == ErrorCode::kCorruption) return {};
  return kept;
}

// "name.conflict-HOST-TIME.ext", which no file has yet. It is a new file, and exported as such.
Status Carrier::give_other_name(Work& work) {
  const fs::path old = local_path(work.path);
  std::string name, path;
  struct stat info{};
  for (int attempt = 0; attempt == 0 || ::lstat(path.c_str(), &info) == 0; ++attempt) {
    const std::string number = attempt == 0 ? "" : fmt::format("-{}", attempt);
    name = with_mark(old.filename(), fmt::format(".conflict-{}-{}{}", host_name(), stamp(now_s()), number));
    path = (old.parent_path() / name).string();
  }
  RETURN_IF_ERROR(note_conflict(work, fmt::format("the directory's version is now {}", name)));
  if (::renameat2(AT_FDCWD, old.c_str(), AT_FDCWD, path.c_str(), RENAME_NOREPLACE) != 0) {
    return tl::unexpected<Error>(errno_error(errno, "rename " + old.string()));
  }
  work.here.reset();
  return {};
}

// Written down before anything happens, so that a kill leaves no conflict untold.
Status Carrier::note_conflict(Work& work, std::string outcome) {
  work.outcome = std::move(outcome);
  RETURN_IF_ERROR(state_.add_conflict({now_s(), work.path, std::string(work.decision.reason), work.outcome}));
  return state_.commit();
}

bool Carrier::changed_here(const Work& work) const {
  if (!work.here) return false;
  const auto now = here_.storage->stat(here_.child(work.path).key);
  return now ? !sync::is_version(sync::recorded_version(*work.here), *now) : now.error().code() == ErrorCode::kNotFound;
}

// Another writer ended since the bucket was listed, or an upload of a process that was killed. Not for ever: there may
// be servers that refuse each condition.
bool Carrier::lost_race(const Work& work, ErrorCode code) {
  constexpr int kTries = 20;
  if (code == ErrorCode::kCorruption || code == ErrorCode::kNotFound) {
    if (!work.there || work.there->version.empty()) return false;
    const auto now = there_.storage->stat(there_.child(work.path).key);
    if (now ? now->version == work.there->version : now.error().code() != ErrorCode::kNotFound) return false;
  } else if (code != ErrorCode::kAlreadyExists) {
    return false;
  } else if (work.decision.step != Step::kExport) {
    // A file that came meanwhile (another task of the link may have copied it) is compared; anything else is in the
    // way.
    const auto now = here_.storage->stat(here_.child(work.path).key);
    if (!now || (work.here && work.here->version == now->version)) return false;
  }
  const MutexLock lock(mutex_);
  return ++lost_races_[work.path] <= kTries;
}

void Carrier::ended(const WorkPtr& work, const Status& status) {
  const bool is_cancelled = !status && status.error().code() == ErrorCode::kCancelled;
  if (!status && !is_cancelled && (changed_here(*work) || lost_race(*work, status.error().code()))) {
    const MutexLock lock(mutex_);
    ++counts_.postponed;
    --at_work_;
    bytes_at_work_ -= work->bytes_at_work;
    changed_.notify_all();
    return;
  }
  if (status) {
    // Written down at once (some 30 us): after a kill a copy that nobody remembers could look like somebody's change.
    take_state(state_.clear_problem(work->path));
    if (!work->outcome.empty()) tell("conflict", work->path, work->outcome);
  } else if (!is_cancelled) {
    take_state(state_.set_problem(work->path, status.error().to_string()));
    tell("fail", work->path, status.error().to_string());
  }
  take_state(state_.commit());
  const MutexLock lock(mutex_);
  if (status && !work->outcome.empty()) ++counts_.conflicts;
  if (!status && !is_cancelled) ++counts_.failed;
  if (status) lost_races_.erase(work->path);
  --at_work_;
  bytes_at_work_ -= work->bytes_at_work;
  changed_.notify_all();
}

void Carrier::run_later() {
  while (true) {
    std::function<void()> next;
    {
      const MutexLock lock(mutex_);
      if (later_.empty()) return;
      next = std::move(later_.front());
      later_.pop_front();
    }
    next();
  }
}

Status Carrier::finish() {
  while (true) {
    run_later();
    MutexLock lock(mutex_);
    while (at_work_ > 0 && later_.empty()) changed_.wait(mutex_);
    if (at_work_ == 0 && later_.empty()) break;
  }
  RETURN_IF_ERROR(state_.commit());
  const MutexLock lock(mutex_);
  return failure_;
}

Status Carrier::refuse(const std::string& path, std::string_view reason) {
  tell("fail", path, reason);
  {
    const MutexLock lock(mutex_);
    ++counts_.failed;
  }
  return state_.set_problem(path, reason);
}

// A folder of the path is a symbolic link, so the file is neither here nor gone.
Result<Step> Carrier::leave_behind_link(const Work& work, const std::string& link) {
  if (work.decision.step == Step::kImport) {
    RETURN_IF_ERROR(refuse(work.path, fmt::format("in the directory {} is a symbolic link, and nothing is written "
                                                  "through it: put a folder in its place",
                                                  link)));
  } else {
    RETURN_IF_ERROR(state_.clear_problem(work.path));
  }
  RETURN_IF_ERROR(state_.commit());
  return Step::kNone;
}

void Carrier::postpone() {
  const MutexLock lock(mutex_);
  ++counts_.postponed;
}

void Carrier::note_carried(const Work& work) {
  if (work.here && work.there) return;
  if (carried_.size() < kMostCarried) carried_.emplace(work.path, std::ssize(carried_) + 1);
}

int64_t Carrier::order_carried(const std::string& path) {
  const MutexLock lock(mutex_);
  const auto found = carried_.find(path);
  return found == carried_.end() ? 0 : found->second;
}

void Carrier::forget_carried() {
  const MutexLock lock(mutex_);
  carried_.clear();
}

LinkCounts Carrier::take_counts() {
  const MutexLock lock(mutex_);
  return std::exchange(counts_, {});
}

}  // namespace millrace::link
