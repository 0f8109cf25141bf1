// SPDX-License-Identifier: Apache-2.0
#include "millrace/link/wait.h"

#include <sys/stat.h>

#include <cerrno>

#include "millrace/link/leader.h"
#include "millrace/link/prove.h"
#include "millrace/link/stub.h"
#include "millrace/link/sweep.h"
#include "millrace/sync/entries.h"

namespace millrace::link {

namespace {

class Barrier {
 public:
  Barrier(const LinkConfig& config, const LinkHome& home, const Location& here, const Location& there,
          const sync::Filter& filter, const std::stop_token& stop)
      : config_(config), home_(home), here_(here), there_(there), filter_(filter), stop_(stop) {}

  // One look at all files below `path`; what is not proven yet is in waiting().
  Status look(const std::string& path, WaitReport& report, Progress* progress) {
    waiting_.clear();
    waiting_count_ = 0;
    report.files = report.bytes = report.filtered = report.passed = 0;
    report.proofs.clear();
    RETURN_IF_ERROR(check_marker(config_));
    if (!state_) {
      auto state = LinkState::open(home_.state_path());
      if (!state) return tl::unexpected<Error>(std::move(state).error());
      state_ = *std::move(state);
    }
    const std::string whole_path = config_.directory + "/" + path;
    struct stat info{};
    if (::lstat(whole_path.c_str(), &info) != 0) {
      if (errno != ENOENT) return tl::unexpected<Error>(errno_error(errno, whole_path));
      return fail(ErrorCode::kNotFound, "{}: no such file or directory", whole_path);
    }
    const Location root = path.empty() ? here_ : here_.child(path);
    const auto file =
        path.empty() ? tl::unexpected<Error>(Error(ErrorCode::kNotFound, "")) : here_.storage->stat(root.key);
    if (!S_ISDIR(info.st_mode)) RETURN_IF_ERROR(check_carried(path, info.st_mode));
    if (file) {
      RETURN_IF_ERROR(take(path, *file, report));
    } else {
      sync::EntryWalk walk(root, {.stop = stop_});
      while (true) {
        ASSIGN_OR_RETURN(const std::optional<sync::Entry> entry, walk.next());
        if (!entry) break;
        const std::string whole = path.empty() ? entry->path : path + "/" + entry->path;
        if (entry->kind == sync::Entry::Kind::kUnreadable) {
          return fail(ErrorCode::kPermissionDenied, "{}/{} cannot be read", config_.directory, whole);
        }
        if (entry->kind != sync::Entry::Kind::kFile) {
          ++report.passed;
          continue;
        }
        if (!filter_.passes(whole)) {
          ++report.filtered;
          continue;
        }
        RETURN_IF_ERROR(take(whole, entry->info, report));
        if (progress != nullptr) progress->add(0, 0);
      }
    }
    return state_->commit();
  }

  int64_t waiting() const { return waiting_count_; }
  const std::string& first_waiting() const { return waiting_; }

 private:
  // The path itself, which is no directory.
  Status check_carried(const std::string& path, mode_t mode) const {
    if (!S_ISREG(mode)) {
      return fail(ErrorCode::kInvalidArgument, "{}/{} is a symbolic link or a device, which the link {} does not carry",
                  config_.directory, path, config_.name);
    }
    if (filter_.passes(path)) return {};
    return fail(ErrorCode::kInvalidArgument,
                "{}/{} does not come to the bucket: the filter of the link {} leaves it out (--include, --exclude)",
                config_.directory, path, config_.name);
  }

  // A file that no sweep will ever export is no reason to wait.
  Status check_exported(const std::string& path, const std::optional<LinkFile>& known, const ObjectInfo& now) const {
    const bool is_new = !known || known->state == LinkFile::State::kGoneHere;
    const bool is_same = known && sync::is_version(known->here, now);
    if (is_same && known->state == LinkFile::State::kGoneThere) {
      return fail(
          ErrorCode::kInvalidArgument,
          "{}/{} does not come to the bucket: its object was removed, and the link {} sends the file again only "
          "when it changes",
          config_.directory, path, config_.name);
    }
    if (is_same || (is_new ? config_.exports.added : config_.exports.changed)) return {};
    // A restore changes no more than the change time.
    const bool is_filled = config_.hsm || !config_.show_at.empty();
    if (is_filled && known && known->here.version == now.version) return {};
    if (is_new || config_.take_over_s > 0) {
      const auto object = there_.storage->stat(there_.child(path).key);
      if (object) return {};  // a sweep compares them, or another node knows it
      if (object.error().code() != ErrorCode::kNotFound) return tl::unexpected<Error>(object.error());
    }
    return fail(ErrorCode::kInvalidArgument,
                "{}/{} does not come to the bucket: it is {}, and the link {} was added with --export {}",
                config_.directory, path, is_new ? "new" : "changed", config_.name, carries_text(config_.exports));
  }

