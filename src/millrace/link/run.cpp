// SPDX-License-Identifier: Apache-2.0
#include "millrace/link/run.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "millrace/base/text/units.h"
#include "millrace/link/answers.h"
#include "millrace/link/changelog.h"
#include "millrace/link/filler.h"
#include "millrace/link/guarded_fills.h"
#include "millrace/link/leader.h"
#include "millrace/link/lease.h"
#include "millrace/link/release.h"
#include "millrace/link/shared_sweep.h"
#include "millrace/link/status.h"
#include "millrace/link/wall_clock.h"
#include "millrace/link/watch.h"
#include "millrace/sync/entries.h"

namespace millrace::link {

namespace {

using Seconds = std::chrono::duration<double>;

// A file counts as seen again when its due time has passed; more than so many are left to a sweep.
constexpr size_t kMostDue = 20'000;
constexpr double kTrashEvery_s = 3600;
// The share of the time that sweeps may take.
constexpr double kSweepShare = 0.05;

Clock::duration ticks(double seconds) {
  return std::chrono::duration_cast<Clock::duration>(Seconds(seconds));
}

// What other threads have for the run: a stop, and paths that notices named. Readable when there is any. Thread-safe.
class Mailbox {
 public:
  Mailbox() : fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}
  ~Mailbox() { ::close(fd_); }
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  int fd() const { return fd_; }
  void wake() {
    const uint64_t one = 1;
    // A full counter is readable too.
    static_cast<void>(!::write(fd_, &one, sizeof one));
  }
  void put(const std::string& path) {
    {
      const MutexLock lock(mutex_);
      if (paths_.size() < kMostDue) paths_.push_back(path);
      lost_ |= paths_.size() == kMostDue;
    }
    wake();
  }
  // `lost`: there were more than are kept.
  std::vector<std::string> take(bool& lost) {
    uint64_t count = 0;
    static_cast<void>(!::read(fd_, &count, sizeof count));
    const MutexLock lock(mutex_);
    lost = std::exchange(lost_, false);
    return std::exchange(paths_, {});
  }

 private:
  const int fd_;
  Mutex mutex_;
  std::vector<std::string> paths_ GUARDED_BY(mutex_);
  bool lost_ GUARDED_BY(mutex_) = false;
};

class LinkRun {
 public:
  LinkRun(const LinkConfig& config, const Location& here, const Location& there, LinkState& state,
          sync::TransferEngine& engine, Answers& answers, const std::optional<Location>& board,
          const RunOptions& options, const std::stop_token& stop)
      : config_(config),
        here_(here),
        there_(there),
        state_(state),
        answers_(answers),
        options_(options),
        stop_(stop),
        carrier_(config, here, there, state, engine, options.on_event, stop),
        interval_s_(config.poll_least_s) {
    if (board) shared_.emplace(config, here, there, *board, sync::unique_owner(), state, carrier_, stop);
  }

  [[nodiscard]] Status once() {
    while (true) {
      answers_.set_busy(true);
      ASSIGN_OR_RETURN(const SweepReport report, run_sweep());
      if (report.counts.postponed == 0) return {};
      if (!sleep_until(Clock::now() + ticks(std::max(0.1, config_.quiet_s)), stop_)) return {};
    }
  }

  [[nodiscard]] Status until_stopped() {
    const std::stop_callback wakes(stop_, [mailbox = mailbox_] { mailbox->wake(); });
    if (options_.notices != nullptr) {
      auto [bucket, prefix] = bucket_and_prefix(config_.url);
      options_.notices->subscribe(std::move(bucket), std::move(prefix),
                                  [mailbox = mailbox_](const std::string& path) { mailbox->put(path); });
    }
    while (!stop_.stop_requested()) {
      if (options_.watch && !watch_) open_watch();
      if (!config_.changelog.empty() && !changelog_) open_changelog();
      answers_.set_busy(true);
      if (Clock::now() >= next_sweep_) sweep_and_plan();
      RETURN_IF_ERROR(tell_waiting());
      RETURN_IF_ERROR(look_at_due());
      RETURN_IF_ERROR(tell_waiting());
      answers_.set_busy(false);
      wait();
    }
    return carrier_.finish();
  }

