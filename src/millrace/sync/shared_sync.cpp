// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cctype>
#include <utility>

#include "millrace/base/log.h"
#include "millrace/base/text/units.h"
#include "millrace/storage/page_token.h"
#include "millrace/sync/detail/sync_run.h"
#include "millrace/sync/share.h"
#include "millrace/sync/sync.h"

namespace millrace::sync {

namespace {

// Between two looks of a task that found nothing to do.
constexpr std::chrono::duration<double> kFirstPause(0.2), kLongestPause(10);

Clock::duration as_ticks(std::chrono::duration<double> time) {
  return std::chrono::duration_cast<Clock::duration>(time);
}

void add_report(SyncReport& sum, const SyncReport& part) {
  for (const auto field : {&SyncReport::copied_files, &SyncReport::copied_bytes, &SyncReport::moved_bytes,
                           &SyncReport::server_bytes, &SyncReport::resumed_bytes, &SyncReport::skipped_files,
                           &SyncReport::skipped_bytes, &SyncReport::extra_files, &SyncReport::set_folders,
                           &SyncReport::passed, &SyncReport::refused, &SyncReport::failed, &SyncReport::retries}) {
    sum.*field += part.*field;
  }
  if (!sum.first_failure) sum.first_failure = part.first_failure;
}

Status check_shared(const SharedSync& shared, const SyncOptions& options) {
  if (options.delete_extra || options.remove_source || options.dry_run) {
    return fail(ErrorCode::kInvalidArgument,
                "several tasks delete nothing and make no dry run: run one sync for that, before or after them");
  }
  const bool legal = !shared.job.empty() && shared.job.size() <= 100 && shared.job.front() != '.' &&
                     std::ranges::all_of(shared.job, [](char c) {
                       return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_' || c == '.';
                     });
  if (legal) return {};
  return fail(ErrorCode::kInvalidArgument, "\"{}\" is no name of a job: letters, digits, '-', '_' and '.' are",
              shared.job);
}

class SharedRun {
 public:
  SharedRun(Location source, Location target, Location board, const SharedSync& shared, const SyncOptions& options,
            const std::stop_token& stop, Progress* progress)
      : source_(std::move(source)),
        target_(std::move(target)),
        options_(options),
        job_(shared.job),
        dead_after_(shared.dead_after),
        stop_(stop),
        progress_(progress),
        share_(std::move(board), {.owner = unique_owner(),
                                  .dead_after = shared.dead_after,
                                  .next_path = [this](const std::string& after) { return next_path(after); }}) {
    options_.record = false;
  }

  [[nodiscard]] Result<SyncReport> run() {
    const auto began = Clock::now();
    ASSIGN_OR_RETURN(const auto first, next_path(""));
    if (!first) return fail(ErrorCode::kNotFound, "there are no files below {}", source_.url);
    auto wait = kFirstPause;
    while (!stop_.stop_requested()) {
      ASSIGN_OR_RETURN(const Share::Turn turn, share_.look());
      if (turn.finished) {
        if (!worked_) {
          log(LogLevel::kWarning,
              "the tasks of {} have done all of it, and nothing is left for this one; another sync needs another name",
              job_);
        }
        break;
      }
      if (turn.range) {
        RETURN_IF_ERROR(work(*turn.range));
        if (!report_.end) break;
        wait = kFirstPause;
        continue;
      }
      sleep_until(Clock::now() + as_ticks(wait), stop_);
      wait = std::min(2 * wait, kLongestPause);
    }
    if (report_.end && stop_.stop_requested()) report_.end = fail(ErrorCode::kCancelled, "stopped");
    report_.seconds = std::chrono::duration<double>(Clock::now() - began).count();
    return std::move(report_);
  }

 private:
  Result<std::optional<std::string>> next_path(const std::string& after) const {
    const std::string prefix = prefix_of(source_);
    ASSIGN_OR_RETURN(const ListPage page,
                     source_.storage->list(prefix, {.page_token = page_token_behind(prefix + after),
                                                    .max_keys = 1,
                                                    .follow_links = options_.follow_links,
                                                    .others = true}));
    if (page.objects.empty()) return std::nullopt;
    return page.objects.front().key.substr(prefix.size());
  }

  // Errors: those that end this task. What ends the sync of the range is in the report.
  Status work(KeyRange& range) {
    worked_ = true;
    Result<SyncReport> part = SyncReport();
    const bool is_mine = work_and_beat(share_, dead_after_, stop_, [&](const std::stop_token& stop) {
      SyncOptions options = options_;
      options.range = &range;
      part = SyncRun(source_, target_, options, stop, progress_).run();
    });
    if (!part) return tl::unexpected<Error>(std::move(part).error());
    add_report(report_, *part);
    if (stop_.stop_requested()) return {};
    if (is_mine) report_.end = part->end;
    return report_.end ? share_.finish() : Status();
  }

  const Location source_, target_;
  SyncOptions options_;
  const std::string job_;
  const std::chrono::duration<double> dead_after_;
  const std::stop_token stop_;
  Progress* const progress_;
  SyncReport report_;
  bool worked_ = false;
  Share share_;
};

}  // namespace

Result<SyncReport> sync_shared(const std::string& source, const std::string& target, const SharedSync& shared,
                               const SyncOptions& options, std::stop_token stop, Progress* progress) {
  RETURN_IF_ERROR(check_shared(shared, options));
  ASSIGN_OR_RETURN(const Location from, open_url(source));
  ASSIGN_OR_RETURN(const Location to, open_url(target));
  RETURN_IF_ERROR(check_apart(from, to, options));
  ASSIGN_OR_RETURN(const Location board, open_board(to, "tasks/" + shared.job));
  return SharedRun(from.with_stop(stop), to.with_stop(stop), board.with_stop(stop), shared, options, stop, progress)
      .run();
}

}  // namespace millrace::sync
