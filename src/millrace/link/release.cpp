// SPDX-License-Identifier: Apache-2.0
#include "millrace/link/release.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <queue>
#include <random>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

#include "millrace/base/io/descriptor.h"
#include "millrace/base/text/units.h"
#include "millrace/base/thread/sync.h"
#include "millrace/link/detail/linked_files.h"
#include "millrace/link/guarded_stub.h"
#include "millrace/link/guardian.h"
#include "millrace/link/leader.h"
#include "millrace/link/lease.h"
#include "millrace/link/prove.h"
#include "millrace/link/stub.h"
#include "millrace/link/wall_clock.h"
#include "millrace/storage/local/local.h"

namespace millrace::link {

namespace {

using State = LinkFile::State;

constexpr size_t kPage = 4096;
constexpr mode_t kPermissions = 07777;

// One file, step by step; each leaves it in a form that settle_releases() knows.
class OneRelease {
 public:
  // `home`: of a link whose stubs are guarded; else null.
  OneRelease(const LinkConfig& config, const LinkHome* home, const Location& here, LinkState& state, LinkFile file)
      : home_(home),
        path_(whole_path(config, file.path)),
        here_(here),
        state_(state),
        file_(std::move(file)),
        // Does not wait for the holder of a lease.
        fd_(::open(path_.c_str(), O_RDWR | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC)) {}

  [[nodiscard]] Status run() {
    if (fd_.get() < 0 && errno == EWOULDBLOCK) return fail(ErrorCode::kUnavailable, "in use by another program");
    if (fd_.get() < 0) return tl::unexpected<Error>(file_error("open", path_));
    RETURN_IF_ERROR(check_unchanged());
    LinkFile before = file_;
    struct stat info{};
    if (::fstat(fd_.get(), &info) != 0) return tl::unexpected<Error>(file_error("stat", path_));
    file_.mode = info.st_mode & kPermissions;
    RETURN_IF_ERROR(write_down(State::kReleasing));
    const Status emptied = home_ != nullptr ? empty_guarded(info, before) : empty(info, before);
    if (!emptied && !is_empty_) {
      RETURN_IF_ERROR(state_.put(before));
      RETURN_IF_ERROR(state_.commit());
    }
    RETURN_IF_ERROR(emptied);
    ASSIGN_OR_RETURN(const ObjectInfo stub, here_.storage->stat(here_.child(file_.path).key));
    file_.here = sync::recorded_version(stub);
    return write_down(State::kReleased);
  }

 private:
  Status check_unchanged() {
    ASSIGN_OR_RETURN(const ObjectInfo now, here_.storage->stat(here_.child(file_.path).key));
    if (sync::is_version(file_.here, now)) return {};
    return fail(ErrorCode::kUnavailable, "changed since it was sent");
  }

  Status write_down(State state) {
    file_.state = state;
    RETURN_IF_ERROR(state_.put(file_));
    return state_.commit();
  }

  // Under a lease, and without a wait for the state: a sweep that holds the state may wait for the lease.
  Status empty(const struct stat& info, LinkFile& before) {
    const FileLease lease(fd_.get(), FileLease::Kind::kNobody);
    if (lease.is_in_use()) return fail(ErrorCode::kUnavailable, "open in another program");
    if (!lease.is_held()) {
      return fail(ErrorCode::kUnsupported, "its file system does not tell whether a program has it open ({})",
                  errno_error(lease.error(), "F_SETLEASE").message());
    }
    RETURN_IF_ERROR(check_unchanged());
    if (::fsetxattr(fd_.get(), kStubAttribute, "1", 1, 0) != 0) {
      return fail(ErrorCode::kUnsupported, "its file system keeps no attributes ({})",
                  errno_error(errno, "fsetxattr").message());
    }
    if (::fchmod(fd_.get(), 0) != 0) return give_back(file_error("chmod", path_), before);
    return punch(info, before);
  }