 private:
  struct Due {
    Clock::time_point at;  // when it may be finished
    int64_t since_s = 0;   // when it was seen to change, in seconds since 1970
    bool renamed = false;  // to this path, and so whole
    // Until then it is asked again, ever more slowly, whether a new file is whole: who commits it has it open still.
    Clock::time_point ask_until{};
    Clock::duration pause{};
  };

  void note(const std::string& text) {
    if (options_.on_note) options_.on_note(text);
  }

  // A directory that is not mounted cannot be watched: it is tried again with the next sweep.
  void open_watch() {
    if (Clock::now() < next_watch_ || !check_marker(config_)) return;
    next_watch_ = Clock::now() + ticks(config_.poll_most_s);
    auto watch = TreeWatch::open(config_.directory);
    if (!watch) {
      note(watch.error().to_string() + "; changes of the directory are found by sweeps");
      return;
    }
    watch_ = *std::move(watch);
    if (!watch_->problem().empty()) note(watch_->problem() + "; changes there are found by sweeps");
    next_sweep_ = Clock::now();
  }

  void open_changelog() {
    if (Clock::now() < next_changelog_) return;
    next_changelog_ = Clock::now() + ticks(config_.poll_most_s);
    auto log = Changelog::open(config_.changelog, config_.directory);
    if (!log) return changelog_failed(log.error());
    changelog_ = *std::move(log);
    next_changelog_ = next_sweep_ = Clock::now();
  }

  void changelog_failed(const Error& error) {
    changelog_.reset();
    const std::string text = error.to_string() + "; changes of other nodes are found by sweeps";
    if (text != std::exchange(changelog_told_, text)) note(text);
  }

  // Records of Lustre's changelog, as what a watch sees.
  void read_changelog(TreeWatch::Seen& seen) {
    if (!changelog_ || Clock::now() < next_changelog_) return;
    next_changelog_ = Clock::now() + ticks(config_.poll_least_s);
    auto read = changelog_->read();
    if (!read) {
      next_changelog_ = Clock::now() + ticks(config_.poll_most_s);
      return changelog_failed(read.error());
    }
    for (std::string& path : read->paths) {
      if (!sync::is_hidden(path)) seen.paths.push_back(std::move(path));
    }
    seen.removed |= read->removed;
    seen.lost |= read->lost;
  }

  Result<SweepReport> run_sweep() {
    RETURN_IF_ERROR(state_.set_fact("doing", "looking at both sides"));
    RETURN_IF_ERROR(state_.commit());
    const bool adopt = !std::exchange(wants_own_sweep_, false);
    ASSIGN_OR_RETURN(SweepReport report,
                     shared_ ? shared_->take_part(adopt) : sweep(config_, here_, there_, state_, carrier_, stop_));
    if (!swept_) {
      // What killed processes left and no copy has gone on with.
      ASSIGN_OR_RETURN(const std::vector<ObjectInfo> left, left_here());
      RETURN_IF_ERROR(here_.storage->abort_uploads(left));
      swept_ = true;
    }
    if (Clock::now() >= next_trash_) {
      RETURN_IF_ERROR(carrier_.empty_trash());
      next_trash_ = Clock::now() + ticks(kTrashEvery_s);
    }
    RETURN_IF_ERROR(state_.set_fact("last_sweep", std::to_string(static_cast<int64_t>(wall_now_s()))));
    RETURN_IF_ERROR(state_.set_fact("sweep_s", fmt::format("{:.3f}", report.seconds)));
    RETURN_IF_ERROR(state_.set_fact("files_here", std::to_string(report.files_here)));
    RETURN_IF_ERROR(state_.set_fact("files_there", std::to_string(report.files_there)));
    RETURN_IF_ERROR(state_.set_fact("postponed", std::to_string(report.counts.postponed)));
    RETURN_IF_ERROR(state_.set_fact("passed", std::to_string(report.passed)));
    RETURN_IF_ERROR(state_.set_fact("not_deleted", report.not_deleted));
    RETURN_IF_ERROR(state_.set_fact("error", ""));
    RETURN_IF_ERROR(state_.set_fact("doing", "waiting for changes"));
    if (!report.not_deleted.empty() && report.not_deleted != told_)
      note("what is gone was not removed: " + report.not_deleted);
    told_ = report.not_deleted;
    RETURN_IF_ERROR(state_.commit());
    return report;
  }

