// SPDX-License-Identifier: Apache-2.0
#include "millrace/jobs/record.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <set>

#include "millrace/base/text/json_members.h"
#include "millrace/formats/tfevents.h"
#include "millrace/jobs/submit.h"

namespace millrace::jobs {

namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

constexpr std::string_view kRecordEnd = ".run.jsonl", kNoteEnd = ".note.json", kPlaceEnd = ".record.json";
constexpr double kNanosecond = 1e-9;

// JSON has no words for these.
std::optional<double> value_in(const Json& value) {
  if (value.is_number()) return value.get<double>();
  if (value == "NaN") return std::numeric_limits<double>::quiet_NaN();
  if (value == "Infinity") return std::numeric_limits<double>::infinity();
  if (value == "-Infinity") return -std::numeric_limits<double>::infinity();
  return {};
}

constexpr int kRecordVersion = 1;

class RecordReader {
 public:
  explicit RecordReader(TrainingRecord& record) : record_(record) {}

  // Errors: unsupported (a newer version).
  Status read_file(const std::string& path) {
    start_ = RecordStart{.file = path, .facts = nullptr, .loader = nullptr, .checkpointer = nullptr};
    std::ifstream file(path, std::ios::binary);
    for (std::string line; std::getline(file, line);) {
      // A last line without its end was being written when the program was killed.
      if (file.eof()) break;
      take(line);
    }
    if (!start_.facts.is_object()) return {};
    if (const double version = number_at(start_.facts, "version").value_or(1); version > kRecordVersion) {
      return fail(ErrorCode::kUnsupported,
                  "{}: version {} of a training's record; this build reads version {}, and a "
                  "newer Millrace reads it",
                  path, version, kRecordVersion);
    }
    record_.starts.push_back(std::move(start_));
    return {};
  }

 private:
  void take(const std::string& line) {
    const Json object = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!object.is_object()) {
      ++start_.broken_lines;
      return;
    }
    const double time = number_at(object, "time").value_or(start_.last);
    start_.last = std::max(start_.last, time);
    const std::string type = text_or_empty(object, "type");
    if (type == "start") {
      start_.facts = object;
      start_.begun = time;
    } else if (type == "counters") {
      for (auto [name, kept] : {std::pair("loader", &start_.loader), std::pair("checkpointer", &start_.checkpointer)}) {
        if (const auto found = object.find(name); found != object.end()) *kept = *found;
      }
    } else if (type == "end") {
      start_.end = text_or_empty(object, "status");
      start_.error = text_or_empty(object, "error");
    } else if (const auto step = integer_at(object, "step")) {
      take_step(*step, object, time);
    }
  }

  void take_step(int64_t step, const Json& object, double time) {
    if (start_.first_step < 0) {
      start_.first_step = step;
      drop_from(step);
    }
    start_.last_step = std::max(start_.last_step, step);
    for (const auto& [name, value] : object.items()) {
      if (name == "step" || name == "time" || name == "type") continue;
      if (const auto number = value_in(value)) record_.values[name].push_back({step, time, *number});
    }
  }

  // This start goes on from an older checkpoint: what came after it did not happen.
  void drop_from(int64_t step) {
    for (auto& [name, points] : record_.values) {
      std::erase_if(points, [&](const RecordPoint& point) { return point.step >= step; });
    }
  }

  TrainingRecord& record_;
  RecordStart start_;
};

std::vector<std::string> files_with_end(const std::string& folder, std::string_view end) {
  std::vector<std::string> found;
  std::error_code error;
  for (fs::directory_iterator each(folder, error), last; !error && each != last; each.increment(error)) {
    const std::string name = each->path().filename().string();
    if (!name.starts_with('.') && name.ends_with(end)) found.push_back(each->path().string());
  }
  std::sort(found.begin(), found.end());  // names begin with the time
  return found;
}

Json read_json(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return Json::parse(file, nullptr, /*allow_exceptions=*/false);
}

void find_below(const fs::path& folder, int depth, std::set<std::string>& found) {
  if (!files_with_end(folder.string(), kRecordEnd).empty()) {
    found.insert(folder.lexically_normal().string());
    return;
  }
  std::error_code error;
  for (fs::directory_iterator each(folder, error), last; depth > 0 && !error && each != last; each.increment(error)) {
    std::error_code unread;
    if (each->is_directory(unread) && !each->is_symlink(unread)) find_below(each->path(), depth - 1, found);
  }
}

