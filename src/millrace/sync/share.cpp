// SPDX-License-Identifier: Apache-2.0
#include "millrace/sync/share.h"

#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "millrace/base/log.h"
#include "millrace/base/text/json_members.h"
#include "millrace/sync/entries.h"

namespace millrace::sync {

namespace {

using ShareJson = nlohmann::json;

constexpr const char* kLive = "live";
constexpr const char* kDone = "done";
constexpr const char* kFinished = "finished";
// Halvings of the keys between two paths: more than bits in a path's last 20 bytes serve nobody.
constexpr int kMostProbes = 128;
constexpr int kFirstDigit = 0x20, kDigits = 0x7f - kFirstDigit;  // what may stand in path_between()

int digit_at(std::string_view text, size_t at) {
  if (at >= text.size()) return -1;
  return std::clamp(static_cast<int>(static_cast<unsigned char>(text[at])) - kFirstDigit, 0, kDigits - 1);
}

// A note is text, and kept as it is.
ShareJson json_of(const Share::Done& range) {
  ShareJson object = {{"after", text_of_path(range.after)}, {"until", text_of_path(range.until)}};
  if (!range.note.empty()) object["note"] = range.note;
  return object;
}

std::optional<Share::Done> done_of(const ShareJson& object) {
  if (!object.is_object()) return std::nullopt;
  return Share::Done{path_of_text(text_or_empty(object, "after")), path_of_text(text_or_empty(object, "until")),
                     text_or_empty(object, "note")};
}

bool is_before_end(const std::string& path, const std::string& until) {
  return until.empty() || path < until;
}

}  // namespace

std::string text_of_path(std::string_view path) {
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string text;
  for (const char c : path) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f && c != '%') {
      text.push_back(c);
    } else {
      text += '%';
      text.push_back(kHex[byte >> 4]);
      text.push_back(kHex[byte & 15]);
    }
  }
  return text;
}

std::string path_of_text(std::string_view text) {
  std::string path;
  const auto digit = [](char c) { return c <= '9' ? c - '0' : c - 'a' + 10; };
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size()) {
      path.push_back(static_cast<char>(digit(text[i + 1]) * 16 + digit(text[i + 2])));
      i += 2;
    } else {
      path.push_back(text[i]);
    }
  }
  return path;
}

std::string unique_owner() {
  return fmt::format("{}-{}-{:08x}", host_name(), ::getpid(), std::random_device()());
}

std::string path_between(std::string_view after, std::string_view until) {
  // The mean of two numbers, whose first digits are the paths': digits of the sum from the last to the first, then
  // halves from the first to the last. It is cut where it lies between them.
  const size_t most = std::max(after.size(), until.size()) + 2;
  std::vector<int> sum(most);
  int carry = 0;
  for (size_t at = most; at-- > 0;) {
    const int high = until.empty() ? kDigits - 1 : std::max(digit_at(until, at), 0);
    const int digits = std::max(digit_at(after, at), 0) + high + carry;
    carry = digits / kDigits;
    sum[at] = digits % kDigits;
  }
  std::string between;
  for (size_t at = 0; at < most; ++at) {
    const int digits = carry * kDigits + sum[at];
    carry = digits % 2;
    between.push_back(static_cast<char>(kFirstDigit + digits / 2));
    if (between > after && (until.empty() || between < until)) return between;
  }
  return "";
}

Share::Share(Location board, ShareOptions options)
    : board_(std::move(board)),
      options_(std::move(options)),
      random_(options_.seed != 0 ? options_.seed : std::random_device()()) {}

std::string Share::key_of(const char* folder, const std::string& id) const {
  return fmt::format("{}/{}/{}", board_.key, folder, id);
}