  // A program that opens the file once it is a stub waits for the guardian, and the guardian for the lock of the inode.
  // The lease finds one that the guardian let through before: the kernel counts it before it asks.
  Status empty_guarded(const struct stat& info, LinkFile& before) {
    ASSIGN_OR_RETURN(const InodeLock lock, InodeLock::take(*home_, info.st_ino));
    RETURN_IF_ERROR(check_unchanged());
    RETURN_IF_ERROR(mark_guarded_stub(fd_.get(), info));
    const FileLease lease(fd_.get(), FileLease::Kind::kNobody);
    if (!lease.is_held()) {
      return give_back(lease.is_in_use() ? Error(ErrorCode::kUnavailable, "open in another program")
                                         : errno_error(lease.error(), "F_SETLEASE"),
                       before);
    }
    struct stat now{};
    if (::fstat(fd_.get(), &now) != 0 || local_version(now) != local_version(info)) {
      return give_back(Error(ErrorCode::kUnavailable, "changed since it was sent"), before);
    }
    return punch(info, before);
  }

  Status punch(const struct stat& info, LinkFile& before) {
    if (::fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, info.st_size) != 0)
      return give_back(file_error("fallocate", path_), before);
    is_empty_ = true;
    const timespec times[2] = {info.st_atim, info.st_mtim};
    if (::futimens(fd_.get(), times) != 0) return tl::unexpected<Error>(file_error("set the time of", path_));
    return {};
  }

  // The file has its content still; its permissions return.
  Status give_back(Error error, LinkFile& before) {
    if (home_ == nullptr) ::fchmod(fd_.get(), file_.mode);
    ::fremovexattr(fd_.get(), home_ != nullptr ? kGuardedStubAttribute : kStubAttribute);
    if (const auto now = here_.storage->stat(here_.child(file_.path).key)) before.here = sync::recorded_version(*now);
    return tl::unexpected<Error>(std::move(error));
  }

  const LinkHome* const home_;
  const std::string path_;
  const Location& here_;
  LinkState& state_;
  LinkFile file_;
  const Descriptor fd_;
  bool is_empty_ = false;
};

// The same by Lustre's HSM. A kill leaves nothing half done: the file is what it was, or Lustre brings its content.
class HsmRelease {
 public:
  HsmRelease(const LinkConfig& config, const Location& here, LinkState& state, HsmLimits limits, std::stop_token stop)
      : config_(config), here_(here), state_(state), limits_(limits), stop_(std::move(stop)) {}

  // `file`: proven.
  [[nodiscard]] Status run(LinkFile& file) {
    const std::string path = whole_path(config_, file.path);
    RETURN_IF_ERROR(check_unchanged(file));
    ASSIGN_OR_RETURN(const HsmState state, hsm_state(path, stop_));
    RETURN_IF_ERROR(check_may_go(state));
    if (!state.archived) {
      RETURN_IF_ERROR(archive(path));
      RETURN_IF_ERROR(prove_again(file));
    }
    RETURN_IF_ERROR(check_in_use(path));
    RETURN_IF_ERROR(check_unchanged(file));
    RETURN_IF_ERROR(hsm_release(path, stop_));
    ASSIGN_OR_RETURN(const ObjectInfo now, stat(file));
    // Whatever else it is by now, the next sweep looks at it.
    if (now.version != file.here.version) return fail(ErrorCode::kUnavailable, "changed while it was released");
    file.here = sync::recorded_version(now);
    RETURN_IF_ERROR(state_.put(file));
    return state_.commit();
  }

 private:
  Result<ObjectInfo> stat(const LinkFile& file) const { return here_.storage->stat(here_.child(file.path).key); }

  Status check_unchanged(const LinkFile& file) const {
    ASSIGN_OR_RETURN(const ObjectInfo now, stat(file));
    if (sync::is_version(file.here, now)) return {};
    return fail(ErrorCode::kUnavailable, "changed since it was sent");
  }

  static Status check_may_go(const HsmState& state) {
    if (state.lost) {
      return fail(ErrorCode::kUnavailable,
                  "lost_from_hsm: the HSM has its content no more; this is all that Lustre has");
    }
    if (state.never_release) return fail(ErrorCode::kUnavailable, "its HSM state says never_release");
    if (state.dirty) {
      return fail(ErrorCode::kUnavailable, "dirty: the HSM has an older content (`lfs hsm_archive` sends this one)");
    }
    if (!state.archived && state.never_archive) {
      return fail(ErrorCode::kUnavailable, "not archived in the HSM, and its state says never_archive");
    }
    return {};
  }

