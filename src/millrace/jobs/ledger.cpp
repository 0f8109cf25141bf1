// SPDX-License-Identifier: Apache-2.0
#include "millrace/jobs/ledger.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>

#include "millrace/base/io/descriptor.h"
#include "millrace/base/text/json_members.h"

namespace millrace::jobs {

namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

constexpr int kVersion = 1;
constexpr int64_t kSecondNs = 1'000'000'000;
constexpr std::string_view kRunEnd = ".run.json", kEventMark = ".event-", kScriptEnd = ".script";
constexpr size_t kMostBytes = 16 << 20;

Descriptor open_file(const std::string& path, int flags) {
  return Descriptor(::open(path.c_str(), flags | O_CLOEXEC, 0666));
}

std::string nonce() {
  std::random_device device;
  return fmt::format("{:08x}{:08x}", device(), device());
}

std::string formatted(int64_t seconds, const char* format) {
  const time_t time = seconds;
  struct tm parts{};
  gmtime_r(&time, &parts);
  std::array<char, 64> text{};
  return {text.data(), strftime(text.data(), text.size(), format, &parts)};
}

Status make_folder(const std::string& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) return tl::unexpected(errno_error(error.value(), "make the ledger's folder " + folder));
  return {};
}

Status write_all(int fd, std::string_view text, const std::string& path) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return tl::unexpected(errno_error(errno, "write " + path));
    text.remove_prefix(static_cast<size_t>(written));
  }
  return {};
}

// A reader never sees a part of a file: it is made under a name that starts with a dot. NFS and Lustre rename at once.
Status write_renamed(const std::string& folder, const std::string& name, std::string_view text) {
  const std::string path = folder + "/" + name, hidden = fmt::format("{}/.{}.{}", folder, nonce(), name);
  const auto write = [&]() -> Status {
    Descriptor file = open_file(hidden, O_WRONLY | O_CREAT | O_EXCL);
    if (file.get() < 0) return tl::unexpected(errno_error(errno, "make " + path));
    RETURN_IF_ERROR(write_all(file.get(), text, path));
    // NFS tells of a full disk or quota at fsync or close.
    if (::fsync(file.get()) != 0 || ::close(file.release()) != 0)
      return tl::unexpected(errno_error(errno, "write " + path));
    if (::rename(hidden.c_str(), path.c_str()) != 0) return tl::unexpected(errno_error(errno, "make " + path));
    return {};
  };
  Status written = write();
  if (!written) ::unlink(hidden.c_str());
  return written;
}

void sync_folder(const std::string& folder) {
  const Descriptor file = open_file(folder, O_RDONLY | O_DIRECTORY);
  if (file.get() >= 0) ::fsync(file.get());  // some file systems refuse it; the name is then as durable as they make it
}

Result<std::string> read_file(const std::string& path) {
  const Descriptor file = open_file(path, O_RDONLY);
  if (file.get() < 0) return tl::unexpected(errno_error(errno, "open " + path));
  std::string text;
  std::array<char, 16 << 10> buffer;
  for (;;) {
    const ssize_t got = ::read(file.get(), buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return tl::unexpected(errno_error(errno, "read " + path));
    if (got == 0) return text;
    text.append(buffer.data(), static_cast<size_t>(got));
    if (text.size() > kMostBytes) return fail(ErrorCode::kCorruption, "{} is larger than 16 MiB", path);
  }
}

// Bytes that are not UTF-8 become U+FFFD.
std::string file_text(const Json& object) {
  return object.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Result<Json> parse_object(std::string_view text, std::string_view format) {
  Json object = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object() || object.value("format", Json()) != Json(std::string(format))) {
    return fail(ErrorCode::kCorruption, "not a {} file", format);
  }
  if (object.value("version", Json()) != Json(kVersion)) {
    return fail(ErrorCode::kUnsupported, "a {} file of another version than {}; a newer Millrace reads it", format,
                kVersion);
  }
  return object;
}

std::vector<std::string> words_of(const Json& object, const char* key) {
  std::vector<std::string> words;
  if (const Json* found = member(object, key); found != nullptr && found->is_array()) {
    for (const Json& each : *found) words.push_back(each.is_string() ? each.get<std::string>() : each.dump());
  }
  return words;
}

std::map<std::string, std::string> map_of(const Json& object, const char* key) {
  std::map<std::string, std::string> values;
  if (const Json* found = member(object, key); found != nullptr && found->is_object()) {
    for (const auto& [name, value] : found->items()) {
      values[name] = value.is_string() ? value.get<std::string>() : value.dump();
    }
  }
  return values;
}

// The files of one month. Events name their run by the beginning of their own name.
class Reader {
 public:
  explicit Reader(LedgerContents& contents) : contents_(contents) {}

  Status read_folder(const std::string& folder) {
    std::error_code error;
    for (fs::directory_iterator each(folder, error), end; !error && each != end; each.increment(error)) {
      read_one(each->path().string(), each->path().filename().string());
    }
    if (error) return tl::unexpected(errno_error(error.value(), "read the ledger's folder " + folder));
    return {};
  }

  void finish() {
    for (LedgerRun& run : contents_.runs) {
      if (const auto found = events_.find(run.record.run); found != events_.end()) run.events = found->second;
      std::stable_sort(run.events.begin(), run.events.end(),
                       [](const RunEvent& a, const RunEvent& b) { return a.time_ns < b.time_ns; });
    }
    std::sort(contents_.runs.begin(), contents_.runs.end(),
              [](const LedgerRun& a, const LedgerRun& b) { return a.record.run < b.record.run; });
    std::sort(contents_.damaged.begin(), contents_.damaged.end());
  }

 private:
  void read_one(const std::string& path, const std::string& name) {
    if (name.starts_with('.')) return;
    if (name.ends_with(kRunEnd)) {
      take(path, parse<RunRecord>(path, parse_record), [&](RunRecord record) {
        record.run = name.substr(0, name.size() - kRunEnd.size());
        contents_.runs.push_back({std::move(record), {}});
      });
    } else if (const size_t mark = name.find(kEventMark); mark != std::string::npos) {
      take(path, parse<RunEvent>(path, parse_event),
           [&](RunEvent event) { events_[name.substr(0, mark)].push_back(std::move(event)); });
    }
  }

  template <class T>
  static Result<T> parse(const std::string& path, Result<T> (*parse_text)(std::string_view)) {
    ASSIGN_OR_RETURN(const std::string text, read_file(path));
    return parse_text(text);
  }

  template <class T, class Keep>
  void take(const std::string& path, Result<T> parsed, Keep keep) {
    if (parsed) {
      keep(*std::move(parsed));
    } else {
      contents_.damaged.push_back(path + ": " + parsed.error().message());
    }
  }

  LedgerContents& contents_;
  std::map<std::string, std::vector<RunEvent>> events_;
};

}  // namespace