std::string shown(const Json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// "a/b" -> text of each leaf of an object.
void flatten(const Json& value, const std::string& path, std::map<std::string, std::string>& leaves) {
  if (!value.is_object()) {
    leaves[path] = shown(value);
    return;
  }
  for (const auto& [name, below] : value.items()) flatten(below, path.empty() ? name : path + "/" + name, leaves);
}

// Facts that differ between any two starts.
bool is_of_the_start(std::string_view path) {
  for (const std::string_view name :
       {"type", "time", "format", "version", "name", "job_id", "restarts", "host", "user"}) {
    if (path == name) return true;
  }
  return false;
}

std::map<std::string, std::string> facts_of(const TrainingRecord& record) {
  std::map<std::string, std::string> leaves;
  flatten(record.starts.back().facts, "", leaves);
  std::erase_if(leaves, [](const auto& leaf) { return is_of_the_start(leaf.first); });
  return leaves;
}

void compare_curves(const std::string& name, const std::vector<RecordPoint>* left,
                    const std::vector<RecordPoint>* right, std::vector<Difference>& differences) {
  const auto last = [](const std::vector<RecordPoint>* points) {
    return points == nullptr || points->empty()
               ? std::string("none")
               : fmt::format("{} at step {}", points->back().value, points->back().step);
  };
  std::string since;
  for (size_t i = 0, j = 0; left != nullptr && right != nullptr && i < left->size() && j < right->size();) {
    const RecordPoint &a = (*left)[i], &b = (*right)[j];
    if (a.step != b.step) {
      a.step < b.step ? ++i : ++j;
      continue;
    }
    const bool equal = a.value == b.value || (std::isnan(a.value) && std::isnan(b.value));
    if (!equal) {
      since = fmt::format(" (from step {} on)", a.step);
      break;
    }
    ++i, ++j;
  }
  if (since.empty() && last(left) == last(right)) return;
  differences.push_back({name, last(left) + since, last(right)});
}

// --- TensorBoard's protos

}  // namespace

int64_t TrainingRecord::last_step() const {
  int64_t last = -1;
  for (const auto& [value, points] : values) {
    if (!points.empty()) last = std::max(last, points.back().step);
  }
  return last;
}

double TrainingRecord::seconds() const {
  double sum = 0;
  for (const RecordStart& start : starts) sum += std::max(0.0, start.last - start.begun);
  return sum;
}

const RecordPoint* TrainingRecord::last_of(std::string_view value) const {
  const auto found = values.find(value);
  return found == values.end() || found->second.empty() ? nullptr : &found->second.back();
}

std::string TrainingRecord::fact(std::string_view path) const {
  const Json* here = &starts.back().facts;
  for (size_t at = 0; at <= path.size();) {
    const size_t end = std::min(path.find('/', at), path.size());
    if (!here->is_object()) return {};
    const auto found = here->find(std::string(path.substr(at, end - at)));
    if (found == here->end() || found->is_null()) return {};
    here = &*found;
    at = end + 1;
  }
  return shown(*here);
}

double TrainingRecord::counted(std::string_view part, std::string_view counter) const {
  double sum = 0;
  for (const RecordStart& start : starts) {
    const Json& counters = part == "loader" ? start.loader : start.checkpointer;
    sum += number_at(counters, counter).value_or(0);
  }
  return sum;
}

Result<TrainingRecord> read_training(const std::string& folder) {
  TrainingRecord record{.folder = fs::path(folder).lexically_normal().string()};
  RecordReader reader(record);
  for (const std::string& path : files_with_end(folder, kRecordEnd)) RETURN_IF_ERROR(reader.read_file(path));
  if (record.starts.empty()) {
    return fail(ErrorCode::kNotFound, "{} holds no record of a training: mr.Run(\"{}\") writes one", folder, folder);
  }
  record.name = text_or_empty(record.starts.back().facts, "name");
  for (const std::string& path : files_with_end(folder, kNoteEnd)) {
    const Json note = read_json(path);
    if (note.is_object())
      record.notes.push_back(
          {number_at(note, "time").value_or(0), text_or_empty(note, "user"), text_or_empty(note, "text")});
  }
  return record;
}