  Result<std::vector<ObjectInfo>> left_here() {
    auto left = here_.storage->list_uploads(here_.key.empty() ? "" : here_.key + "/");
    // A file system without locks does not tell whose they are.
    if (!left && left.error().code() == ErrorCode::kUnsupported) return std::vector<ObjectInfo>();
    return left;
  }

  void tell_failure(const Error& error) {
    if (stop_.stop_requested()) return;
    const std::string text = error.to_string();
    if (text != told_) note(text + "; it is tried again");
    told_ = text;
    // The state itself may be what fails; then only the note tells.
    static_cast<void>(state_.set_fact("error", text).and_then([&] { return state_.commit(); }));
  }

  void sweep_and_plan() {
    const auto report = run_sweep();
    if (stop_.stop_requested()) return;
    if (!report) {
      tell_failure(report.error());
      interval_s_ = std::min(2 * interval_s_, config_.poll_most_s);
      next_sweep_ = Clock::now() + ticks(interval_s_);
      return;
    }
    constexpr double kSlower = 1.5;
    interval_s_ = report->there_changed ? config_.poll_least_s : std::min(kSlower * interval_s_, config_.poll_most_s);
    double wait_s = std::max(interval_s_, report->seconds / kSweepShare);
    if (report->counts.postponed > 0 && !watch_) wait_s = std::max(config_.quiet_s, report->seconds / kSweepShare);
    last_sweep_s_ = report->seconds;
    next_sweep_ = Clock::now() + ticks(wait_s);
    due_.clear();
    if (report->counts.postponed > 0) sweep_within(config_.quiet_s);
  }

  void sweep_within(double seconds) {
    next_sweep_ = std::min(next_sweep_, Clock::now() + ticks(std::max(seconds, last_sweep_s_ / kSweepShare)));
  }

  Status look_at_due() {
    const Clock::time_point now = Clock::now();
    if (shared_ && !prepare_due(now)) return {};
    bool looked = false;
    for (auto each = due_.begin(); each != due_.end() && !stop_.stop_requested();) {
      if (each->second.at > now) {
        ++each;
        continue;
      }
      if (asks_again(each->first, each->second, now)) {
        ++each;
        continue;
      }
      looked = true;
      const bool renamed = std::exchange(each->second.renamed, false);
      const auto step = renamed ? carrier_.look_at_renamed(each->first) : carrier_.look_at(each->first);
      if (step && *step == Step::kPostpone) {
        each->second.at = now + ticks(std::max(0.1, config_.quiet_s));
        ++each;
        continue;
      }
      if (!step || *step != Step::kNone) sweep_within(config_.poll_least_s);
      each = due_.erase(each);
    }
    if (!looked) return {};
    const Status finished = carrier_.finish();
    static_cast<void>(carrier_.take_counts());
    if (finished && shared_) {
      // What the others are not told of now they are told of with the next sweep.
      if (const Status told = shared_->publish(); !told) tell_failure(told.error());
    }
    return finished;
  }

  Committed committed(const std::string& path) const {
    return how_committed(fmt::format("{}/{}", config_.directory, path));
  }

