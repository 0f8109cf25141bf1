// SPDX-License-Identifier: Apache-2.0
#pragma once

// Lists a folder page by page, so that memory stays flat whatever its size. Also lists uploads that were never finished
// there.

#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "millrace/sync/entries.h"

namespace millrace::sync {

struct LsOptions {
  bool recursive = false;
  bool hidden = false;  // also what Millrace keeps (".millrace")
  Filter filter;
};
struct LsEntry {
  std::string path;  // below what was asked for; of a folder (one level only) with '/' at the end
  bool is_folder = false;
  Entry::Kind kind = Entry::Kind::kFile;
  ObjectInfo info;  // unset for a folder
};
struct LsReport {
  int64_t objects = 0;
  int64_t bytes = 0;
  int64_t folders = 0;  // one level only
};

// For one thread.
class Listing {
 public:
  // Errors: not_found, those of the storage.
  [[nodiscard]] static Result<std::unique_ptr<Listing>> open(const std::string& url, const LsOptions& options = {},
                                                             std::stop_token stop = {});
  ~Listing();

  // The next entry in byte order of the path; std::nullopt after the last. An object is listed as itself. Errors: those
  // of the storage, cancelled; permission_denied instead of the end, where something came that may not be read. After
  // an error the listing is over.
  [[nodiscard]] Result<std::optional<LsEntry>> next();
  // The report of the entries so far.
  const LsReport& report() const;

 private:
  struct Impl;
  explicit Listing(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Lists the uploads that were begun at or below `at` and never finished (Storage::list_uploads), in order of the key.
// They take space, and no other listing shows them. Errors: those of the storage; not_found where a file system has no
// such path.
[[nodiscard]] Result<std::vector<LsEntry>> list_uploads(const Location& at);

}  // namespace millrace::sync
