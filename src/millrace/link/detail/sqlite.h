// SPDX-License-Identifier: Apache-2.0
#pragma once

// The few SQLite calls that a link's state needs, with values and Results. libsqlite3.so.0 is loaded on first use, so
// programs without a link do not need it. A Database belongs to one thread at a time.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "millrace/base/status.h"

struct sqlite3;
struct sqlite3_stmt;

namespace millrace::link {

class Database;

// A prepared statement. Parameters count from 1, columns from 0.
class Statement {
 public:
  Statement() = default;
  ~Statement();
  Statement(Statement&& other) noexcept : statement_(other.statement_) { other.statement_ = nullptr; }
  Statement& operator=(Statement&& other) noexcept;

  // Binds text as bytes: paths need not be UTF-8 and compare byte by byte.
  Statement& bind(int at, std::string_view bytes);
  Statement& bind(int at, int64_t value);
  Statement& bind_null(int at);

  // Advances to the next row; false if there is none. Errors: resource_exhausted (disk full), corruption, unavailable
  // (locked).
  [[nodiscard]] Result<bool> step();
  // Runs to the end and makes the statement ready to be bound again.
  [[nodiscard]] Status run();
  void reset();

  int64_t number(int column) const;
  std::string bytes(int column) const;
  bool is_null(int column) const;

 private:
  friend class Database;
  explicit Statement(sqlite3_stmt* statement) : statement_(statement) {}
  sqlite3_stmt* statement_ = nullptr;
};

class Database {
 public:
  enum class Mode { kWrite, kRead };
  // Opens the file with a write-ahead log; kWrite creates it if needed. Errors: unsupported (no libsqlite3.so.0),
  // not_found, corruption (not a database, or a damaged one), permission_denied.
  [[nodiscard]] static Result<std::unique_ptr<Database>> open(const std::string& path, Mode mode);
  ~Database();
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;

  // Runs one or more SQL statements without parameters and results, separated by ';'.
  [[nodiscard]] Status run(const std::string& sql);
  [[nodiscard]] Result<Statement> prepare(std::string_view sql);

 private:
  explicit Database(sqlite3* database) : database_(database) {}
  sqlite3* database_ = nullptr;
};

}  // namespace millrace::link
