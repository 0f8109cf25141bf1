// SPDX-License-Identifier: Apache-2.0
// Brings the content of released files back.
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "millrace/base/thread/sync.h"
#include "millrace/link/carry.h"
#include "millrace/link/detail/linked_files.h"
#include "millrace/link/release.h"
#include "millrace/link/stub.h"

namespace millrace::link {

namespace {

using State = LinkFile::State;

}  // namespace

namespace {

// Calls `visit` for the paths of the order, and then for all others below.
Status for_each_in_order(LinkState& state, const RestoreOptions& options,
                         const std::function<Status(const LinkFile&)>& visit) {
  const std::unordered_set<std::string_view> ordered(options.order.begin(), options.order.end());
  for (const std::string& path : options.order) {
    ASSIGN_OR_RETURN(const std::optional<LinkFile> file, state.find(path));
    if (!file) return fail(ErrorCode::kNotFound, "the link knows no file {} (of the order)", path);
    RETURN_IF_ERROR(visit(*file));
  }
  return for_each_file(state, options.below, [&](const LinkFile& file) -> Status {
    return ordered.contains(file.path) ? Status() : visit(file);
  });
}

class HsmRestore {
 public:
  HsmRestore(const LinkConfig& config, const Location& here, LinkState& state, const RestoreOptions& options,
             const std::stop_token& stop, Progress* progress)
      : config_(config),
        here_(here),
        state_(state),
        options_(options),
        stop_(stop),
        progress_(progress),
        actions_(
            HsmActions::Kind::kRestore, options.hsm,
            [this](const std::string& path, const Status& status) { ended(path, status); }, stop) {}

  [[nodiscard]] Result<RestoreReport> run() {
    if (!options_.dry_run) RETURN_IF_ERROR(check_hsm(config_));
    int64_t files = 0, bytes = 0;
    RETURN_IF_ERROR(for_each_file(state_, options_.below, [&](const LinkFile& file) -> Status {
      if (!is_away(file)) return {};
      ++files;
      bytes += file.size;
      return {};
    }));
    if (progress_ != nullptr) progress_->set_totals(bytes, files);
    RETURN_IF_ERROR(check_space(*here_.storage, here_.key, bytes, "the content of the released files"));
    const Status asked = for_each_in_order(state_, options_, [this](const LinkFile& file) { return bring(file); });
    const bool is_cancelled = !asked && asked.error().code() == ErrorCode::kCancelled;
    if (!is_cancelled) RETURN_IF_ERROR(actions_.finish());
    RETURN_IF_ERROR(state_.commit());
    RETURN_IF_ERROR(asked);
    return std::move(report_);
  }

 private:
  bool is_away(const LinkFile& file) const {
    return file.state != State::kGoneHere && has_no_blocks(whole_path(config_, file.path));
  }

  Status bring(const LinkFile& file) {
    if (stop_.stop_requested()) return fail(ErrorCode::kCancelled, "stopped; what Lustre was asked for goes on");
    if (!is_away(file)) return {};
    const std::string path = whole_path(config_, file.path);
    if (!files_.emplace(path, file).second) return {};  // twice in the order
    if (options_.dry_run) {
      tell(path, {});
      return {};
    }
    const auto state = hsm_state(path, stop_);
    if (!state && state.error().code() == ErrorCode::kCancelled) return tl::unexpected<Error>(state.error());
    if (!state) {
      ended(path, tl::unexpected<Error>(state.error()));
      return {};
    }
    if (!state->released) {
      files_.erase(path);  // a file of holes only
      return {};
    }
    if (state->lost) {
      ended(path, fail(ErrorCode::kCorruption,
                       "lost_from_hsm: the HSM has its content no more; the bucket has it: `millrace cp {}/{} {}`",
                       config_.url, file.path, path));
      return {};
    }
    return actions_.add(path);
  }

  void ended(const std::string& path, Status status) {
    if (status) status = remember(files_.at(path));
    tell(path, status);
  }

  // What changed with the content: the change time. Somebody who wrote to it since has left it dirty; then, and
  // wherever Lustre does not say, a sweep compares it.
  Status remember(LinkFile& file) {
    const auto now = here_.storage->stat(here_.child(file.path).key);
    if (!now || now->version != file.here.version || sync::is_version(file.here, *now)) return {};
    const auto state = hsm_state(whole_path(config_, file.path), stop_);
    if (!state || state->dirty || !state->archived) return {};
    file.here = sync::recorded_version(*now);
    RETURN_IF_ERROR(state_.put(file));
    return state_.commit();
  }

  void tell(const std::string& path, const Status& status) {
    const auto at = files_.find(path);
    const LinkFile& file = at->second;
    if (status) {
      ++report_.files;
      report_.bytes += file.size;
    } else {
      ++report_.failed;
      if (!report_.first_failure) report_.first_failure = status.error();
    }
    if (progress_ != nullptr) progress_->add(status ? file.size : 0, 1);
    if (options_.on_file) options_.on_file(file.path, file.size, status ? "" : status.error().to_string());
    files_.erase(at);
  }

  const LinkConfig& config_;
  const Location& here_;
  LinkState& state_;
  const RestoreOptions& options_;
  const std::stop_token stop_;
  Progress* const progress_;
  HsmActions actions_;
  std::unordered_map<std::string, LinkFile> files_;  // under way, by their whole path
  RestoreReport report_;
};

}  // namespace

Result<RestoreReport> restore(const LinkConfig& config, const Location& here, const Location& there, LinkState& state,
                              sync::TransferEngine& engine, const RestoreOptions& options, const std::stop_token& stop,
                              Progress* progress) {
  RETURN_IF_ERROR(check_marker(config));
  RETURN_IF_ERROR(check_there(config, options.below));
  if (config.hsm) return HsmRestore(config, here, state, options, stop, progress).run();
  RestoreReport report;
  int64_t files = 0, bytes = 0;
  RETURN_IF_ERROR(for_each_file(state, options.below, [&](const LinkFile& file) -> Status {
    if (file.state != State::kReleased) return {};
    ++files;
    bytes += file.size;
    return {};
  }));
  if (progress != nullptr) progress->set_totals(bytes, files);
  RETURN_IF_ERROR(check_space(*here.storage, here.key, bytes, "the content of the released files"));
  Mutex mutex;
  const auto told = [&](const LinkEvent& event) {
    const MutexLock lock(mutex);
    const bool failed = event.kind == "fail";
    if (failed) {
      ++report.failed;
      if (!report.first_failure) report.first_failure = Error(ErrorCode::kUnavailable, event.text);
    } else {
      ++report.files;
      report.bytes += event.size;
    }
    if (progress != nullptr) progress->add(event.size, 1);
    if (options.on_file) options.on_file(event.path, event.size, failed ? event.text : "");
  };
  Carrier carrier(config, here, there, state, engine, told, stop);
  const auto bring = [&](const LinkFile& file) -> Status {
    if (stop.stop_requested()) return fail(ErrorCode::kCancelled, "stopped; what is restored stays so");
    if (file.state != State::kReleased) return {};
    // A program has opened it since, and the state does not know yet.
    if (!config.show_at.empty() && !looks_released(whole_path(config, file.path))) return {};
    if (options.dry_run) {
      told({"import", file.path, "", file.size});
    } else if (const Status started = carrier.bring_back(file); !started) {
      told({"fail", file.path, started.error().to_string()});
    }
    return {};
  };
  RETURN_IF_ERROR(for_each_in_order(state, options, bring));
  RETURN_IF_ERROR(carrier.finish());
  return report;
}

}  // namespace millrace::link
