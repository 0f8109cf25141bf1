// SPDX-License-Identifier: Apache-2.0
#include "millrace/link/shared_sweep.h"

#include <algorithm>
#include <utility>

#include "millrace/storage/page_token.h"
#include "millrace/sync/entries.h"

namespace millrace::link {

namespace {

// Between two looks of a task that found nothing to do.
constexpr std::chrono::milliseconds kFirstPause(100), kLongestPause(5000);

}  // namespace

SharedSweeps::SharedSweeps(const LinkConfig& config, const Location& here, const Location& there, Location board,
                           std::string owner, LinkState& state, Carrier& carrier, std::stop_token stop)
    : config_(config),
      here_(here),
      there_(there),
      owner_(std::move(owner)),
      state_(state),
      carrier_(carrier),
      stop_(std::move(stop)),
      shared_(std::move(board), owner_, state) {}

// The first path behind another on either side.
Result<std::optional<std::string>> SharedSweeps::next_path(const std::string& after) const {
  std::optional<std::string> next;
  for (const Location* side : {&here_, &there_}) {
    const std::string prefix = sync::prefix_of(*side);
    ASSIGN_OR_RETURN(
        const ListPage page,
        side->storage->list(prefix, {.page_token = page_token_behind(prefix + after), .max_keys = 1, .others = true}));
    if (page.objects.empty()) continue;
    std::string path = page.objects.front().key.substr(prefix.size());
    if (!next || path < *next) next = std::move(path);
  }
  return next;
}

Result<SweepReport> SharedSweeps::take_part(bool adopt) {
  const Clock::time_point began = Clock::now();
  SweepReport report;
  RETURN_IF_ERROR(check_marker(config_));
  RETURN_IF_ERROR(shared_.publish());
  RETURN_IF_ERROR(shared_.refresh());
  if (!adopt || taken_ < 0 || shared_.newest() == taken_) {
    const int64_t sweep = shared_.newest() + 1;
    sync::Share share(
        shared_.board_of(sweep),
        {.owner = owner_, .dead_after = dead_after(), .again = true, .next_path = [this](const std::string& after) {
           return next_path(after);
         }});
    std::chrono::milliseconds pause = kFirstPause;
    bool closes = false;
    while (shared_.newest() < sweep) {
      if (stop_.stop_requested()) return fail(ErrorCode::kCancelled, "stopped");
      ASSIGN_OR_RETURN(const sync::Share::Turn turn, share.look());
      closes = turn.closes;
      if (turn.range) {
        RETURN_IF_ERROR(work(share, *turn.range, sweep));
        pause = kFirstPause;
        continue;
      }
      if (!turn.finished) {
        sleep_until(Clock::now() + pause, stop_);
        pause = std::min(2 * pause, kLongestPause);
      }
      RETURN_IF_ERROR(shared_.refresh());
    }
    if (closes) RETURN_IF_ERROR(close(report));
  }
  taken_ = shared_.newest();
  const SweepFindings totals = shared_.totals();
  report.files_here = totals.files_here;
  report.files_there = totals.files_there;
  report.passed = totals.passed;
  report.counts = carrier_.take_counts();
  report.there_changed = changed_there(report.counts);
  report.seconds = std::chrono::duration<double>(Clock::now() - began).count();
  return report;
}

Status SharedSweeps::work(sync::Share& share, sync::KeyRange& range, int64_t sweep) {
  Result<std::string> note = std::string();
  Result<SweepFindings> found = SweepFindings();
  const auto look = [&](const std::stop_token& stop) -> Result<SweepFindings> {
    RETURN_IF_ERROR(shared_.refresh());
    RETURN_IF_ERROR(shared_.load(range.after(), range.until()));
    return sweep_range(config_, here_, there_, state_, carrier_, range, stop);
  };
  const bool is_mine =
      sync::work_and_beat(share, dead_after(), stop_, [&](const std::stop_token& stop) { found = look(stop); });
  if (!is_mine) return {};
  RETURN_IF_ERROR(found);
  // Nothing of it can be taken from here on: all of it has begun.
  ASSIGN_OR_RETURN(const bool still_mine, share.beat());
  if (!still_mine) return {};
  const auto save = [&] { note = shared_.save(sweep, range.after(), range.until(), *found); };
  if (!sync::work_and_beat(share, dead_after(), stop_, [&](const std::stop_token&) { save(); })) return {};
  RETURN_IF_ERROR(note);
  return share.finish(*note);
}

// Everything was looked at: what is gone may be removed.
Status SharedSweeps::close(SweepReport& report) {
  ASSIGN_OR_RETURN(SweepFindings found, shared_.findings());
  const LoadRows load = [&](const std::vector<std::string>& paths) { return shared_.load_for(paths); };
  RETURN_IF_ERROR(end_sweep(config_, here_, there_, state_, carrier_, std::move(found), load, report, stop_));
  RETURN_IF_ERROR(shared_.publish());
  RETURN_IF_ERROR(shared_.announce());
  return shared_.tidy();
}

Status SharedSweeps::prepare(const std::vector<std::string>& paths) {
  RETURN_IF_ERROR(shared_.refresh());
  return shared_.load_for(paths);
}

}  // namespace millrace::link