  Status archive(const std::string& path) {
    if (!no_archiver_.empty()) {
      return fail(ErrorCode::kUnavailable, "not archived in the HSM, whose archiving of {} had no end", no_archiver_);
    }
    Status archived;
    HsmActions actions(
        HsmActions::Kind::kArchive, limits_, [&](const std::string&, const Status& status) { archived = status; },
        stop_);
    RETURN_IF_ERROR(actions.add(path));
    RETURN_IF_ERROR(actions.finish());
    // Each of the others would wait as long.
    if (!archived && archived.error().code() == ErrorCode::kTimeout) no_archiver_ = path;
    return with_context(std::move(archived), "not archived in the HSM");
  }

  // Archiving may change the change time. What somebody wrote meanwhile, and put the time back, is found by reading.
  Status prove_again(LinkFile& file) {
    ASSIGN_OR_RETURN(const ObjectInfo now, stat(file));
    if (sync::is_version(file.here, now)) return {};
    if (now.version != file.here.version) return fail(ErrorCode::kUnavailable, "changed since it was sent");
    file.here = sync::recorded_version(now);
    file.proof.clear();
    ASSIGN_OR_RETURN(file.proof, prove(config_, state_, file, stop_));
    if (file.proof.empty()) return fail(ErrorCode::kUnavailable, "changed since it was sent");
    return {};
  }

  // On this node. Lustre itself refuses to release what is open on another one.
  static Status check_in_use(const std::string& path) {
    const Descriptor fd(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC));
    if (fd.get() < 0 && errno == EWOULDBLOCK) return fail(ErrorCode::kUnavailable, "in use by another program");
    if (fd.get() < 0) return tl::unexpected<Error>(file_error("open", path));
    if (!FileLease(fd.get(), FileLease::Kind::kNobody).is_in_use()) return {};
    return fail(ErrorCode::kUnavailable, "open in another program");
  }

  const LinkConfig& config_;
  const Location& here_;
  LinkState& state_;
  const HsmLimits limits_;
  const std::stop_token stop_;
  std::string no_archiver_;  // the file that none archived
};

// What may be released. The smallest goes first: what no list names and was not used for longest, then what is used
// latest.
struct Candidate {
  bool is_used_again = false;
  int64_t order = 0;
  int64_t size = 0;
  std::string path;

  bool operator<(const Candidate& other) const {
    return std::tie(is_used_again, order, path) < std::tie(other.is_used_again, other.order, other.path);
  }
};

class Releaser {
 public:
  Releaser(const LinkConfig& config, const Location& here, LinkState& state, const ReleaseOptions& options,
           const std::stop_token& stop)
      : config_(config),
        here_(here),
        state_(state),
        options_(options),
        stop_(stop),
        by_hsm_(config, here, state, options.hsm, stop) {
    for (size_t i = 0; i < options.next_use.size(); ++i) next_use_.emplace(options.next_use[i], i);
  }

  [[nodiscard]] Result<ReleaseReport> run() {
    for (const auto& patterns : {config_.pins, options_.pins}) {
      for (const std::string& pattern : patterns) RETURN_IF_ERROR(unpinned_.exclude(pattern));
    }
    ASSIGN_OR_RETURN(there_, open_url(config_.url));
    if (options_.older_than_s > 0 && !options_.dry_run) {
      // A bucket that may not be written tells no time.
      const auto bucket_now = bucket_now_s(there_);
      if (bucket_now) now_ = std::min(static_cast<int64_t>(wall_now_s()), *bucket_now);
    }
    RETURN_IF_ERROR(options_.keep_free > 0 ? in_order() : all());
    RETURN_IF_ERROR(state_.commit());
    report_.free_share = free_share(config_.directory);
    return report_;
  }

 private:
  std::optional<Candidate> candidate(const LinkFile& file) const {
    if (file.state != State::kEqual || file.size == 0 || !unpinned_.passes(file.path)) return std::nullopt;
    struct stat info{};
    if (::lstat(whole_path(config_, file.path).c_str(), &info) != 0) return std::nullopt;
    if (config_.hsm && has_no_blocks(whole_path(config_, file.path))) return std::nullopt;  // released already
    const int64_t used = std::max(info.st_atim.tv_sec, info.st_mtim.tv_sec);
    if (static_cast<double>(now_) - static_cast<double>(used) < options_.older_than_s) return std::nullopt;
    const auto next = next_use_.find(file.path);
    if (next == next_use_.end()) return Candidate{false, used, file.size, file.path};
    return Candidate{true, -static_cast<int64_t>(next->second), file.size, file.path};
  }