  Status take(const std::string& path, const ObjectInfo& now, WaitReport& report) {
    if (stop_.stop_requested()) return fail(ErrorCode::kCancelled, "stopped");
    ++report.files;
    report.bytes += now.size;
    ASSIGN_OR_RETURN(const std::optional<LinkFile> known, state_->find(path));
    if (known && known->state == LinkFile::State::kReleased && sync::is_version(known->here, now)) {
      ++report.proofs[known->proof.empty() ? "bucket" : known->proof];
      return {};
    }
    if (known && known->state == LinkFile::State::kEqual && sync::is_version(known->here, now)) {
      ASSIGN_OR_RETURN(const std::string proof, prove(config_, *state_, *known, stop_));
      if (!proof.empty()) {
        ++report.proofs[proof];
        return {};
      }
    } else if (config_.take_over_s > 0) {
      // Another node may have carried it, which the state of this one does not tell.
      ASSIGN_OR_RETURN(const std::string proof, ask_the_bucket(path, now));
      if (!proof.empty()) {
        ++report.proofs[proof];
        return {};
      }
    }
    RETURN_IF_ERROR(check_exported(path, known, now));
    if (waiting_count_++ == 0) waiting_ = path;
    return {};
  }

  Result<std::string> ask_the_bucket(const std::string& path, const ObjectInfo& now) {
    const auto object = there_.storage->stat(there_.child(path).key);
    if (!object && object.error().code() == ErrorCode::kNotFound) return std::string();
    if (!object) return tl::unexpected<Error>(object.error());
    if (object->size != now.size) return std::string();
    if (looks_released(config_.directory + "/" + path)) return std::string("bucket");
    const LinkFile file{.path = path, .size = now.size, .here = sync::recorded_version(now), .there = object->version};
    return prove(config_, *state_, file, stop_);
  }

  const LinkConfig& config_;
  const LinkHome& home_;
  const Location& here_;
  const Location& there_;
  const sync::Filter& filter_;
  const std::stop_token stop_;
  std::unique_ptr<LinkState> state_;
  std::string waiting_;
  int64_t waiting_count_ = 0;
};

}  // namespace

Result<WaitReport> wait_for(const LinkConfig& config, const LinkHome& home, const std::string& path,
                            std::optional<std::chrono::duration<double>> timeout, const std::stop_token& stop,
                            Progress* progress) {
  constexpr std::chrono::milliseconds kPause(200), kLongestPause(5000);
  const Clock::time_point began = Clock::now();
  const StopScope scope(stop);
  ASSIGN_OR_RETURN(const Location here, open_url(config.directory));
  ASSIGN_OR_RETURN(const sync::Filter filter, filter_of(config));
  ASSIGN_OR_RETURN(const Location there, open_url(config.url));
  ASSIGN_OR_RETURN(Leader leader, leader_of(config, ""));
  Barrier barrier(config, home, here, there, filter, stop);
  for (std::chrono::milliseconds pause = kPause;;) {
    WaitReport report;
    bool runs = LinkLock::is_taken(home);  // before the look: what it did until then is seen
    if (!runs && config.take_over_s > 0) {
      ASSIGN_OR_RETURN(runs, leader.is_held());
    }
    RETURN_IF_ERROR(barrier.look(path, report, progress));
    const Clock::duration waited = Clock::now() - began;
    if (barrier.waiting() == 0) {
      report.seconds = std::chrono::duration<double>(waited).count();
      return report;
    }
    if (!runs) {
      return fail(ErrorCode::kUnavailable,
                  "{} files wait, {} first, and no process runs the link: start `millrace link run {}`",
                  barrier.waiting(), barrier.first_waiting(), config.name);
    }
    if (timeout && waited >= *timeout) {
      return fail(ErrorCode::kTimeout,
                  "{} files are not in the bucket yet, {} first; `millrace link status {}` says why", barrier.waiting(),
                  barrier.first_waiting(), config.name);
    }
    // A look at what another node carries asks the bucket for each file.
    if (config.take_over_s > 0) pause = std::min(2 * pause, kLongestPause);
    if (!sleep_until(Clock::now() + pause, stop)) return fail(ErrorCode::kCancelled, "stopped");
  }
}

}  // namespace millrace::link
