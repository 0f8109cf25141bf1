// SPDX-License-Identifier: Apache-2.0
#include "millrace/link/hsm.h"

#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "millrace/base/command.h"
#include "millrace/base/text/strings.h"
#include "millrace/base/text/units.h"

namespace millrace::link {

namespace {

constexpr std::chrono::seconds kHsmCommandLimit(60);

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != text.npos;
}

// `paths` are absolute.
Result<std::string> hsm_command(const std::string& verb, const std::vector<std::string>& paths,
                                const std::stop_token& stop) {
  std::vector<std::string> words = {"lfs", verb};
  words.insert(words.end(), paths.begin(), paths.end());
  auto done = run_command(words, kHsmCommandLimit, stop);
  if (!done && done.error().code() == ErrorCode::kNotFound) {
    return fail(ErrorCode::kNotFound, "there is no lfs on PATH: a link with --hsm needs the client tools of Lustre");
  }
  if (!done) return tl::unexpected<Error>(done.error());
  if (done->ok) return std::move(done->out);
  const std::string line = done->err.substr(0, done->err.find('\n'));
  if (contains(line, "Inappropriate ioctl") || contains(line, "not supported")) {
    return fail(ErrorCode::kUnsupported, "{} lies on no Lustre with HSM (lfs {}: {})", paths.front(), verb, line);
  }
  return fail(ErrorCode::kUnavailable, "lfs {}: {}: {}", verb, done->status, line);
}

// What a command says of each path, "PATH: WHAT", a line each, in their order. A path may hold anything, line ends too.
template <class T>
Result<std::vector<T>> parse_told(std::string_view text, const std::string& verb, const std::vector<std::string>& paths,
                                  std::optional<T> (*parse)(std::string_view)) {
  std::vector<T> told;
  for (const std::string& path : paths) {
    const std::string begin = path + ": ";
    std::optional<T> one;
    if (text.starts_with(begin)) {
      text.remove_prefix(begin.size());
      one = parse(take_line(text));
    }
    if (!one) {
      return fail(ErrorCode::kUnavailable, "lfs {} told nothing of {} that is understood: \"{}\"", verb, path,
                  text.substr(0, text.find('\n')));
    }
    told.push_back(*std::move(one));
  }
  return told;
}

template <class T>
Result<std::vector<T>> ask_all(const std::string& verb, const std::vector<std::string>& paths,
                               const std::stop_token& stop, std::optional<T> (*parse)(std::string_view)) {
  ASSIGN_OR_RETURN(const std::string text, hsm_command(verb, paths, stop));
  return parse_told(text, verb, paths, parse);
}

// One command for all. lfs ends at the first path that it cannot tell of; then each is asked for by itself.
std::vector<Result<HsmState>> hsm_states(const std::vector<std::string>& paths, const std::stop_token& stop) {
  std::vector<Result<HsmState>> states;
  const auto all = ask_all<HsmState>("hsm_state", paths, stop, parse_hsm_state);
  if (all) {
    states.assign(all->begin(), all->end());
  } else if (all.error().code() != ErrorCode::kUnavailable) {
    states.assign(paths.size(), tl::unexpected<Error>(all.error()));  // a server that does not answer, for example
  } else {
    for (const std::string& path : paths) states.push_back(hsm_state(path, stop));
  }
  return states;
}

std::string_view take_word(std::string_view& text) {
  while (text.starts_with(' ')) text.remove_prefix(1);
  const size_t end = std::min(text.find(' '), text.size());
  const std::string_view word = text.substr(0, end);
  text.remove_prefix(end);
  return word;
}

}  // namespace

std::optional<HsmState> parse_hsm_state(std::string_view text) {
  if (!text.starts_with("(0x")) return std::nullopt;
  const size_t end = text.find(')');
  if (end == text.npos) return std::nullopt;
  text.remove_prefix(end + 1);
  text = text.substr(0, text.find(','));  // ", archive_id:1"
  HsmState state;
  while (true) {
    const std::string_view word = take_word(text);
    if (word.empty()) return state;
    for (const auto& [name, flag] : {std::pair("exists", &state.exists),
                                     {"dirty", &state.dirty},
                                     {"released", &state.released},
                                     {"archived", &state.archived},
                                     {"never_release", &state.never_release},
                                     {"never_archive", &state.never_archive},
                                     {"lost_from_hsm", &state.lost}}) {
      if (word == name) *flag = true;
    }
  }
}

std::optional<HsmAction> parse_hsm_action(std::string_view text) {
  HsmAction action;
  const std::string_view name = take_word(text);
  if (name.empty()) return std::nullopt;
  if (name == "NOOP") return action;
  action.name = name;
  action.progress = take_word(text);
  if (action.progress.empty()) return std::nullopt;
  std::string_view bytes = take_word(text);  // "(4096" of "(4096 bytes moved)"
  if (bytes.starts_with('(')) action.moved_bytes = parse_whole(bytes.substr(1)).value_or(0);
  return action;
}

bool has_no_blocks(const std::string& path) {
  // Lustre tells one block of a released file: some programs take a file without any for a hole, and do not read it.
  constexpr blkcnt_t kMostBlocks = 1;
  struct stat info{};
  return ::lstat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode) && info.st_size > 0 &&
         info.st_blocks <= kMostBlocks;
}

Result<HsmState> hsm_state(const std::string& path, const std::stop_token& stop) {
  ASSIGN_OR_RETURN(const std::vector<HsmState> states, ask_all<HsmState>("hsm_state", {path}, stop, parse_hsm_state));
  return states.front();
}