const RunEvent* LedgerRun::end() const {
  const RunEvent* last = nullptr;
  for (const RunEvent& event : events) {
    if (event.kind == "end") last = &event;
    if (event.kind == "requeue") last = nullptr;
  }
  return last;
}

std::string Ledger::month_folder(int64_t submitted) const {
  return folder_ + "/" + formatted(submitted, "%Y-%m");
}

Status Ledger::prepare(int64_t submitted) const {
  const std::string folder = month_folder(submitted);
  RETURN_IF_ERROR(make_folder(folder));
  const std::string path = folder + "/.try-" + nonce();
  const Descriptor file = open_file(path, O_WRONLY | O_CREAT | O_EXCL);
  if (file.get() < 0) return tl::unexpected(errno_error(errno, "write to the ledger's folder " + folder));
  ::unlink(path.c_str());
  return {};
}

Status Ledger::add(RunRecord& record, std::string_view script_text) const {
  const std::string folder = month_folder(record.submitted);
  RETURN_IF_ERROR(make_folder(folder));
  record.run = fmt::format("{}-{}-{}", formatted(record.submitted, "%Y%m%dT%H%M%SZ"), record.job_id, nonce());
  RETURN_IF_ERROR(write_renamed(folder, record.run + std::string(kScriptEnd), script_text));
  RETURN_IF_ERROR(write_renamed(folder, record.run + std::string(kRunEnd), file_text(record_json(record))));
  sync_folder(folder);
  return {};
}

Status Ledger::add_event(const RunRecord& record, const RunEvent& event) const {
  const std::string folder = month_folder(record.submitted);
  const std::string name = fmt::format("{}{}{}-{}.json", record.run, kEventMark, event.kind, nonce());
  return write_renamed(folder, name, file_text(event_json(event)));
}

Result<LedgerContents> Ledger::read() const {
  LedgerContents contents;
  std::error_code error;
  Reader reader(contents);
  for (fs::directory_iterator each(folder_, error), end; !error && each != end; each.increment(error)) {
    const std::string name = each->path().filename().string();
    if (!name.starts_with('.') && each->is_directory()) RETURN_IF_ERROR(reader.read_folder(each->path().string()));
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    return tl::unexpected(errno_error(error.value(), "read the ledger's folder " + folder_));
  }
  reader.finish();
  return contents;
}

Result<std::string> Ledger::script_text(const RunRecord& record) const {
  return read_file(month_folder(record.submitted) + "/" + record.run + std::string(kScriptEnd));
}

Result<std::string> default_ledger_folder() {
  const auto variable = [](const char* name) -> std::string {
    const char* value = std::getenv(name);
    return value != nullptr ? value : "";
  };
  if (std::string folder = variable("MILLRACE_LEDGER"); !folder.empty()) return fs::absolute(folder).string();
  if (const std::string state = variable("XDG_STATE_HOME"); !state.empty()) return state + "/millrace/ledger";
  if (const std::string home = variable("HOME"); !home.empty()) return home + "/.local/state/millrace/ledger";
  return fail(ErrorCode::kNotFound, "there is no HOME to keep the ledger in; set MILLRACE_LEDGER to a folder");
}