  Status all() {
    return for_each_file(state_, options_.below, [&](const LinkFile& file) -> Status {
      const auto each = candidate(file);
      return each ? release_one(*each) : Status();
    });
  }

  // As many candidates as are held in memory, released, and then the next: so each look at the state finds those that
  // go after the last.
  Status in_order() {
    std::optional<Candidate> last;
    while (true) {
      std::priority_queue<Candidate> first;
      RETURN_IF_ERROR(for_each_file(state_, options_.below, [&](const LinkFile& file) -> Status {
        auto each = candidate(file);
        if (!each || (last && !(*last < *each))) return {};
        first.push(*std::move(each));
        if (first.size() > options_.most_candidates) first.pop();
        return {};
      }));
      if (first.empty()) return {};
      std::vector<Candidate> chosen(first.size());
      for (size_t i = chosen.size(); i > 0; --i, first.pop()) chosen[i - 1] = first.top();
      for (const Candidate& each : chosen) {
        if (is_enough()) return {};
        RETURN_IF_ERROR(release_one(each));
      }
      last = std::move(chosen.back());
    }
  }

  bool is_enough() {
    struct statvfs info{};
    if (::statvfs(config_.directory.c_str(), &info) != 0 || info.f_blocks == 0) return true;
    auto free = static_cast<double>(info.f_bavail);
    if (!free_before_) free_before_ = free;
    // Lustre gives the blocks of a released file back some time later.
    if (options_.dry_run || config_.hsm) {
      free = std::max(free, *free_before_ + static_cast<double>(report_.bytes) / static_cast<double>(info.f_frsize));
    }
    return free / static_cast<double>(info.f_blocks) >= options_.keep_free;
  }

  Status release_one(const Candidate& each) {
    if (stop_.stop_requested()) return fail(ErrorCode::kCancelled, "stopped; what is released stays so");
    std::string left;
    ASSIGN_OR_RETURN(std::optional<LinkFile> file, state_.find(each.path));
    if (!file || file->state != State::kEqual) return {};
    if (!options_.dry_run) {
      const Status released = prove_and_release(*file);
      if (!released && stop_.stop_requested()) return released;
      if (!released) left = released.error().to_string();
    }
    left.empty() ? ++report_.files : ++report_.left;
    if (left.empty()) report_.bytes += each.size;
    if (options_.on_file) options_.on_file(each.path, each.size, left);
    return {};
  }

  Status prove_and_release(LinkFile& file) {
    if (!link_above(config_, file.path).empty()) {
      return fail(ErrorCode::kUnavailable, "behind a symbolic link, and so no part of the link");
    }
    ASSIGN_OR_RETURN(file.proof, prove(config_, state_, file, stop_));
    if (file.proof.empty()) return fail(ErrorCode::kUnavailable, "not proven to be in the bucket");
    // A proof may be old, and no process may have run the link since.
    const auto object = there_.storage->stat(there_.child(file.path).key);
    if (!object) return tl::unexpected<Error>(object.error());
    if (object->version != file.there) return fail(ErrorCode::kUnavailable, "the object has changed since");
    if (config_.hsm) return by_hsm_.run(file);
    const LinkHome* const home = config_.show_at.empty() ? nullptr : &options_.home;
    return OneRelease(config_, home, here_, state_, file).run();
  }

  const LinkConfig& config_;
  const Location& here_;
  Location there_;
  LinkState& state_;
  const ReleaseOptions& options_;
  const std::stop_token stop_;
  HsmRelease by_hsm_;
  int64_t now_ = earliest_now_s();  // a clock that was set ahead makes no file old
  std::unordered_map<std::string_view, size_t> next_use_;
  sync::Filter unpinned_;
  ReleaseReport report_;
  std::optional<double> free_before_;  // blocks
};

}  // namespace