Result<bool> is_hsm_released(const std::string& path, const std::stop_token& stop) {
  if (!has_no_blocks(path)) return false;
  ASSIGN_OR_RETURN(const HsmState state, hsm_state(path, stop));
  return state.released;
}

Status refuse_to_read(const std::string& path, std::string_view reason) {
  return fail(ErrorCode::kUnavailable,
              "{} cannot be compared or sent ({}): its content is in the HSM, and a sweep does not bring it back; `lfs "
              "hsm_restore` it or read it, and the next sweep carries it",
              path, reason);
}

Status hsm_release(const std::string& path, const std::stop_token& stop) {
  ASSIGN_OR_RETURN(const std::string text, hsm_command("hsm_release", {path}, stop));
  (void)text;
  ASSIGN_OR_RETURN(const HsmState state, hsm_state(path, stop));
  if (!state.released) return fail(ErrorCode::kUnavailable, "lfs hsm_release released nothing, and gave no error");
  return {};
}

std::string_view HsmActions::verb() const {
  return kind_ == Kind::kArchive ? "hsm_archive" : "hsm_restore";
}

Status HsmActions::add(const std::string& path) {
  while (pending_.size() >= limits_.at_once) RETURN_IF_ERROR(wait_and_look());
  if (gave_up_) {
    return fail(ErrorCode::kTimeout,
                "nothing that the HSM was asked for moved for {}: {} and what comes behind it were not asked for",
                format_duration(limits_.stall_s), path);
  }
  if (stop_.stop_requested()) return fail(ErrorCode::kCancelled, "stopped");
  const auto asked = hsm_command(std::string(verb()), {path}, stop_);
  if (asked) {
    if (pending_.empty()) moved_at_ = Clock::now();
    pending_.push_back({.path = path, .action = {}, .moved_at = Clock::now()});
    return {};
  }
  if (asked.error().code() == ErrorCode::kCancelled) return tl::unexpected<Error>(asked.error());
  on_end_(path, tl::unexpected<Error>(asked.error()));
  return {};
}

Status HsmActions::finish() {
  while (!pending_.empty()) RETURN_IF_ERROR(wait_and_look());
  return {};
}

Status HsmActions::wait_and_look() {
  constexpr std::chrono::milliseconds kShortest(50), kLongest(2000);
  pause_ = std::clamp(2 * pause_, kShortest, kLongest);
  if (!sleep_until(Clock::now() + pause_, stop_)) {
    return fail(ErrorCode::kCancelled, "stopped; what Lustre was asked for goes on");
  }
  return look();
}

Status HsmActions::look() {
  std::vector<std::string> paths;
  for (const Pending& file : pending_) paths.push_back(file.path);
  const std::vector<Result<HsmState>> states = hsm_states(paths, stop_);
  const auto actions = ask_all<HsmAction>("hsm_action", paths, stop_, parse_hsm_action);
  if (stop_.stop_requested()) return fail(ErrorCode::kCancelled, "stopped; what Lustre was asked for goes on");
  const Clock::time_point now = Clock::now();
  std::vector<Pending> left;
  Clock::time_point moved_at = Clock::time_point::min();
  bool any_stalled = false;
  for (size_t i = 0; i < pending_.size(); ++i) {
    Pending& file = pending_[i];
    if (actions && (*actions)[i] != file.action) {
      file.moved_at = now;
      if (!file.action.name.empty()) moved_at_ = now;  // it has done more than wait for its turn
      file.action = (*actions)[i];
    }
    // What waits behind one that moves has not stalled.
    moved_at = file.moved_at = std::max(moved_at, file.moved_at);
    const std::optional<Status> end = ended(file, states[i], now);
    if (!end) {
      left.push_back(std::move(file));
      continue;
    }
    if (*end) {
      moved_at = moved_at_ = now;
      pause_ = std::chrono::milliseconds(0);
    }
    any_stalled |= !*end && end->error().code() == ErrorCode::kTimeout;
    on_end_(file.path, *end);
  }
  gave_up_ |= any_stalled && now - moved_at_ >= std::chrono::duration<double>(limits_.stall_s);
  pending_ = std::move(left);
  return {};
}

Status HsmActions::stalled(const Pending& file, double for_s) const {
  const std::string doing = file.action.name.empty()
                                ? "the action never began: does a copytool run"
                                : fmt::format("{} {}, {} moved: is its copytool alive", file.action.name,
                                              file.action.progress, format_bytes(file.action.moved_bytes));
  return fail(ErrorCode::kTimeout, "stalled: lfs {} made no progress for {} ({}? `lfs hsm_action {}` tells)", verb(),
              format_duration(for_s), doing, file.path);
}

std::optional<Status> HsmActions::ended(Pending& file, const Result<HsmState>& state, Clock::time_point now) {
  if (!state) return Status(tl::unexpected<Error>(state.error()));
  if (kind_ == Kind::kArchive ? state->archived && !state->dirty : !state->released) return Status();
  if (state->lost) return Status(fail(ErrorCode::kCorruption, "lost_from_hsm: the HSM has its content no more"));
  const double for_s = std::chrono::duration<double>(now - file.moved_at).count();
  if (!file.action.name.empty()) {
    file.was_active = true;
    file.was_idle = false;
  } else if (file.was_active && std::exchange(file.was_idle, true)) {
    // Twice, because it may have ended well between the two questions of one look.
    return Status(
        fail(ErrorCode::kUnavailable, "lfs {} ended without an effect: the log of the copytool says why", verb()));
  }
  if (for_s < limits_.stall_s) return std::nullopt;
  return stalled(file, for_s);
}

}  // namespace millrace::link