  // Whether a file that somebody may be about to commit waits on.
  bool asks_again(const std::string& path, Due& due, Clock::time_point now) const {
    constexpr std::chrono::milliseconds kFirst(10), kMost(1000);
    if (now >= due.ask_until) return false;
    const Committed how = committed(path);
    if (how == Committed::kInUse) {
      due.pause = std::clamp<Clock::duration>(2 * due.pause, kFirst, kMost);
      due.at = std::min(now + due.pause, due.ask_until);
      return true;
    }
    due.renamed = how == Committed::kYes;
    if (due.renamed) return false;
    due.at = std::exchange(due.ask_until, {});
    return true;
  }

  // Learns what other tasks know of these paths. False: it cannot be asked for now, and they wait.
  bool prepare_due(Clock::time_point now) {
    std::vector<std::string> paths;
    for (const auto& [path, due] : due_) {
      if (due.at <= now) paths.push_back(path);
    }
    if (paths.empty()) return true;
    const Status known = shared_->prepare(paths);
    if (known) return true;
    tell_failure(known.error());
    for (const std::string& path : paths) due_.at(path).at = Clock::now() + ticks(config_.poll_most_s);
    return false;
  }

  Status tell_waiting() {
    int64_t since = 0;
    for (const auto& [path, due] : due_) since = since == 0 ? due.since_s : std::min(since, due.since_s);
    const std::pair waiting(due_.size(), since);
    if (waiting == waiting_told_) return {};
    waiting_told_ = waiting;
    RETURN_IF_ERROR(state_.set_fact("waiting", std::to_string(waiting.first)));
    RETURN_IF_ERROR(state_.set_fact("waiting_since", std::to_string(since)));
    return state_.commit();
  }

  void wait() {
    Clock::time_point until = next_sweep_;
    for (const auto& [path, due] : due_) until = std::min(until, due.at);
    const auto least = std::chrono::milliseconds(10);
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now());
    const auto most = std::clamp(left, least, std::chrono::milliseconds(1000));
    TreeWatch::Seen seen;
    if (watch_) {
      seen = watch_->wait(most, mailbox_->fd());
    } else {
      pollfd ready{.fd = mailbox_->fd(), .events = POLLIN, .revents = 0};
      ::poll(&ready, 1, static_cast<int>(most.count()));
    }
    read_changelog(seen);
    const Clock::time_point now = Clock::now();
    const auto now_s = static_cast<int64_t>(wall_now_s());
    const auto add = [&](const std::string& path, Clock::time_point at, bool renamed = false) {
      Due& due = due_.try_emplace(path, Due{at, now_s}).first->second;
      due.at = at;
      due.renamed = renamed;
      due.ask_until = {};
    };
    // As careful programs commit their files. One that changed as well has to be quiet, like any other. Of a file in an
    // HSM nothing is asked here.
    for (const std::string& path : seen.renamed) add(path, now, true);
    const Clock::time_point quiet = now + ticks(config_.quiet_s);
    for (const std::string& path : seen.created) {
      const Committed how = config_.hsm ? Committed::kNo : committed(path);
      add(path, how == Committed::kNo ? quiet : now, how == Committed::kYes);
      if (how == Committed::kInUse) due_.at(path).ask_until = quiet;
    }
    for (const std::string& path : seen.paths) add(path, quiet);
    bool lost = false;
    for (const std::string& path : mailbox_->take(lost)) add(path, now);
    if (seen.lost || lost || due_.size() > kMostDue) {
      due_.clear();
      sweep_within(config_.quiet_s);
      wants_own_sweep_ = true;
    }
    if (seen.removed) {
      sweep_within(config_.poll_least_s);
      wants_own_sweep_ = true;
    }
  }

