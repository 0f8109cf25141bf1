// SPDX-License-Identifier: Apache-2.0
#include "millrace/link/state.h"

#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <functional>
#include <set>

#include "millrace/base/log.h"
#include "millrace/link/detail/sqlite.h"
#include "millrace/link/rows.h"
#include "millrace/link/wall_clock.h"

namespace millrace::link {

namespace {

constexpr const char* kSchema = R"(
CREATE TABLE IF NOT EXISTS files(path BLOB PRIMARY KEY, size INTEGER, here BLOB, here_changed INTEGER, there BLOB,
                                 hash BLOB, state INTEGER, mode INTEGER, proof BLOB) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS files_here ON files(here);
CREATE TABLE IF NOT EXISTS conflicts(id INTEGER PRIMARY KEY, time INTEGER, path BLOB, reason BLOB, outcome BLOB);
CREATE TABLE IF NOT EXISTS problems(path BLOB PRIMARY KEY, since INTEGER, error BLOB) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS facts(name BLOB PRIMARY KEY, value BLOB) WITHOUT ROWID;
)";
// A fact that is there while what others learned is written, inside one transaction.
constexpr std::string_view kLearning = "learning";
constexpr const char* kNoteChanges = R"(
CREATE TABLE IF NOT EXISTS changed(path BLOB PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS journals(id INTEGER PRIMARY KEY, owner BLOB, number INTEGER, path BLOB, row BLOB);
CREATE INDEX IF NOT EXISTS journals_path ON journals(path);
CREATE TRIGGER IF NOT EXISTS files_put AFTER INSERT ON files
  WHEN NOT EXISTS (SELECT 1 FROM facts WHERE name = CAST('learning' AS BLOB))
  BEGIN INSERT OR IGNORE INTO changed VALUES(new.path); END;
CREATE TRIGGER IF NOT EXISTS files_forgotten AFTER DELETE ON files
  WHEN NOT EXISTS (SELECT 1 FROM facts WHERE name = CAST('learning' AS BLOB))
  BEGIN INSERT OR IGNORE INTO changed VALUES(old.path); END;
)";
constexpr const char* kNoteNoChanges = R"(
DROP TRIGGER IF EXISTS files_put;
DROP TRIGGER IF EXISTS files_forgotten;
DROP TABLE IF EXISTS changed;
DROP TABLE IF EXISTS journals;
)";
constexpr std::string_view kColumns = "path, size, here, here_changed, there, hash, state, mode, proof";

// What statfs(2) would say, in a test; 0: it is asked.
std::atomic<int64_t> file_system_for_test = 0;

LinkFile file_of(const Statement& row) {
  LinkFile file;
  int at = 0;
  file.path = row.bytes(at++);
  file.size = row.number(at++);
  file.here.version = row.bytes(at++);
  file.here.changed_ns = row.number(at++);
  file.there = row.bytes(at++);
  file.hash = hash128_from_hex(row.bytes(at++));
  file.state = static_cast<LinkFile::State>(row.number(at++));
  file.mode = static_cast<uint32_t>(row.number(at++));
  file.proof = row.bytes(at++);
  return file;
}

}  // namespace

void set_file_system_for_test(std::optional<int64_t> number) {
  file_system_for_test = number.value_or(0);
}

Result<std::string_view> network_file_system(const std::string& path) {
  // statfs(2) names them; Lustre's is in its own headers.
  constexpr std::array<std::pair<int64_t, const char*>, 4> kRemote{
      {{0x6969, "NFS"}, {0x0BD00BD0, "Lustre"}, {0x65735546, "FUSE"}, {0x47504653, "GPFS"}}};
  struct statfs info{};
  if (::statfs(path.c_str(), &info) != 0) return tl::unexpected<Error>(errno_error(errno, path));
  const int64_t told = file_system_for_test;
  for (const auto& [number, name] : kRemote) {
    if ((told != 0 ? told : static_cast<int64_t>(info.f_type)) == number) return name;
  }
  return "";
}

// A write-ahead log needs memory that all its users share, so a network file system would damage it.
Status check_state_folder(const std::string& folder) {
  ASSIGN_OR_RETURN(const std::string_view network, network_file_system(folder));
  if (network.empty()) return {};
  return fail(ErrorCode::kUnsupported,
              "{} lies on {}, where SQLite's log would be damaged: name a folder of a local disk by MILLRACE_LINKS",
              folder, network);
}

