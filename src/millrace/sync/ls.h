// SPDX-License-Identifier: Apache-2.0
#pragma once

// Lists a folder page by page, so that memory does not grow with its size. Also lists unfinished uploads there.

#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "millrace/sync/entries.h"

namespace millrace::sync {

struct LsOptions {
  bool recursive = false;
  bool hidden = false;  // also the folders that Millrace keeps (".millrace")
  Filter filter;
};
struct LsEntry {
  std::string path;  // below the listed folder; a folder (one level only) ends in '/'
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
  // Opens a listing. Errors: not_found, those of the storage.
  [[nodiscard]] static Result<std::unique_ptr<Listing>> open(const std::string& url, const LsOptions& options = {},
                                                             std::stop_token stop = {});
  ~Listing();

  // Returns the next entry in byte order of the path; std::nullopt after the last. The listing of an object is that
  // object. Errors: those of the storage, cancelled; permission_denied instead of the end, if an entry could not be
  // read. After an error the listing is over.
  [[nodiscard]] Result<std::optional<LsEntry>> next();
  // Returns the report of the entries so far.
  const LsReport& report() const;

 private:
  struct Impl;
  explicit Listing(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Lists the uploads that were begun at or below `at` and never finished (Storage::list_uploads), in order of the key.
// They take space, and no other listing shows them. Errors: those of the storage; not_found (a file system has no such
// path).
[[nodiscard]] Result<std::vector<LsEntry>> list_uploads(const Location& at);

}  // namespace millrace::sync