  const LinkConfig& config_;
  const Location& here_;
  const Location& there_;
  LinkState& state_;
  Answers& answers_;
  const RunOptions& options_;
  const std::stop_token stop_;
  Carrier carrier_;
  const std::shared_ptr<Mailbox> mailbox_ = std::make_shared<Mailbox>();
  std::optional<SharedSweeps> shared_;  // where other tasks carry too
  std::unique_ptr<TreeWatch> watch_;
  std::optional<Changelog> changelog_;
  std::map<std::string, Due> due_;  // paths that were seen to change
  double interval_s_, last_sweep_s_ = 0;
  Clock::time_point next_sweep_{}, next_trash_{}, next_watch_{}, next_changelog_{};
  std::pair<size_t, int64_t> waiting_told_;
  bool swept_ = false;
  bool wants_own_sweep_ = true;  // something was seen that a sweep of others, begun before, may have missed
  std::string changelog_told_;
  std::string told_;  // what was noted last, so that it is noted once
};

// Beside the sweeps, which go on: with a handle of its own on the state, as `link release` has.
class FreeSpace {
 public:
  FreeSpace(const LinkConfig& config, const LinkHome& home, const Location& here, const RunOptions& options,
            const std::stop_token& stop)
      : config_(config), home_(home), here_(here), options_(options), stop_(stop) {}

  // Releases files if the file system is fuller than the link allows. Returns whether it still is.
  bool look() {
    if (free_share(config_.directory) >= config_.release_below || !check_marker(config_)) return false;
    const auto report = release_some();
    if (!report) {
      note(fmt::format("less than {:g} % of the file system is free, and nothing can be released: {}",
                       100 * config_.release_below, report.error().to_string()));
      return true;
    }
    const bool still = report->free_share < config_.release_below;
    const std::string tail =
        still ? fmt::format("; {} stay (pinned, in use, used too lately or not in the bucket yet)", report->left) : "";
    note(fmt::format("{} released, {}; {:.1f} % of the file system is free{}", report->files,
                     format_bytes(report->bytes), 100 * report->free_share, tail));
    return still;
  }

  void until_stopped() {
    constexpr std::chrono::seconds kEvery(2), kLongest(60);
    // A look that finds nothing still reads what is not proven yet, so the next one waits longer; soon more may be in
    // the bucket.
    for (std::chrono::seconds wait = kEvery; !stop_.stop_requested();) {
      wait = look() ? std::min(2 * wait, kLongest) : kEvery;
      sleep_until(Clock::now() + wait, stop_);
    }
  }

 private:
  void note(const std::string& text) {
    if (options_.on_note && text != std::exchange(told_, text)) options_.on_note(text);
  }

  Result<ReleaseReport> release_some() {
    ASSIGN_OR_RETURN(const std::unique_ptr<LinkState> state, LinkState::open(home_.state_path()));
    ReleaseOptions release_options{.home = home_};
    release_options.keep_free = config_.release_until;
    if (!config_.next_use.empty()) {
      ASSIGN_OR_RETURN(release_options.next_use, read_order(config_, config_.next_use));
    }
    release_options.on_file = [&](const std::string& path, int64_t size, const std::string& left) {
      if (left.empty() && options_.on_event) options_.on_event({"release", path, "the file system is full", size});
    };
    return release(config_, here_, *state, release_options, stop_);
  }

  const LinkConfig& config_;
  const LinkHome& home_;
  const Location& here_;
  const RunOptions& options_;
  const std::stop_token stop_;
  std::string told_;
};