struct LinkState::Impl {
  Mutex mutex;
  std::unique_ptr<Database> database;
  bool writes = false;
  bool in_transaction GUARDED_BY(mutex) = false;
  Clock::time_point began GUARDED_BY(mutex);
  std::set<std::string, std::less<>> with_problem GUARDED_BY(mutex);  // as the file has them
  Statement find, find_here, page, put, forget, set_problem, clear_problem, set_fact, fact, add_conflict;

  // Writes until the next commit() are one transaction, so that each costs microseconds; other processes wait for one
  // no longer than this.
  [[nodiscard]] Status begin() REQUIRES_LOCK(mutex) {
    constexpr auto kLongest = std::chrono::milliseconds(300);
    if (in_transaction && Clock::now() - began > kLongest) RETURN_IF_ERROR(end());
    if (in_transaction) return {};
    RETURN_IF_ERROR(database->run("BEGIN IMMEDIATE"));
    in_transaction = true;
    began = Clock::now();
    return {};
  }
  // Writes without a note, all or nothing.
  [[nodiscard]] Status learn(const std::function<Status()>& write) REQUIRES_LOCK(mutex) {
    RETURN_IF_ERROR(end());
    RETURN_IF_ERROR(begin());
    const auto all = [&]() -> Status {
      RETURN_IF_ERROR(set_fact.bind(1, kLearning).bind(2, "1").run());
      RETURN_IF_ERROR(write());
      ASSIGN_OR_RETURN(Statement remove, database->prepare("DELETE FROM facts WHERE name = ?"));
      return remove.bind(1, kLearning).run();
    };
    const Status written = all();
    if (written) return end();
    in_transaction = false;
    static_cast<void>(database->run("ROLLBACK"));
    return written;
  }
  [[nodiscard]] Status put_file(const LinkFile& file) REQUIRES_LOCK(mutex) {
    put.bind(1, file.path).bind(2, file.size).bind(3, file.here.version).bind(4, file.here.changed_ns);
    put.bind(5, file.there);
    file.hash ? put.bind(6, to_hex(*file.hash)) : put.bind_null(6);
    put.bind(7, static_cast<int64_t>(file.state)).bind(8, static_cast<int64_t>(file.mode)).bind(9, file.proof);
    return put.run();
  }
  // Files whose path has no note.
  [[nodiscard]] Status put_unnoted(const std::vector<LinkFile>& files) REQUIRES_LOCK(mutex) {
    ASSIGN_OR_RETURN(Statement noted, database->prepare("SELECT 1 FROM changed WHERE path = ?"));
    for (const LinkFile& file : files) {
      ASSIGN_OR_RETURN(const bool is_noted, noted.bind(1, file.path).step());
      noted.reset();
      if (!is_noted) RETURN_IF_ERROR(put_file(file));
    }
    return {};
  }
  [[nodiscard]] Status learn_unnoted(const std::vector<Learned>& learned) REQUIRES_LOCK(mutex) {
    ASSIGN_OR_RETURN(Statement remove,
                     database->prepare("DELETE FROM files WHERE path = ?1 AND path NOT IN (SELECT path FROM changed)"));
    std::vector<LinkFile> files;
    for (const Learned& each : learned) {
      if (each.file) {
        files.push_back(*each.file);
      } else {
        RETURN_IF_ERROR(remove.bind(1, each.path).run());
      }
    }
    return put_unnoted(files);
  }
  [[nodiscard]] Status end() REQUIRES_LOCK(mutex) {
    if (!in_transaction) return {};
    RETURN_IF_ERROR(database->run("COMMIT"));
    in_transaction = false;
    return {};
  }
  [[nodiscard]] Status read_problems() REQUIRES_LOCK(mutex) {
    ASSIGN_OR_RETURN(Statement rows, database->prepare("SELECT path FROM problems"));
    while (true) {
      ASSIGN_OR_RETURN(const bool more, rows.step());
      if (!more) return {};
      with_problem.insert(rows.bytes(0));
    }
  }