Result<std::optional<Share::Record>> Share::read(const std::string& id) {
  const std::string key = key_of(kLive, id);
  constexpr int kTries = 10;  // A choice: its owner changes it once a beat, so even a second try is rare
  for (int i = 0; i < kTries; ++i) {
    const auto info = board_.storage->stat(key);
    if (!info && info.error().code() == ErrorCode::kNotFound) return std::nullopt;
    if (!info) return tl::unexpected<Error>(info.error());
    const auto text = read_object(*board_.storage, key);
    if (!text && text.error().code() == ErrorCode::kNotFound) return std::nullopt;
    if (!text && text.error().code() == ErrorCode::kCorruption) continue;  // it was changed just now
    if (!text) return tl::unexpected<Error>(text.error());
    const ShareJson object = ShareJson::parse(*text, nullptr, false);
    if (!object.is_object()) return std::nullopt;
    Record record;
    record.id = id;
    for (const auto& [name, field] : {std::pair("after", &record.after),
                                      {"done", &record.done},
                                      {"begun", &record.begun},
                                      {"until", &record.until},
                                      {"owner", &record.owner}}) {
      *field = path_of_text(text_or_empty(object, name));
    }
    record.beats = integer_at(object, "beats").value_or(0);
    record.version = info->version;
    return record;
  }
  return fail(ErrorCode::kUnavailable, "{}: other tasks change it all the time", key);
}

Result<bool> Share::write(Record& record, bool is_new) {
  const ShareJson object = {{"after", text_of_path(record.after)}, {"done", text_of_path(record.done)},
                            {"begun", text_of_path(record.begun)}, {"until", text_of_path(record.until)},
                            {"owner", text_of_path(record.owner)}, {"beats", ++record.beats}};
  WriteOptions write;
  write.condition = is_new ? WriteOptions::Condition::kIfAbsent : WriteOptions::Condition::kIfVersion;
  write.version = record.version;
  write.brief = true;
  const auto written =
      write_object(*board_.storage, key_of(kLive, record.id), object.dump(), write, Durability::kVisible);
  if (written) {
    record.version = written->version;
    return true;
  }
  const ErrorCode code = written.error().code();
  const bool lost = code == ErrorCode::kAlreadyExists || code == ErrorCode::kCorruption || code == ErrorCode::kNotFound;
  return lost ? Result<bool>(false) : tl::unexpected<Error>(written.error());
}

Result<bool> Share::claim_new(const std::string& id, const std::string& after, const std::string& until) {
  Record record{.id = id, .after = after, .done = after, .begun = after, .until = until, .owner = options_.owner};
  ASSIGN_OR_RETURN(const bool written, write(record, true));
  if (!written) return false;
  mine_ = std::move(record);
  range_ = std::make_shared<KeyRange>(mine_.after, mine_.until);
  return true;
}

// Goes on behind what its dead owner had done.
Result<bool> Share::take_over(Record record) {
  record.owner = options_.owner;
  if (options_.again) record.done = record.after;
  record.begun = record.done;
  ASSIGN_OR_RETURN(const bool written, write(record, false));
  if (!written) return false;
  mine_ = std::move(record);
  range_ = std::make_shared<KeyRange>(mine_.done, mine_.until);
  return true;
}

// A path of the range behind which there are others: the middle of what was not begun, or as near to it as there are
// paths. "": there is none.
Result<std::string> Share::split_of(const Record& record) {
  std::string low = record.begun, high = record.until;
  for (int probe = 0; probe < kMostProbes; ++probe) {
    const std::string middle = path_between(low, high);
    if (middle.empty()) return "";
    ASSIGN_OR_RETURN(const std::optional<std::string> found, options_.next_path(middle));
    if (found && is_before_end(*found, record.until)) {
      ASSIGN_OR_RETURN(const std::optional<std::string> behind, options_.next_path(*found));
      if (behind && (record.until.empty() || *behind <= record.until)) return *found;
    }
    high = middle;
  }
  return "";
}

Result<bool> Share::take_half(Record record) {
  ASSIGN_OR_RETURN(const std::string split, split_of(record));
  if (split.empty()) return false;
  const std::string id = fmt::format("{}-{}", options_.owner, ++taken_);
  const std::string until = record.until;
  // On the board before the other range ends earlier, so that no kill leaves a part to nobody.
  ASSIGN_OR_RETURN(const bool claimed, claim_new(id, split, until));
  if (!claimed) return false;
  constexpr int kTries = 4;  // A choice: each one lost is a beat of the owner in between
  for (int i = 0; i < kTries; ++i) {
    record.until = split;
    ASSIGN_OR_RETURN(const bool shortened, write(record, false));
    if (shortened) return true;
    // Its owner has written meanwhile; if it is not there yet the rear can still be taken.
    ASSIGN_OR_RETURN(auto now, read(record.id));
    if (!now || now->until != until || now->begun >= split) break;
    record = *std::move(now);
  }
  const std::string key = key_of(kLive, id);
  RETURN_IF_ERROR(board_.storage->remove({&key, 1}));
  range_.reset();
  return false;
}