// The link is this process's: nobody else carries.
Status run_alone(const LinkConfig& config, const LinkHome& home, LinkState& state, sync::TransferEngine& engine,
                 const RunOptions& options, const std::stop_token& stop) {
  const StopScope scope(stop);
  ASSIGN_OR_RETURN(const Location here, open_url(config.directory));
  ASSIGN_OR_RETURN(const Location there, open_url(config.url));
  std::unique_ptr<GuardedFills> fills;
  if (!config.show_at.empty()) {
    ASSIGN_OR_RETURN(fills, GuardedFills::start(config, home, options.on_event, options.on_note, stop));
    RETURN_IF_ERROR(settle_fills(config, home, state));
  }
  if (check_marker(config)) RETURN_IF_ERROR(settle_releases(config, here, state));
  // Stamps go on from there where the clock was set back meanwhile.
  not_before(parse_whole(state.fact("last_sweep").value_or("")).value_or(0));
  Answers answers(there, state);
  std::optional<Location> board;
  if (config.take_over_s > 0) {
    ASSIGN_OR_RETURN(const Location opened, sync::open_board(there, "link-tasks"));
    board = opened.with_stop(stop);
  }
  RETURN_IF_ERROR(state.note_changes(options.shares));
  if (board && !options.shares) {
    RETURN_IF_ERROR(SharedState(*std::exchange(board, std::nullopt), sync::unique_owner(), state).take_home());
  }
  LinkRun run(config, here, there, state, engine, answers, board, options, stop);
  std::stop_source ended_here;  // however the run ends
  const std::stop_callback ends(stop, [&] { ended_here.request_stop(); });
  FreeSpace space(config, home, here, options, ended_here.get_token());
  std::optional<Thread> keeps_space, asks, shows;
  asks.emplace("mr-answers", [&] { answers.watch(ended_here.get_token()); });
  shows.emplace("mr-shows", [&] {
    constexpr std::chrono::seconds kEvery(5);
    do {
      // A state that cannot be read says so elsewhere.
      if (const auto since_s = waits_since(state, true)) show_link(config.name, *since_s);
    } while (sleep_until(Clock::now() + kEvery, ended_here.get_token()));
  });
  const bool releases = config.release_below > 0 && !options.shares;
  if (config.release_below > 0 && options.shares && options.on_note) {
    options.on_note("releases nothing while several tasks carry: --keep-free works when one node runs the link");
  }
  if (!options.once && releases) keeps_space.emplace("mr-release", [&] { space.until_stopped(); });
  const Status ended = options.once ? run.once() : run.until_stopped();
  if (options.once && releases) space.look();
  ended_here.request_stop();
  keeps_space.reset();
  asks.reset();
  shows.reset();
  show_link(config.name, std::nullopt);
  return ended || stop.stop_requested() ? Status() : ended;
}

// A link that several nodes may run: this process carries while it is the leader, and stands by while another one is.
class InTurn {
 public:
  InTurn(const LinkConfig& config, const LinkHome& home, LinkState& state, sync::TransferEngine& engine,
         const RunOptions& options, const std::stop_token& stop)
      : config_(config),
        home_(home),
        state_(state),
        engine_(engine),
        options_(options),
        stop_(stop),
        owner_(options.shares ? kTasks : sync::unique_owner()) {}

  [[nodiscard]] Status run() {
    ASSIGN_OR_RETURN(Leader leader, leader_of(config_, owner_));
    const Clock::duration beat = ticks(config_.take_over_s / kBeats);
    while (!stop_.stop_requested()) {
      const auto taken = leader.take();
      if (taken && *taken) {
        RETURN_IF_ERROR(state_.set_fact("stands_by", ""));
        RETURN_IF_ERROR(carry(leader, beat));
        if (options_.once) return {};
        continue;
      }
      if (options_.once) {
        if (!taken) return tl::unexpected<Error>(taken.error());
        return fail(ErrorCode::kUnavailable, "{} runs this link", leader.holder());
      }
      if (!stop_.stop_requested()) RETURN_IF_ERROR(stand_by(taken ? "" : taken.error().to_string(), leader.holder()));
      sleep_until(Clock::now() + beat, stop_);
    }
    return {};
  }

 private:
  static constexpr double kBeats = 5;  // that the leader may miss before another takes over

  void note(const std::string& text) {
    if (options_.on_note && text != std::exchange(told_, text)) options_.on_note(text);
  }