  [[nodiscard]] Status prepare() {
    const auto make = [&](Statement& statement, const std::string& sql) -> Status {
      ASSIGN_OR_RETURN(statement, database->prepare(sql));
      return {};
    };
    const std::string select = fmt::format("SELECT {} FROM files ", kColumns);
    RETURN_IF_ERROR(make(find, select + "WHERE path = ?"));
    RETURN_IF_ERROR(make(find_here, select + fmt::format("WHERE here = ? ORDER BY state != {} LIMIT 1",
                                                         static_cast<int64_t>(LinkFile::State::kReleased))));
    RETURN_IF_ERROR(make(page, select + "WHERE path > ? AND path >= ? ORDER BY path LIMIT ?"));
    RETURN_IF_ERROR(make(fact, "SELECT value FROM facts WHERE name = ?"));
    if (!writes) return {};
    RETURN_IF_ERROR(make(put, fmt::format("REPLACE INTO files({}) VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?)", kColumns)));
    RETURN_IF_ERROR(make(forget, "DELETE FROM files WHERE path = ?"));
    RETURN_IF_ERROR(make(set_problem,
                         "INSERT INTO problems(path, since, error) VALUES(?, ?, ?) "
                         "ON CONFLICT(path) DO UPDATE SET error = excluded.error"));
    RETURN_IF_ERROR(make(clear_problem, "DELETE FROM problems WHERE path = ?"));
    RETURN_IF_ERROR(make(set_fact, "REPLACE INTO facts(name, value) VALUES(?, ?)"));
    return make(add_conflict, "INSERT INTO conflicts(time, path, reason, outcome) VALUES(?, ?, ?, ?)");
  }
};