namespace {

// The node that carries must know what is released: it would take a new file at the old name of a renamed one for the
// next version of that object, which is its only copy.
Status check_carries_here(const LinkConfig& config) {
  if (config.take_over_s <= 0) return {};
  ASSIGN_OR_RETURN(Leader leader, leader_of(config, ""));
  ASSIGN_OR_RETURN(const bool is_held, leader.is_held());
  if (is_held && leader.is_shared()) {
    return fail(ErrorCode::kUnavailable,
                "several tasks carry {}, and each would have to know at once what is released: release while one node "
                "runs it, without --task",
                config.name);
  }
  if (!is_held || leader.holder() == host_name()) return {};
  return fail(ErrorCode::kUnavailable, "{} runs the link {}: release there", leader.holder(), config.name);
}

}  // namespace

Result<ReleaseReport> release(const LinkConfig& config, const Location& here, LinkState& state,
                              const ReleaseOptions& options, const std::stop_token& stop) {
  if (!config.show_at.empty() && !options.dry_run && !find_guardian(options.home)) {
    return fail(ErrorCode::kUnavailable,
                "no guardian lets programs wait for released files of {}: `millrace link run {}` starts one",
                config.name, config.name);
  }
  if (::geteuid() == 0 && !options.dry_run && !config.hsm && config.show_at.empty()) {
    return fail(ErrorCode::kPermissionDenied,
                "root reads zeros in a released file, where others get EACCES: release as the user that owns the files "
                "and reads them");
  }
  RETURN_IF_ERROR(check_marker(config));
  RETURN_IF_ERROR(check_there(config, options.below));
  RETURN_IF_ERROR(check_carries_here(config));
  if (config.hsm && !options.dry_run) RETURN_IF_ERROR(check_hsm(config));
  return Releaser(config, here, state, options, stop).run();
}

double free_share(const std::string& directory) {
  struct statvfs info{};
  if (::statvfs(directory.c_str(), &info) != 0 || info.f_blocks == 0) return 1;
  return static_cast<double>(info.f_bavail) / static_cast<double>(info.f_blocks);
}

Result<std::vector<std::string>> read_order(const LinkConfig& config, const std::string& file) {
  std::ifstream in(file);
  if (!in) return tl::unexpected<Error>(errno_error(errno, "open " + file));
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return order_of(config, lines, file);
}

Result<std::vector<std::string>> order_of(const LinkConfig& config, const std::vector<std::string>& lines,
                                          std::string_view name) {
  std::vector<std::string> paths;
  int64_t number = 0;
  for (const std::string& line : lines) {
    ++number;
    if (line.empty()) continue;
    std::string_view path = line;
    for (const std::string& root : {config.directory, config.url, config.show_at}) {
      if (!root.empty() && path.starts_with(root + "/")) path.remove_prefix(root.size() + 1);
    }
    if (path.starts_with('/') || path.find("://") != path.npos) {
      return fail(ErrorCode::kInvalidArgument, "{}, line {}: {} lies neither below {} nor below {}", name, number, line,
                  config.directory, config.url);
    }
    paths.emplace_back(path);
  }
  return paths;
}

Status settle_releases(const LinkConfig& config, const Location& here, LinkState& state) {
  while (true) {
    ASSIGN_OR_RETURN(const std::vector<std::string> paths, state.paths_in(State::kReleasing, "", kPage));
    if (paths.empty()) return state.commit();
    for (const std::string& path : paths) {
      ASSIGN_OR_RETURN(std::optional<LinkFile> file, state.find(path));
      struct stat info{};
      const bool is_there = ::lstat(whole_path(config, path).c_str(), &info) == 0 && S_ISREG(info.st_mode);
      const bool is_stub_now = config.show_at.empty() ? is_there && (info.st_mode & kPermissions) == 0
                                                      : read_guarded_stub(whole_path(config, path)).has_value();
      if (!file || !is_stub_now || info.st_size != file->size) {
        // It has its content still, or somebody touched it since: the next sweep compares it with the object.
        RETURN_IF_ERROR(state.forget(path));
        continue;
      }
      // Without permissions, it has its content, a part of it or nothing; the object has all.
      file->state = State::kReleased;
      ASSIGN_OR_RETURN(const ObjectInfo now, here.storage->stat(here.child(path).key));
      file->here = sync::recorded_version(now);
      RETURN_IF_ERROR(state.put(*file));
    }
  }
}

}  // namespace millrace::link