  Status stand_by(const std::string& error, const std::string& holder) {
    const std::string who = holder.empty() ? "another process" : holder;
    note(error.empty() ? fmt::format("stands by: {} runs it", who)
                       : fmt::format("stands by: who runs it cannot be read: {}; it is tried again", error));
    RETURN_IF_ERROR(state_.set_fact("stands_by", who));
    RETURN_IF_ERROR(state_.set_fact("doing", fmt::format("stands by: {} runs it", who)));
    RETURN_IF_ERROR(state_.set_fact("error", error));
    return state_.commit();
  }

  // Until it is stopped, or another has the place.
  Status carry(Leader& leader, Clock::duration beat) {
    if (!told_.empty()) note("takes over");
    std::stop_source ends;
    const std::stop_callback stops(stop_, [&] { ends.request_stop(); });
    std::string lost;
    Thread beats("mr-leader", [&] {
      Clock::time_point renewed = Clock::now();
      while (sleep_until(Clock::now() + beat, ends.get_token())) {
        const Clock::time_point asked = Clock::now();
        const auto renews = leader.renew();
        if (ends.stop_requested()) return;
        if (renews && *renews) {
          renewed = asked;
          continue;
        }
        if (!renews && Clock::now() - renewed < ticks(config_.take_over_s)) continue;
        lost = renews ? fmt::format("{} runs it now", leader.holder().empty() ? "another process" : leader.holder())
                      : "the bucket did not answer for too long: " + renews.error().to_string();
        ends.request_stop();
      }
    });
    const Status ended = run_alone(config_, home_, state_, engine_, options_, ends.get_token());
    ends.request_stop();
    beats.join();
    if (!lost.empty()) {
      note("no longer carries: " + lost);
    } else if (!options_.shares) {
      leave();
    }
    return ended;
  }

  // Without the stop, which has come already; so for a short time only.
  void leave() {
    constexpr std::chrono::seconds kMost(5);
    std::stop_source too_long, left;
    Thread watches("mr-leader", [&] {
      if (sleep_until(Clock::now() + kMost, left.get_token())) too_long.request_stop();
    });
    {
      const StopScope scope(too_long.get_token());
      // Else the next one takes over when this one was silent for long enough.
      static_cast<void>(leader_of(config_, owner_).and_then([](Leader leader) { return leader.give_up(); }));
    }
    left.request_stop();
    watches.join();
  }

  const LinkConfig& config_;
  const LinkHome& home_;
  LinkState& state_;
  sync::TransferEngine& engine_;
  const RunOptions& options_;
  const std::stop_token stop_;
  // All tasks of a link have its place together.
  const std::string owner_;
  std::string told_;
};

}  // namespace

Status run_link(const LinkConfig& config, const LinkHome& home, sync::TransferEngine& engine, const RunOptions& options,
                const std::stop_token& stop) {
  ASSIGN_OR_RETURN(const LinkLock lock, LinkLock::take(home));
  ASSIGN_OR_RETURN(const std::unique_ptr<LinkState> state, LinkState::open(home.state_path()));
  if (config.lazy && config.show_at.empty() && ::geteuid() == 0) {
    return fail(ErrorCode::kPermissionDenied,
                "{} imports files without content (--lazy), in which root would read zeros: run it as the user that "
                "reads them",
                config.name);
  }
  if (options.shares && config.take_over_s <= 0) {
    return fail(ErrorCode::kInvalidArgument,
                "{} is for one node: tasks share a link that was added with --take-over, and joined on each node",
                config.name);
  }
  const StopScope scope(stop);
  const Status ended = config.take_over_s > 0 ? InTurn(config, home, *state, engine, options, stop).run()
                                              : run_alone(config, home, *state, engine, options, stop);
  RETURN_IF_ERROR(state->set_fact("doing", ""));
  RETURN_IF_ERROR(state->set_fact("stands_by", ""));
  RETURN_IF_ERROR(state->commit());
  return ended;
}

}  // namespace millrace::link