LinkState::LinkState(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

LinkState::~LinkState() {
  if (const Status written = commit(); !written) {
    log(LogLevel::kWarning, "{}: the next sweep compares these files again", written.error().to_string());
  }
}

Result<std::unique_ptr<LinkState>> LinkState::open(const std::string& path) {
  RETURN_IF_ERROR(check_state_folder(path.substr(0, path.rfind('/'))));
  const auto try_open = [&]() -> Result<std::unique_ptr<LinkState>> {
    auto impl = std::make_unique<Impl>();
    impl->writes = true;
    ASSIGN_OR_RETURN(impl->database, Database::open(path, Database::Mode::kWrite));
    RETURN_IF_ERROR(impl->database->run(kSchema));
    RETURN_IF_ERROR(impl->prepare());
    {
      const MutexLock lock(impl->mutex);
      RETURN_IF_ERROR(impl->read_problems());
    }
    return std::unique_ptr<LinkState>(new LinkState(std::move(impl)));
  };
  auto state = try_open();
  if (state || state.error().code() != ErrorCode::kCorruption) return state;
  const std::string aside = fmt::format("{}.damaged-{}", path, static_cast<int64_t>(wall_now_s()));
  log(LogLevel::kWarning, "{}: it is put aside as {}, and what is equal is found out again", state.error().to_string(),
      aside);
  if (std::rename(path.c_str(), aside.c_str()) != 0) return tl::unexpected<Error>(errno_error(errno, path));
  for (const char* tail : {"-wal", "-shm"}) ::unlink((path + tail).c_str());
  return try_open();
}

Result<std::unique_ptr<LinkState>> LinkState::open_to_read(const std::string& path) {
  if (::access(path.c_str(), F_OK) != 0) return fail(ErrorCode::kNotFound, "{}: no such file", path);
  auto impl = std::make_unique<Impl>();
  ASSIGN_OR_RETURN(impl->database, Database::open(path, Database::Mode::kRead));
  {
    // The last table that is made.
    ASSIGN_OR_RETURN(Statement table, impl->database->prepare("SELECT 1 FROM sqlite_master WHERE name = 'facts'"));
    ASSIGN_OR_RETURN(const bool made, table.step());
    if (!made) return fail(ErrorCode::kNotFound, "{}: is being made", path);
  }
  RETURN_IF_ERROR(impl->prepare());
  return std::unique_ptr<LinkState>(new LinkState(std::move(impl)));
}

Result<std::optional<LinkFile>> LinkState::find(std::string_view path) {
  const MutexLock lock(impl_->mutex);
  impl_->find.bind(1, path);
  ASSIGN_OR_RETURN(const bool found, impl_->find.step());
  std::optional<LinkFile> file;
  if (found) file = file_of(impl_->find);
  impl_->find.reset();
  return file;
}

Result<std::optional<LinkFile>> LinkState::find_here(std::string_view version) {
  const MutexLock lock(impl_->mutex);
  impl_->find_here.bind(1, version);
  ASSIGN_OR_RETURN(const bool found, impl_->find_here.step());
  std::optional<LinkFile> file;
  if (found) file = file_of(impl_->find_here);
  impl_->find_here.reset();
  return file;
}

Result<std::vector<LinkFile>> LinkState::page(std::string_view after, std::string_view prefix, size_t most) {
  const MutexLock lock(impl_->mutex);
  impl_->page.bind(1, after).bind(2, prefix).bind(3, static_cast<int64_t>(most));
  std::vector<LinkFile> files;
  while (true) {
    ASSIGN_OR_RETURN(const bool more, impl_->page.step());
    if (!more) break;
    LinkFile file = file_of(impl_->page);
    if (!file.path.starts_with(prefix)) break;
    files.push_back(std::move(file));
  }
  impl_->page.reset();
  return files;
}

Result<std::vector<std::string>> LinkState::paths_in(LinkFile::State state, std::string_view after, size_t most) {
  const MutexLock lock(impl_->mutex);
  ASSIGN_OR_RETURN(Statement rows, impl_->database->prepare(
                                       "SELECT path FROM files WHERE state = ? AND path > ? ORDER BY path LIMIT ?"));
  rows.bind(1, static_cast<int64_t>(state)).bind(2, after).bind(3, static_cast<int64_t>(most));
  std::vector<std::string> paths;
  while (true) {
    ASSIGN_OR_RETURN(const bool more, rows.step());
    if (!more) return paths;
    paths.push_back(rows.bytes(0));
  }
}

Status LinkState::put(const LinkFile& file) {
  const MutexLock lock(impl_->mutex);
  RETURN_IF_ERROR(impl_->begin());
  return impl_->put_file(file);
}

Status LinkState::forget(std::string_view path) {
  const MutexLock lock(impl_->mutex);
  RETURN_IF_ERROR(impl_->begin());
  return impl_->forget.bind(1, path).run();
}

Status LinkState::add_conflict(const Conflict& conflict) {
  const MutexLock lock(impl_->mutex);
  RETURN_IF_ERROR(impl_->begin());
  return impl_->add_conflict.bind(1, conflict.time)
      .bind(2, conflict.path)
      .bind(3, conflict.reason)
      .bind(4, conflict.outcome)
      .run();
}

Result<std::vector<Conflict>> LinkState::conflicts(size_t most) {
  const MutexLock lock(impl_->mutex);
  ASSIGN_OR_RETURN(Statement rows, impl_->database->prepare(
                                       "SELECT time, path, reason, outcome FROM conflicts ORDER BY id DESC LIMIT ?"));
  rows.bind(1, static_cast<int64_t>(most));
  std::vector<Conflict> conflicts;
  while (true) {
    ASSIGN_OR_RETURN(const bool more, rows.step());
    if (!more) return conflicts;
    conflicts.push_back({rows.number(0), rows.bytes(1), rows.bytes(2), rows.bytes(3)});
  }
}

Status LinkState::set_problem(std::string_view path, std::string_view error) {
  const MutexLock lock(impl_->mutex);
  RETURN_IF_ERROR(impl_->begin());
  impl_->with_problem.emplace(path);
  return impl_->set_problem.bind(1, path).bind(2, static_cast<int64_t>(wall_now_s())).bind(3, error).run();
}

Status LinkState::clear_problem(std::string_view path) {
  const MutexLock lock(impl_->mutex);
  const auto found = impl_->with_problem.find(path);
  if (found == impl_->with_problem.end()) return {};
  RETURN_IF_ERROR(impl_->begin());
  impl_->with_problem.erase(found);
  return impl_->clear_problem.bind(1, path).run();
}

Result<std::vector<Problem>> LinkState::problems(size_t most) {
  const MutexLock lock(impl_->mutex);
  ASSIGN_OR_RETURN(Statement rows,
                   impl_->database->prepare("SELECT path, since, error FROM problems ORDER BY since, path LIMIT ?"));
  rows.bind(1, static_cast<int64_t>(most));
  std::vector<Problem> problems;
  while (true) {
    ASSIGN_OR_RETURN(const bool more, rows.step());
    if (!more) return problems;
    problems.push_back({rows.bytes(0), rows.number(1), rows.bytes(2)});
  }
}

Status LinkState::set_fact(std::string_view name, std::string_view value) {
  const MutexLock lock(impl_->mutex);
  RETURN_IF_ERROR(impl_->begin());
  return impl_->set_fact.bind(1, name).bind(2, value).run();
}

Result<std::string> LinkState::fact(std::string_view name) {
  const MutexLock lock(impl_->mutex);
  impl_->fact.bind(1, name);
  ASSIGN_OR_RETURN(const bool found, impl_->fact.step());
  std::string value = found ? impl_->fact.bytes(0) : "";
  impl_->fact.reset();
  return value;
}

Status LinkState::note_changes(bool on) {
  const MutexLock lock(impl_->mutex);
  RETURN_IF_ERROR(impl_->end());
  return impl_->database->run(on ? kNoteChanges : kNoteNoChanges);
}

Result<std::vector<Learned>> LinkState::changes(size_t most) {
  const MutexLock lock(impl_->mutex);
  ASSIGN_OR_RETURN(Statement rows, impl_->database->prepare("SELECT path FROM changed ORDER BY path LIMIT ?"));
  rows.bind(1, static_cast<int64_t>(most));
  std::vector<Learned> changes;
  while (true) {
    ASSIGN_OR_RETURN(const bool more, rows.step());
    if (!more) return changes;
    Learned& change = changes.emplace_back(rows.bytes(0), std::nullopt);
    impl_->find.bind(1, change.path);
    ASSIGN_OR_RETURN(const bool found, impl_->find.step());
    if (found) change.file = file_of(impl_->find);
    impl_->find.reset();
  }
}

Status LinkState::changes_are_told(const std::vector<Learned>& told) {
  const MutexLock lock(impl_->mutex);
  RETURN_IF_ERROR(impl_->begin());
  ASSIGN_OR_RETURN(Statement remove, impl_->database->prepare("DELETE FROM changed WHERE path = ?"));
  for (const Learned& each : told) {
    // What was changed meanwhile keeps its note.
    impl_->find.bind(1, each.path);
    ASSIGN_OR_RETURN(const bool found, impl_->find.step());
    const bool same = found == each.file.has_value() && (!found || file_of(impl_->find) == *each.file);
    impl_->find.reset();
    if (same) RETURN_IF_ERROR(remove.bind(1, each.path).run());
  }
  return impl_->end();
}

Result<std::vector<LinkFile>> LinkState::take_range(std::string_view after, std::string_view until, size_t most) {
  const MutexLock lock(impl_->mutex);
  RETURN_IF_ERROR(impl_->begin());
  impl_->page.bind(1, after).bind(2, "").bind(3, static_cast<int64_t>(most));
  std::vector<LinkFile> files;
  bool whole = true;
  while (true) {
    ASSIGN_OR_RETURN(const bool more, impl_->page.step());
    if (!more) break;
    LinkFile file = file_of(impl_->page);
    if (!until.empty() && file.path > until) break;
    files.push_back(std::move(file));
    whole = files.size() < most;
  }
  impl_->page.reset();
  const std::string_view last = whole ? until : std::string_view(files.back().path);
  ASSIGN_OR_RETURN(Statement remove,
                   impl_->database->prepare("DELETE FROM changed WHERE path > ?1 AND (path <= ?2 OR length(?2) = 0)"));
  RETURN_IF_ERROR(remove.bind(1, after).bind(2, last).run());
  RETURN_IF_ERROR(impl_->end());
  return files;
}

Status LinkState::replace_range(std::string_view after, std::string_view until, const std::vector<LinkFile>& files) {
  const MutexLock lock(impl_->mutex);
  return impl_->learn([&]() REQUIRES_LOCK(impl_->mutex) -> Status {
    ASSIGN_OR_RETURN(Statement remove,
                     impl_->database->prepare("DELETE FROM files WHERE path > ?1 AND (path <= ?2 OR length(?2) = 0) "
                                              "AND path NOT IN (SELECT path FROM changed)"));
    RETURN_IF_ERROR(remove.bind(1, after).bind(2, until).run());
    return impl_->put_unnoted(files);
  });
}

Status LinkState::learn(const std::vector<Learned>& learned) {
  const MutexLock lock(impl_->mutex);
  return impl_->learn([&]() REQUIRES_LOCK(impl_->mutex) { return impl_->learn_unnoted(learned); });
}

Status LinkState::add_journal(std::string_view owner, int64_t number, const std::vector<Learned>& rows) {
  const MutexLock lock(impl_->mutex);
  return impl_->learn([&]() REQUIRES_LOCK(impl_->mutex) -> Status {
    ASSIGN_OR_RETURN(Statement add,
                     impl_->database->prepare("INSERT INTO journals(owner, number, path, row) VALUES(?, ?, ?, ?)"));
    for (const Learned& row : rows) {
      RETURN_IF_ERROR(add.bind(1, owner).bind(2, number).bind(3, row.path).bind(4, encode_rows({row})).run());
    }
    return {};
  });
}

Status LinkState::learn_from_journals(std::string_view after, std::string_view until,
                                      const std::map<std::string, int64_t>& heard) {
  const MutexLock lock(impl_->mutex);
  return impl_->learn([&]() REQUIRES_LOCK(impl_->mutex) -> Status {
    ASSIGN_OR_RETURN(Statement told, impl_->database->prepare("SELECT owner, number, row FROM journals WHERE path > ?1 "
                                                              "AND (path <= ?2 OR length(?2) = 0) ORDER BY id"));
    told.bind(1, after).bind(2, until);
    while (true) {
      ASSIGN_OR_RETURN(const bool more, told.step());
      if (!more) return {};
      const auto known = heard.find(told.bytes(0));
      if (known != heard.end() && told.number(1) <= known->second) continue;
      ASSIGN_OR_RETURN(const std::vector<Learned> rows, decode_rows(told.bytes(2), "the state of a link"));
      RETURN_IF_ERROR(impl_->learn_unnoted(rows));
    }
  });
}

Status LinkState::keep_journals(const std::map<std::string, int64_t>& first) {
  const MutexLock lock(impl_->mutex);
  return impl_->learn([&]() REQUIRES_LOCK(impl_->mutex) -> Status {
    std::map<std::string, int64_t> drop;
    {
      ASSIGN_OR_RETURN(Statement rows,
                       impl_->database->prepare("SELECT owner, min(number) FROM journals GROUP BY owner"));
      while (true) {
        ASSIGN_OR_RETURN(const bool more, rows.step());
        if (!more) break;
        const auto kept = first.find(rows.bytes(0));
        const int64_t least = kept == first.end() ? INT64_MAX : kept->second;
        if (rows.number(1) < least) drop.emplace(rows.bytes(0), least);
      }
    }
    ASSIGN_OR_RETURN(Statement remove, impl_->database->prepare("DELETE FROM journals WHERE owner = ? AND number < ?"));
    for (const auto& [owner, least] : drop) RETURN_IF_ERROR(remove.bind(1, owner).bind(2, least).run());
    return {};
  });
}

Result<StateCounts> LinkState::counts() {
  const MutexLock lock(impl_->mutex);
  const int64_t equal = static_cast<int64_t>(LinkFile::State::kEqual);
  const int64_t released = static_cast<int64_t>(LinkFile::State::kReleased);
  ASSIGN_OR_RETURN(Statement row, impl_->database->prepare(
                                      "SELECT count(*), sum(size), sum(state = ?2), sum(iif(state = ?2, size, 0)), "
                                      "sum(length(proof) > 0) FROM files WHERE state IN (?1, ?2)"));
  row.bind(1, equal).bind(2, released);
  ASSIGN_OR_RETURN(bool found, row.step());
  StateCounts counts;
  if (found) counts = {row.number(0), row.number(1), row.number(2), row.number(3), row.number(4)};
  for (const auto& [table, count] : {std::pair("conflicts", &counts.conflicts), {"problems", &counts.problems}}) {
    ASSIGN_OR_RETURN(Statement rows, impl_->database->prepare(fmt::format("SELECT count(*) FROM {}", table)));
    ASSIGN_OR_RETURN(found, rows.step());
    if (found) *count = rows.number(0);
  }
  return counts;
}

Status LinkState::commit() {
  const MutexLock lock(impl_->mutex);
  return impl_->end();
}

}  // namespace millrace::link