Result<Share::Turn> Share::look() {
  std::vector<ObjectInfo> live;
  const std::string prefix = key_of(kLive, "");
  RETURN_IF_ERROR(for_each_object(*board_.storage, prefix, [&](const ObjectInfo& object) -> Status {
    live.push_back(object);
    return {};
  }));
  if (live.empty()) return look_at_the_end();
  const Clock::time_point now = options_.now();
  std::map<std::string, Seen> seen;
  std::vector<std::string> dead, others;
  for (const ObjectInfo& object : live) {
    const std::string id = object.key.substr(prefix.size());
    const auto before = seen_.find(id);
    const bool changed = before == seen_.end() || before->second.version != object.version;
    Seen entry = changed ? Seen{object.version, now, false} : before->second;
    if (now - entry.since >= options_.dead_after) dead.push_back(id);
    if (!entry.fruitless) others.push_back(id);
    seen.emplace(id, std::move(entry));
  }
  seen_ = std::move(seen);
  std::shuffle(dead.begin(), dead.end(), random_);
  for (const std::string& id : dead) {
    ASSIGN_OR_RETURN(auto record, read(id));
    if (!record || record->version != seen_[id].version) continue;
    ASSIGN_OR_RETURN(const bool taken, take_over(*std::move(record)));
    if (taken) return Turn{.range = range_};
  }
  std::shuffle(others.begin(), others.end(), random_);
  constexpr size_t kLooksAtOnce = 2;  // A choice: of many tasks, few then ask for the same record
  for (size_t i = 0; i < std::min(others.size(), kLooksAtOnce); ++i) {
    ASSIGN_OR_RETURN(auto record, read(others[i]));
    if (!record) continue;
    // Nobody knows yet how far its owner is, so most of what is taken would be done twice.
    if (record->beats < 2) continue;
    seen_[others[i]].version = record->version;
    ASSIGN_OR_RETURN(const bool taken, take_half(*std::move(record)));
    if (taken) return Turn{.range = range_};
    seen_[others[i]].fruitless = true;
  }
  return Turn{};
}

Result<bool> Share::is_finished() {
  const auto found = board_.storage->stat(fmt::format("{}/{}", board_.key, kFinished));
  if (found) return true;
  return found.error().code() == ErrorCode::kNotFound ? Result<bool>(false) : tl::unexpected<Error>(found.error());
}

// Nobody works: all is done, or nothing was begun, or a part was left to nobody.
Result<Share::Turn> Share::look_at_the_end() {
  ASSIGN_OR_RETURN(const bool finished, is_finished());
  if (finished) return Turn{.finished = true};
  std::vector<Done> done;
  const std::string prefix = key_of(kDone, "");
  std::vector<std::string> keys;
  const Status listed = for_each_object(*board_.storage, prefix, [&](const ObjectInfo& object) -> Status {
    keys.push_back(object.key);
    ASSIGN_OR_RETURN(const std::string text, read_object(*board_.storage, object.key));
    if (auto range = done_of(ShareJson::parse(text, nullptr, false))) done.push_back(*std::move(range));
    return {};
  });
  // Another task may end the job meanwhile: it writes that first, and then removes what was listed here.
  ASSIGN_OR_RETURN(const bool finished_meanwhile, is_finished());
  if (finished_meanwhile) return Turn{.finished = true};
  RETURN_IF_ERROR(listed);
  std::ranges::sort(done, {}, &Done::after);
  std::string covered;
  bool to_the_end = false;
  for (const Done& range : done) {
    if (to_the_end || range.after > covered) break;
    if (range.until.empty()) to_the_end = true;
    covered = std::max(covered, range.until);
  }
  if (!to_the_end) {
    // Up to the next range that is done, which may cost a little twice.
    std::string until;
    for (const Done& range : done) {
      if (range.after > covered && (until.empty() || range.after < until)) until = range.after;
    }
    ASSIGN_OR_RETURN(const bool claimed, claim_new(fmt::format("gap-{}", done.size()), covered, until));
    return claimed ? Turn{.range = range_} : Turn{};
  }
  ShareJson ranges = ShareJson::array();
  for (const Done& range : done) ranges.push_back(json_of(range));
  const std::string key = fmt::format("{}/{}", board_.key, kFinished);
  const WriteOptions once{.condition = WriteOptions::Condition::kIfAbsent, .brief = true};
  const auto written =
      write_object(*board_.storage, key, ShareJson({{"ranges", ranges}}).dump(), once, Durability::kVisible);
  if (!written && written.error().code() != ErrorCode::kAlreadyExists) return tl::unexpected<Error>(written.error());
  RETURN_IF_ERROR(board_.storage->remove(keys));
  return Turn{.finished = true, .closes = written.has_value()};
}

