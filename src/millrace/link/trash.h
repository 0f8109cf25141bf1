// SPDX-License-Identifier: Apache-2.0
#pragma once

// Keeps the copies of removed files, and the losing versions of conflicts, for a time: at ".millrace/trash/TIME/PATH"
// below the directory and below the bucket's URL. Thread-safe.

#include <cstdint>
#include <stop_token>
#include <string>

#include "millrace/link/config.h"
#include "millrace/sync/transfer.h"

namespace millrace::link {

// Returns "20261125T213400Z": sorts by time, and every file system accepts it.
std::string stamp(int64_t seconds);

class Trash {
 public:
  // All objects passed by reference must outlive the Trash.
  Trash(const LinkConfig& config, const Location& here, const Location& there, sync::TransferEngine& engine,
        std::stop_token stop)
      : config_(config), here_(here), there_(there), engine_(engine), stop_(std::move(stop)) {}

  // Copies the file, or the object, to the trash of its side; does nothing if that side has no trash. The copy of a
  // file is a hard link if the file system has them. Errors: those of copying.
  [[nodiscard]] Status keep_file(const std::string& path, const ObjectInfo& file) const;
  [[nodiscard]] Status keep_object(const std::string& path, const ObjectInfo& object) const;
  // Moves the file itself to the trash, or removes it if there is no trash.
  [[nodiscard]] Status throw_file(const std::string& path) const;
  // Removes everything that has been in the trash longer than the link keeps it. Errors: those of the two sides.
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
