// SPDX-License-Identifier: Apache-2.0
#include "millrace/link/shared_state.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "millrace/base/log.h"
#include "millrace/base/text/json_members.h"
#include "millrace/base/text/units.h"
#include "millrace/link/rows.h"

namespace millrace::link {

namespace {

using RowsJson = nlohmann::json;

// A chunk of rows is read whole, by tasks that may need a part of it: some 5 MB.
constexpr size_t kChunkRows = 50'000;
constexpr size_t kJournalRows = 20'000;
constexpr int64_t kTasksVersion = 1;

bool is_missing(const Error& error) {
  return error.code() == ErrorCode::kNotFound;
}

std::string earlier_end(const std::string& a, const std::string& b) {
  if (a.empty() || b.empty()) return a.empty() ? b : a;
  return std::min(a, b);
}

std::vector<Learned> rows_of_paths(const std::vector<std::string>& paths) {
  std::vector<Learned> rows;
  for (const std::string& path : paths) rows.push_back({path, std::nullopt});
  return rows;
}

// The paths up to `until` ("": all), in byte order.
std::vector<std::string> up_to(const std::vector<std::string>& paths, const std::string& until) {
  if (until.empty()) return paths;
  return {paths.begin(), std::ranges::upper_bound(paths, until)};
}

Deletions up_to(const Deletions& deletions, const std::string& until) {
  Deletions kept{up_to(deletions.paths, until), deletions.count};
  // More than were listed are too many, wherever they lie.
  if (static_cast<size_t>(deletions.count) == deletions.paths.size()) {
    kept.count = static_cast<int64_t>(kept.paths.size());
  }
  return kept;
}

}  // namespace

Location SharedState::board_of(int64_t sweep) const {
  return board_.child(fmt::format("sweeps/{:012}", sweep));
}

// A note that is damaged has no rows.
SharedState::Range SharedState::range_of(const sync::Share::Done& done, const std::string& name) {
  Range range{.after = done.after, .until = done.until};
  try {
    const RowsJson note = RowsJson::parse(done.note);
    for (const RowsJson& chunk : note.at("chunks")) {
      range.chunks.push_back({sync::path_of_text(chunk.at("after").get<std::string>()),
                              sync::path_of_text(chunk.at("until").get<std::string>()), chunk.value("rows", "")});
    }
    range.heard = note.value("heard", range.heard);
    range.counts.files_here = note.at("files_here");
    range.counts.files_there = note.at("files_there");
    range.counts.known_here = note.value("known_here", range.counts.files_here);
    range.counts.known_there = note.value("known_there", range.counts.files_there);
    range.counts.passed = note.at("passed");
    range.counts.delete_there.count = note.at("delete_there");
    range.counts.delete_here.count = note.at("delete_here");
    range.counts.unreadable = sync::path_of_text(note.value("unreadable", ""));
    range.left = note.value("left", "");
  } catch (const RowsJson::exception&) {
    log(LogLevel::kWarning, "{}: the note of a range is damaged: what it tells of is compared again", name);
    return {.after = done.after, .until = done.until, .chunks = {{done.after, done.until, ""}}};
  }
  return range;
}

Status SharedState::read_index(int64_t sweep) {
  const Location board = board_of(sweep);
  const auto done = sync::Share::finished_ranges(board);
  std::vector<Range> index;
  if (done && !*done) return fail(ErrorCode::kNotFound, "{} is not finished, or removed", board.url);
  if (done) {
    for (const sync::Share::Done& each : **done) index.push_back(range_of(each, board.url));
  } else if (done.error().code() == ErrorCode::kCorruption) {
    log(LogLevel::kWarning, "{}: everything is compared again", done.error().to_string());
    index.push_back({.after = "", .until = "", .chunks = {{"", "", ""}}});
  } else {
    return tl::unexpected<Error>(done.error());
  }
  std::ranges::stable_sort(index, {}, &Range::after);
  index_ = std::move(index);
  newest_ = sweep;
  held_.clear();
  return {};
}

// As somebody told, else by looking: the note may be missing or damaged.
Result<int64_t> SharedState::find_newest() const {
  const auto note = read_object(*board_.storage, key_of("newest.json"));
  if (!note && !is_missing(note.error())) return tl::unexpected<Error>(note.error());
  const RowsJson told = note ? RowsJson::parse(*note, nullptr, false) : RowsJson();
  if (const auto sweep = integer_at(told, "sweep")) {
    if (const RowsJson* version = member(told, "version"); version == nullptr || *version == kTasksVersion)
      return *sweep;
    return fail(ErrorCode::kUnsupported, "{}/newest.json is of another version: all tasks of a link are of one",
                board_.url);
  }
  int64_t newest = newest_;
  const std::string prefix = key_of("sweeps") + "/";
  RETURN_IF_ERROR(for_each_object(*board_.storage, prefix, [&](const ObjectInfo& object) -> Status {
    const std::string name = object.key.substr(prefix.size());
    if (!name.ends_with("/finished")) return {};
    newest = std::max(newest, parse_whole(name.substr(0, name.find('/'))).value_or(0));
    return {};
  }));
  return newest;
}

Status SharedState::refresh() {
  ASSIGN_OR_RETURN(const int64_t newest, find_newest());
  if (newest > newest_) RETURN_IF_ERROR(read_index(newest));
  // Its task may have died before it told.
  while (true) {
    const Status next = read_index(newest_ + 1);
    if (!next && !is_missing(next.error())) return next;
    if (!next) break;
  }
  return read_journals();
}

Status SharedState::read_journals() {
  const std::string prefix = key_of("journal") + "/";
  std::vector<std::pair<std::string, int64_t>> fresh;
  std::map<std::string, int64_t> first;  // of each owner, the earliest that is still there
  RETURN_IF_ERROR(for_each_object(*board_.storage, prefix, [&](const ObjectInfo& object) -> Status {
    const std::string name = object.key.substr(prefix.size());
    const size_t slash = name.rfind('/');
    if (slash == name.npos) return {};
    const std::string owner = name.substr(0, slash);
    const int64_t number = parse_whole(name.substr(slash + 1)).value_or(0);
    first.try_emplace(owner, number);
    if (number > heard_[owner]) fresh.emplace_back(owner, number);
    return {};
  }));
  std::erase_if(heard_, [&](const auto& each) { return !first.contains(each.first); });
  std::ranges::sort(fresh);
  for (const auto& [owner, number] : fresh) {
    ASSIGN_OR_RETURN(const std::vector<Learned> rows, read_rows(fmt::format("journal/{}/{:012}", owner, number)));
    RETURN_IF_ERROR(state_.add_journal(owner, number, rows));
    RETURN_IF_ERROR(state_.learn(rows));
    heard_[owner] = number;
  }
  return state_.keep_journals(first);
}

// Rows that are damaged, or were tidied up meanwhile, count as none: what they tell of is compared.
Result<std::vector<Learned>> SharedState::read_rows(const std::string& path) const {
  const auto bytes = read_object(*board_.storage, key_of(path));
  if (!bytes && is_missing(bytes.error())) return std::vector<Learned>();
  if (!bytes && bytes.error().code() != ErrorCode::kCorruption) return tl::unexpected<Error>(bytes.error());
  auto rows = bytes ? decode_rows(*bytes, board_.child(path).url)
                    : Result<std::vector<Learned>>(tl::unexpected<Error>(bytes.error()));
  if (rows) return rows;
  log(LogLevel::kWarning, "{}: what both sides have there is compared again", rows.error().to_string());
  return std::vector<Learned>();
}

Status SharedState::load_chunk(const Range& range, const Chunk& chunk, std::string after, std::string until) {
  std::vector<LinkFile> files;
  if (!chunk.key.empty()) {
    ASSIGN_OR_RETURN(std::vector<Learned> rows, read_rows(chunk.key));
    for (Learned& row : rows) {
      if (row.file && row.path > after && (until.empty() || row.path <= until)) files.push_back(*std::move(row.file));
    }
  }
  RETURN_IF_ERROR(state_.replace_range(after, until, files));
  // What was learned since these rows were written.
  return state_.learn_from_journals(after, until, range.heard);
}

Status SharedState::load(const std::string& after, const std::string& until) {
  if (index_.empty()) return state_.replace_range(after, until, {});
  for (const Range& range : index_) {
    for (const Chunk& chunk : range.chunks) {
      // The end of a range may have been taken away after its rows were written.
      const std::string from = std::max({after, range.after, chunk.after});
      const std::string to = earlier_end(earlier_end(until, range.until), chunk.until);
      if (!to.empty() && from >= to) continue;
      RETURN_IF_ERROR(load_chunk(range, chunk, from, to));
    }
  }
  return {};
}

Status SharedState::load_for(const std::vector<std::string>& paths) {
  const std::string own = fmt::format("/{}-", owner_);
  for (const Range& range : index_) {
    for (const Chunk& chunk : range.chunks) {
      const std::string from = std::max(range.after, chunk.after);
      const std::string to = earlier_end(range.until, chunk.until);
      const std::string name = fmt::format("{}-{}", sync::text_of_path(from), chunk.key);
      if ((!to.empty() && from >= to) || chunk.key.find(own) != chunk.key.npos || held_.contains(name)) continue;
      const bool needed = std::ranges::any_of(
          paths, [&](const std::string& path) { return path > from && (to.empty() || path <= to); });
      if (!needed) continue;
      RETURN_IF_ERROR(load_chunk(range, chunk, from, to));
      held_.insert(name);
    }
  }
  return {};
}

Result<std::string> SharedState::save(int64_t sweep, const std::string& after, const std::string& until,
                                      const SweepFindings& findings) {
  RowsJson chunks = RowsJson::array();
  for (std::string from = after;;) {
    ASSIGN_OR_RETURN(std::vector<LinkFile> files, state_.take_range(from, until, kChunkRows));
    const bool last = files.size() < kChunkRows;
    const std::string to = last ? until : files.back().path;
    RowsJson chunk = {{"after", sync::text_of_path(from)}, {"until", sync::text_of_path(to)}};
    if (!files.empty()) {
      std::vector<Learned> rows;
      rows.reserve(files.size());
      for (LinkFile& file : files) rows.push_back({file.path, std::move(file)});
      const std::string name = fmt::format("sweeps/{:012}/rows/{}-{}", sweep, owner_, ++chunks_);
      RETURN_IF_ERROR(write_object(*board_.storage, key_of(name), encode_rows(rows), {}, Durability::kVisible));
      chunk["rows"] = name;
    }
    chunks.push_back(std::move(chunk));
    if (last) break;
    from = to;
  }
  // What another task took meanwhile it looks at itself.
  Deletions delete_here = up_to(findings.delete_here, until), delete_there = up_to(findings.delete_there, until);
  const std::vector<std::string> replaced = up_to(findings.replaced, until);
  RowsJson note = {{"chunks", std::move(chunks)},         {"files_here", findings.files_here},
                   {"files_there", findings.files_there}, {"passed", findings.passed},
                   {"known_here", findings.known_here},   {"known_there", findings.known_there},
                   {"delete_there", delete_there.count},  {"delete_here", delete_here.count}};
  if (!heard_.empty()) note["heard"] = heard_;
  if (!findings.unreadable.empty()) note["unreadable"] = sync::text_of_path(findings.unreadable);
  if (!delete_there.paths.empty() || !delete_here.paths.empty() || !replaced.empty()) {
    // Three lists, one behind the other; an empty path ends each.
    std::vector<std::string> paths;
    for (const auto* list :
         std::array<const std::vector<std::string>*, 3>{&delete_there.paths, &delete_here.paths, &replaced}) {
      paths.insert(paths.end(), list->begin(), list->end());
      paths.emplace_back();
    }
    const std::string name = fmt::format("sweeps/{:012}/left/{}-{}", sweep, owner_, ++lefts_);
    RETURN_IF_ERROR(
        write_object(*board_.storage, key_of(name), encode_rows(rows_of_paths(paths)), {}, Durability::kVisible));
    note["left"] = name;
  }
  return note.dump();
}

Status SharedState::publish() {
  while (true) {
    ASSIGN_OR_RETURN(const std::vector<Learned> rows, state_.changes(kJournalRows));
    if (rows.empty()) return {};
    const int64_t number = ++journals_;
    const std::string key = key_of(fmt::format("journal/{}/{:012}", owner_, number));
    RETURN_IF_ERROR(write_object(*board_.storage, key, encode_rows(rows), {}, Durability::kVisible));
    RETURN_IF_ERROR(state_.add_journal(owner_, number, rows));
    heard_[owner_] = number;
    RETURN_IF_ERROR(state_.changes_are_told(rows));
    if (rows.size() < kJournalRows) return {};
  }
}

SweepFindings SharedState::totals() const {
  SweepFindings sum;
  for (const Range& range : index_) {
    const SweepFindings& counts = range.counts;
    sum.files_here += counts.files_here;
    sum.files_there += counts.files_there;
    sum.known_here += counts.known_here;
    sum.known_there += counts.known_there;
    sum.passed += counts.passed;
    sum.delete_there.count += counts.delete_there.count;
    sum.delete_here.count += counts.delete_here.count;
    if (sum.unreadable.empty()) sum.unreadable = counts.unreadable;
  }
  return sum;
}

Result<SweepFindings> SharedState::findings() const {
  SweepFindings sum = totals();
  for (const Range& range : index_) {
    if (range.left.empty()) continue;
    ASSIGN_OR_RETURN(std::vector<Learned> rows, read_rows(range.left));
    size_t list = 0;
    const std::array lists{&sum.delete_there.paths, &sum.delete_here.paths, &sum.replaced};
    for (Learned& row : rows) {
      if (row.path.empty()) {
        ++list;
      } else if (list < lists.size()) {
        lists[list]->push_back(std::move(row.path));
      }
    }
  }
  // A part that two tasks have done is there twice.
  for (auto* paths : {&sum.delete_there.paths, &sum.delete_here.paths, &sum.replaced}) {
    std::ranges::sort(*paths);
    paths->erase(std::ranges::unique(*paths).begin(), paths->end());
  }
  return sum;
}

Status SharedState::announce() {
  const std::string text =
      RowsJson({{"format", "millrace-link-tasks"}, {"version", kTasksVersion}, {"sweep", newest_}}).dump();
  return write_object(*board_.storage, key_of("newest.json"), text + "\n", {.brief = true}, Durability::kVisible)
      .map([](const auto&) {});
}

Status SharedState::tidy() {
  std::vector<std::string> keys;
  const std::string sweeps = key_of("sweeps") + "/";
  // Tasks that have not heard of the newest sweep still read the one before.
  const std::string kept = board_of(std::max<int64_t>(newest_ - 1, 0)).key + "/";
  RETURN_IF_ERROR(for_each_object(*board_.storage, sweeps, [&](const ObjectInfo& object) -> Status {
    if (object.key < kept) keys.push_back(object.key);
    return {};
  }));
  // Journals that all ranges of the newest sweep have heard of.
  std::map<std::string, int64_t> heard = index_.empty() ? std::map<std::string, int64_t>() : index_.front().heard;
  for (const Range& range : index_) {
    for (auto& [owner, number] : heard) {
      const auto found = range.heard.find(owner);
      number = found == range.heard.end() ? 0 : std::min(number, found->second);
    }
  }
  for (const auto& [owner, number] : heard) {
    const std::string prefix = key_of("journal/" + owner) + "/";
    RETURN_IF_ERROR(for_each_object(*board_.storage, prefix, [&](const ObjectInfo& object) -> Status {
      if (parse_whole(object.key.substr(prefix.size())).value_or(INT64_MAX) <= number) keys.push_back(object.key);
      return {};
    }));
  }
  return keys.empty() ? Status() : board_.storage->remove(keys);
}

Status SharedState::take_home() {
  RETURN_IF_ERROR(state_.note_changes(true));
  RETURN_IF_ERROR(refresh());
  if (!index_.empty()) RETURN_IF_ERROR(load("", ""));
  RETURN_IF_ERROR(state_.note_changes(false));
  std::vector<std::string> keys;
  RETURN_IF_ERROR(for_each_object(*board_.storage, board_.key + "/", [&](const ObjectInfo& object) -> Status {
    keys.push_back(object.key);
    return {};
  }));
  return keys.empty() ? Status() : board_.storage->remove(keys);
}

}  // namespace millrace::link
