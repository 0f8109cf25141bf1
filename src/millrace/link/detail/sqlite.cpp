// SPDX-License-Identifier: Apache-2.0
#include "millrace/link/detail/sqlite.h"

#include <dlfcn.h>

namespace millrace::link {

namespace {

// What is used of SQLite's C interface (sqlite.org/c3ref), which is stable since version 3.0: so no header of it is
// needed to build.
constexpr int kOk = 0, kPermission = 3, kNoMemory = 7, kReadOnly = 8, kCorrupt = 11, kFull = 13, kAuthorization = 23,
              kNotADatabase = 26, kRow = 100, kDone = 101;
constexpr int kOpenReadOnly = 0x1, kOpenReadWrite = 0x2, kOpenCreate = 0x4, kOpenNoMutex = 0x8000;
constexpr int kNullType = 5;
using Free = void (*)(void*);

struct Library {
  int (*open)(const char* path, sqlite3** database, int flags, const char* vfs) = nullptr;
  int (*close)(sqlite3*) = nullptr;
  int (*exec)(sqlite3*, const char* sql, int (*)(void*, int, char**, char**), void*, char** message) = nullptr;
  int (*prepare)(sqlite3*, const char* sql, int bytes, sqlite3_stmt**, const char** tail) = nullptr;
  int (*finalize)(sqlite3_stmt*) = nullptr;
  int (*step)(sqlite3_stmt*) = nullptr;
  int (*reset)(sqlite3_stmt*) = nullptr;
  int (*bind_blob)(sqlite3_stmt*, int at, const void* bytes, uint64_t size, Free) = nullptr;
  int (*bind_zeroblob)(sqlite3_stmt*, int at, int size) = nullptr;
  int (*bind_int64)(sqlite3_stmt*, int at, long long value) = nullptr;
  int (*bind_null)(sqlite3_stmt*, int at) = nullptr;
  const void* (*column_blob)(sqlite3_stmt*, int column) = nullptr;
  int (*column_bytes)(sqlite3_stmt*, int column) = nullptr;
  long long (*column_int64)(sqlite3_stmt*, int column) = nullptr;
  int (*column_type)(sqlite3_stmt*, int column) = nullptr;
  const char* (*message)(sqlite3*) = nullptr;
  sqlite3* (*database_of)(sqlite3_stmt*) = nullptr;
  int (*busy_timeout)(sqlite3*, int ms) = nullptr;
  int (*code)(sqlite3*) = nullptr;
};

Result<Library> load_library() {
  void* const handle = dlopen("libsqlite3.so.0", RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    return fail(ErrorCode::kUnsupported,
                "a link keeps its state with SQLite, and libsqlite3.so.0 is missing ({}): install it (Debian and "
                "Ubuntu: libsqlite3-0; Fedora, RHEL: sqlite-libs; Amazon Linux: sqlite-libs)",
                dlerror());
  }
  bool complete = true;
  const auto find = [&]<class T>(T& target, const char* name) {
    // SAFETY: SQLite declares the symbol of that name with this type.
    target = reinterpret_cast<T>(dlsym(handle, name));
    complete &= target != nullptr;
  };
  Library library;
  find(library.open, "sqlite3_open_v2");
  find(library.close, "sqlite3_close_v2");
  find(library.exec, "sqlite3_exec");
  find(library.prepare, "sqlite3_prepare_v2");
  find(library.finalize, "sqlite3_finalize");
  find(library.step, "sqlite3_step");
  find(library.reset, "sqlite3_reset");
  find(library.bind_blob, "sqlite3_bind_blob64");
  find(library.bind_zeroblob, "sqlite3_bind_zeroblob");
  find(library.bind_int64, "sqlite3_bind_int64");
  find(library.bind_null, "sqlite3_bind_null");
  find(library.column_blob, "sqlite3_column_blob");
  find(library.column_bytes, "sqlite3_column_bytes");
  find(library.column_int64, "sqlite3_column_int64");
  find(library.column_type, "sqlite3_column_type");
  find(library.message, "sqlite3_errmsg");
  find(library.database_of, "sqlite3_db_handle");
  find(library.busy_timeout, "sqlite3_busy_timeout");
  find(library.code, "sqlite3_extended_errcode");
  if (!complete) return fail(ErrorCode::kUnsupported, "libsqlite3.so.0 is too old for the state of a link");
  return library;
}

const Result<Library>& loaded() {
  static const Result<Library> library = load_library();
  return library;
}

// SQLITE_TRANSIENT: the bytes are copied before the call returns.
Free copied() {
  return reinterpret_cast<Free>(intptr_t{-1});
}

// REQUIRES: the library is there, as it is behind every open Database.
const Library& sqlite() {
  return *loaded();
}

Error error_of(sqlite3* database, std::string_view what) {
  constexpr int kPrimary = 0xff;
  const int code = sqlite().code(database);
  ErrorCode kind = ErrorCode::kUnavailable;
  switch (code & kPrimary) {
    case kFull:
    case kNoMemory:
      kind = ErrorCode::kResourceExhausted;
      break;
    case kCorrupt:
    case kNotADatabase:
      kind = ErrorCode::kCorruption;
      break;
    case kPermission:
    case kReadOnly:
    case kAuthorization:
      kind = ErrorCode::kPermissionDenied;
      break;
    default:
      break;
  }
  return Error(kind, fmt::format("{}: SQLite says: {} ({})", what, sqlite().message(database), code));
}

Error error_of(sqlite3_stmt* statement) {
  return error_of(sqlite().database_of(statement), "the state of the link");
}

}  // namespace

Statement::~Statement() {
  if (statement_ != nullptr) sqlite().finalize(statement_);
}

Statement& Statement::operator=(Statement&& other) noexcept {
  std::swap(statement_, other.statement_);
  return *this;
}

Statement& Statement::bind(int at, std::string_view bytes) {
  // A null pointer would be NULL and not empty bytes.
  if (bytes.empty()) {
    sqlite().bind_zeroblob(statement_, at, 0);
  } else {
    sqlite().bind_blob(statement_, at, bytes.data(), bytes.size(), copied());
  }
  return *this;
}

Statement& Statement::bind(int at, int64_t value) {
  sqlite().bind_int64(statement_, at, value);
  return *this;
}

Statement& Statement::bind_null(int at) {
  sqlite().bind_null(statement_, at);
  return *this;
}

Result<bool> Statement::step() {
  const int code = sqlite().step(statement_);
  if (code == kRow) return true;
  if (code == kDone) return false;
  Error error = error_of(statement_);
  reset();
  return tl::unexpected<Error>(std::move(error));
}

Status Statement::run() {
  ASSIGN_OR_RETURN(bool more, step());
  while (more) {
    ASSIGN_OR_RETURN(more, step());
  }
  reset();
  return {};
}

void Statement::reset() {
  sqlite().reset(statement_);
}

int64_t Statement::number(int column) const {
  return sqlite().column_int64(statement_, column);
}

std::string Statement::bytes(int column) const {
  const auto* const data = static_cast<const char*>(sqlite().column_blob(statement_, column));
  return data == nullptr ? std::string()
                         : std::string(data, static_cast<size_t>(sqlite().column_bytes(statement_, column)));
}

bool Statement::is_null(int column) const {
  return sqlite().column_type(statement_, column) == kNullType;
}

Result<std::unique_ptr<Database>> Database::open(const std::string& path, Mode mode) {
  if (!loaded()) return tl::unexpected<Error>(loaded().error());
  const int flags = mode == Mode::kWrite ? kOpenReadWrite | kOpenCreate : kOpenReadOnly;
  sqlite3* handle = nullptr;
  const int opened = sqlite().open(path.c_str(), &handle, flags | kOpenNoMutex, nullptr);
  std::unique_ptr<Database> database(new Database(handle));
  if (opened != kOk) return tl::unexpected<Error>(error_of(handle, path));
  constexpr int kBusyMs = 5000;
  sqlite().busy_timeout(handle, kBusyMs);
  if (mode == Mode::kWrite) RETURN_IF_ERROR(database->run("PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL"));
  return database;
}

Database::~Database() {
  if (database_ != nullptr) sqlite().close(database_);
}

Status Database::run(const std::string& sql) {
  if (sqlite().exec(database_, sql.c_str(), nullptr, nullptr, nullptr) == kOk) return {};
  return tl::unexpected<Error>(error_of(database_, "the state of the link"));
}

Result<Statement> Database::prepare(std::string_view sql) {
  sqlite3_stmt* statement = nullptr;
  if (sqlite().prepare(database_, sql.data(), static_cast<int>(sql.size()), &statement, nullptr) != kOk) {
    return tl::unexpected<Error>(error_of(database_, "the state of the link"));
  }
  return Statement(statement);
}

}  // namespace millrace::link