Json record_json(const RunRecord& record) {
  Json git = nullptr;
  if (record.git) git = {{"commit", record.git->commit}, {"dirty", record.git->dirty}};
  Json data = Json::array();
  for (const DataRecord& each : record.data) {
    data.push_back({{"url", each.url}, {"kind", each.kind}, {"manifest_hash", each.manifest_hash}});
  }
  return {{"format", "millrace-run"},
          {"version", kVersion},
          {"name", record.name},
          {"job_id", record.job_id},
          {"cluster", record.cluster},
          {"user", record.user},
          {"host", record.host},
          {"submitted", record.submitted},
          {"submitted_text", utc_time(record.submitted)},
          {"work_dir", record.work_dir},
          {"script", record.script},
          {"script_hash", record.script_hash},
          {"script_bytes", record.script_bytes},
          {"secrets_removed", record.secrets_removed},
          {"arguments", record.arguments},
          {"options", record.options},
          {"asked", Json(record.asked)},
          {"array", record.array},
          {"output", record.output},
          {"error", record.error},
          {"git", git},
          {"data", data},
          {"millrace", record.millrace},
          {"environment", Json(record.environment)}};
}

Result<RunRecord> parse_record(std::string_view text) {
  ASSIGN_OR_RETURN(const Json object, parse_object(text, "millrace-run"));
  RunRecord record{.name = text_or_empty(object, "name"),
                   .job_id = text_or_empty(object, "job_id"),
                   .cluster = text_or_empty(object, "cluster"),
                   .user = text_or_empty(object, "user"),
                   .host = text_or_empty(object, "host"),
                   .submitted = integer_at(object, "submitted").value_or(0),
                   .work_dir = text_or_empty(object, "work_dir"),
                   .script = text_or_empty(object, "script"),
                   .script_hash = text_or_empty(object, "script_hash"),
                   .script_bytes = integer_at(object, "script_bytes").value_or(0),
                   .secrets_removed = integer_at(object, "secrets_removed").value_or(0),
                   .arguments = words_of(object, "arguments"),
                   .options = words_of(object, "options"),
                   .asked = map_of(object, "asked"),
                   .array = text_or_empty(object, "array"),
                   .output = text_or_empty(object, "output"),
                   .error = text_or_empty(object, "error"),
                   .millrace = text_or_empty(object, "millrace"),
                   .environment = map_of(object, "environment")};
  if (record.job_id.empty()) return fail(ErrorCode::kCorruption, "it has no job_id");
  if (const Json* git = member(object, "git"); git != nullptr && git->is_object()) {
    record.git = {text_or_empty(*git, "commit"), bool_at(*git, "dirty").value_or(false)};
  }
  if (const Json* data = member(object, "data"); data != nullptr && data->is_array()) {
    for (const Json& each : *data) {
      if (each.is_object())
        record.data.push_back(
            {text_or_empty(each, "url"), text_or_empty(each, "kind"), text_or_empty(each, "manifest_hash")});
    }
  }
  return record;
}

Json event_json(const RunEvent& event) {
  return {{"format", "millrace-run-event"},
          {"version", kVersion},
          {"kind", event.kind},
          {"time_ns", event.time_ns},
          {"time_text", utc_time(event.time_ns / kSecondNs)},
          {"user", event.user},
          {"facts", Json(event.facts)}};
}

Result<RunEvent> parse_event(std::string_view text) {
  ASSIGN_OR_RETURN(const Json object, parse_object(text, "millrace-run-event"));
  return RunEvent{.kind = text_or_empty(object, "kind"),
                  .time_ns = integer_at(object, "time_ns").value_or(0),
                  .user = text_or_empty(object, "user"),
                  .facts = map_of(object, "facts")};
}

Status write_dated(const std::string& folder, std::string_view end, std::string_view text) {
  RETURN_IF_ERROR(make_folder(folder));
  const int64_t now = now_ns();
  const std::string moment = formatted(now / kSecondNs, "%Y%m%dT%H%M%S");
  return write_renamed(folder, fmt::format("{}.{:09}Z-{}{}", moment, now % kSecondNs, nonce(), end), text);
}

std::string utc_time(int64_t seconds) {
  return formatted(seconds, "%Y-%m-%dT%H:%M:%SZ");
}

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::string name_of_user(int64_t number) {
  std::array<char, 4096> buffer;
  passwd entry{};
  passwd* found = nullptr;
  getpwuid_r(static_cast<uid_t>(number), &entry, buffer.data(), buffer.size(), &found);
  return found != nullptr ? found->pw_name : std::to_string(number);
}

std::string user_name() {
  return name_of_user(geteuid());
}

}  // namespace millrace::jobs