Result<TrainingEnd> read_training_end(const std::string& folder) {
  constexpr std::streamoff kTail = 64 * 1024;  // counters of the loader and some steps come before the end
  const auto files = files_with_end(folder, kRecordEnd);
  if (files.empty()) return fail(ErrorCode::kNotFound, "{} holds no record of a training", folder);
  std::ifstream file(files.back(), std::ios::binary);
  std::string line;
  std::getline(file, line);
  const Json start = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!start.is_object() || number_at(start, "version").value_or(kRecordVersion) > kRecordVersion) {
    return fail(ErrorCode::kUnsupported, "{}: not the first line of a record that this build reads", files.back());
  }
  TrainingEnd end{.file = files.back(), .job_id = text_or_empty(start, "job_id"), .status = {}, .error = {}};
  end.begun = end.last = number_at(start, "time").value_or(0);
  const std::streamoff first = file.tellg();
  file.seekg(0, std::ios::end);
  const std::streamoff begin = std::max(first, static_cast<std::streamoff>(file.tellg()) - kTail);
  file.seekg(begin);
  if (begin > first) std::getline(file, line);  // the rest of a line
  while (std::getline(file, line) && !file.eof()) {
    const Json object = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!object.is_object()) continue;
    end.last = std::max(end.last, number_at(object, "time").value_or(end.last));
    end.last_step = std::max(end.last_step, static_cast<int64_t>(number_at(object, "step").value_or(-1)));
    if (text_or_empty(object, "type") != "end") continue;
    end.status = text_or_empty(object, "status");
    end.error = text_or_empty(object, "error");
  }
  return end;
}

std::vector<std::string> find_trainings(std::span<const std::string> folders) {
  constexpr int kDepth = 4;
  std::set<std::string> found;
  for (const std::string& folder : folders) {
    std::error_code error;
    find_below(fs::absolute(folder, error), kDepth, found);
  }
  return {found.begin(), found.end()};
}

Status add_note(const std::string& folder, std::string_view text) {
  const Json note{{"format", "millrace-note"},
                  {"version", 1},
                  {"time", static_cast<double>(now_ns()) * kNanosecond},
                  {"user", user_name()},
                  {"text", std::string(text)}};
  return write_dated(folder, kNoteEnd, note.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
}

Status remember_training(const Ledger& ledger, const std::string& folder) {
  const Json place{{"format", "millrace-record-place"}, {"version", 1}, {"folder", folder}};
  return write_dated(ledger.folder() + "/records", kPlaceEnd,
                     place.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
}

std::vector<std::string> remembered_trainings(const Ledger& ledger) {
  std::set<std::string> found;
  for (const std::string& path : files_with_end(ledger.folder() + "/records", kPlaceEnd)) {
    const Json place = read_json(path);
    if (std::string of = text_or_empty(place, "folder"); !of.empty()) found.insert(std::move(of));
  }
  return {found.begin(), found.end()};
}

std::vector<Difference> compare_trainings(const TrainingRecord& left, const TrainingRecord& right) {
  std::vector<Difference> differences;
  const auto a = facts_of(left), b = facts_of(right);
  std::set<std::string> names;
  for (const auto& facts : {a, b}) {
    for (const auto& [name, value] : facts) names.insert(name);
  }
  const auto value_of = [](const std::map<std::string, std::string>& facts, const std::string& name) {
    const auto found = facts.find(name);
    return found == facts.end() ? std::string("none") : found->second;
  };
  for (const std::string& name : names) {
    if (value_of(a, name) != value_of(b, name)) differences.push_back({name, value_of(a, name), value_of(b, name)});
  }
  std::set<std::string> curves;
  for (const TrainingRecord* record : {&left, &right}) {
    for (const auto& [name, points] : record->values) curves.insert(name);
  }
  for (const std::string& name : curves) {
    const auto l = left.values.find(name), r = right.values.find(name);
    compare_curves(name, l == left.values.end() ? nullptr : &l->second, r == right.values.end() ? nullptr : &r->second,
                   differences);
  }
  return differences;
}

std::string tensorboard_events(const TrainingRecord& record) {
  std::string out = formats::event_file_header(record.starts.front().begun);
  for (const auto& [name, points] : record.values) {
    for (const RecordPoint& point : points) {
      const std::pair<std::string, double> value{name, point.value};
      out += formats::scalars_event({&value, 1}, point.time, point.step);
    }
  }
  return out;
}

}  // namespace millrace::jobs
