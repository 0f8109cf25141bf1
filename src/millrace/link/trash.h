// SPDX-License-Identifier: Apache-2.0
#pragma once

// Where the copies of removed files, and what loses a conflict, lie for a time: ".millrace/trash/TIME/PATH" below the
// directory and below the bucket's URL. Thread-safe.

#include <cstdint>
#include <stop_token>
#include <string>

#include "millrace/link/config.h"
#include "millrace/sync/transfer.h"

namespace millrace::link {

// "20261125T213400Z": sorts by time, and no file system refuses it.
std::string stamp(int64_t seconds);

class Trash {
 public:
  // All of these outlive it.
  Trash(const LinkConfig& config, const Location& here, const Location& there, sync::TransferEngine& engine,
        std::stop_token stop)
      : config_(config), here_(here), there_(there), engine_(engine), stop_(std::move(stop)) {}

  // A copy of the file, or of the object, goes there; nothing happens on a side that has no trash. The file is a link
  // where the file system has links. Errors: those of copying.
  [[nodiscard]] Status keep_file(const std::string& path, const ObjectInfo& file) const;
  [[nodiscard]] Status keep_object(const std::string& path, const ObjectInfo& object) const;
  // The file itself goes there, or away where there is no trash.
  [[nodiscard]] Status throw_file(const std::string& path) const;
  // Removes what lies there longer than the link says. Errors: those of the two sides.
  [[nodiscard]] Status empty() const;

 private:
  std::string name_of(const std::string& path) const;

  const LinkConfig& config_;
  const Location& here_;
  const Location& there_;
  sync::TransferEngine& engine_;
  const std::stop_token stop_;
};

}  // namespace millrace::link