Result<std::optional<std::vector<Share::Done>>> Share::finished_ranges(const Location& board) {
  const auto text = read_object(*board.storage, fmt::format("{}/{}", board.key, kFinished));
  if (!text && text.error().code() == ErrorCode::kNotFound) return std::nullopt;
  if (!text) return tl::unexpected<Error>(text.error());
  const ShareJson object = ShareJson::parse(*text, nullptr, false);
  if (!object.is_object() || !object.contains("ranges") || !object["ranges"].is_array()) {
    return fail(ErrorCode::kCorruption, "{}/{} is not what a task writes", board.url, kFinished);
  }
  std::vector<Done> ranges;
  for (const ShareJson& each : object["ranges"]) {
    if (auto range = done_of(each)) ranges.push_back(*std::move(range));
  }
  return ranges;
}

Result<bool> Share::beat() {
  constexpr int kTries = 4;  // A choice: each one lost is another task that took a half in between
  for (int i = 0; i < kTries; ++i) {
    mine_.begun = range_->begun();
    mine_.done = range_->done();
    ASSIGN_OR_RETURN(const bool written, write(mine_, false));
    if (written) return true;
    ASSIGN_OR_RETURN(auto now, read(mine_.id));
    if (!now || now->owner != options_.owner) return false;
    mine_ = *std::move(now);
    range_->shrink(mine_.until);
  }
  return true;  // others write all the time: the next beat tries again
}

Status Share::finish(std::string_view note) {
  // The end may have been taken since the last beat.
  ASSIGN_OR_RETURN(const auto now, read(mine_.id));
  const bool is_mine = now && now->owner == options_.owner;
  if (is_mine) {
    const ShareJson object = json_of({now->after, now->until, std::string(note)});
    const auto written =
        write_object(*board_.storage, key_of(kDone, mine_.id), object.dump(), {.brief = true}, Durability::kVisible);
    if (!written) return tl::unexpected<Error>(written.error());
    const std::string key = key_of(kLive, mine_.id);
    RETURN_IF_ERROR(board_.storage->remove({&key, 1}));
  }
  range_.reset();
  return {};
}

bool work_and_beat(Share& share, std::chrono::duration<double> dead_after, const std::stop_token& stop,
                   const std::function<void(const std::stop_token&)>& work) {
  // A sixth of the time after which a task counts as dead; a range begins with short ones, each twice the one before.
  constexpr std::chrono::duration<double> kMostBeat(5), kLeastBeat(0.1);
  const auto longest = std::clamp(dead_after / 6, kLeastBeat, kMostBeat);
  std::stop_source lost, ended;
  const std::stop_callback stops(stop, [&] { lost.request_stop(); });
  bool is_mine = true;
  Thread beats("mr-share", [&] {
    for (auto wait = kLeastBeat;
         sleep_until(Clock::now() + std::chrono::duration_cast<Clock::duration>(wait), ended.get_token());
         wait = std::min(2 * wait, longest)) {
      const auto mine = share.beat();
      if (!mine) {
        log(LogLevel::kWarning, "{}: other tasks may take this one for dead", mine.error().to_string());
      } else if (!*mine) {
        is_mine = false;
        lost.request_stop();
        return;
      }
    }
  });
  work(lost.get_token());
  ended.request_stop();
  beats.join();
  return is_mine;
}

Result<Location> open_board(Location root, std::string_view folder) {
  ASSIGN_OR_RETURN(auto unlimited, root.storage->without_limits());
  if (unlimited) root.storage = std::move(unlimited);
  return root.child(fmt::format("{}/{}", kHiddenFolder, folder));
}

}  // namespace millrace::sync
