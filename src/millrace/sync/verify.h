// SPDX-License-Identifier: Apache-2.0
#pragma once

// Compares two trees, or two objects, by content, and names the proof for each file. Only reads. Thread-safe.

#include <functional>
#include <stop_token>
#include <string>

#include "millrace/base/progress.h"
#include "millrace/sync/filter.h"
#include "millrace/sync/sync.h"

namespace millrace::sync {

// The proof behind an answer, the strongest first.
enum class Proof {
  kContent,   // both were read and have the same hash
  kRecorded,  // both are versions whose hash a sync recorded
  kSidecar,   // at least one has block hashes of its version next to it; the other has, too, or was read
  kEtag,      // S3's MD5: both have it, or the local file was read and matches it
  kSize,      // only the size is known, or was requested
};
std::string_view proof_name(Proof proof);  // "content", "recorded", "sidecar", "etag", "size"

struct VerifyOptions {
  enum class Effort {
    kRead,      // read everything
    kRecorded,  // trust the last sync's record, block hashes and S3's MD5s; read the rest
    kSize,      // read nothing
  };
  Effort effort = Effort::kRead;
  bool extra = false;  // files that only the target has count as differences
  bool follow_links = false;
  int files_at_once = 16;
  Filter filter;
  struct Finding {
    enum class Kind { kSame, kDifferent, kMissing, kExtra, kUnreadable, kPassed } kind = Kind::kSame;
    std::string path;
    std::string reason;  // why it is not the same
    int64_t size = 0;
    Proof proof = Proof::kContent;
  };
  // Called from one thread at a time, in byte order of the path.
  std::function<void(const Finding&)> on_file;
};
std::string_view finding_name(VerifyOptions::Finding::Kind kind);  // "same", "different", "missing", ...

struct VerifyReport {
  int64_t files = 0;  // files of the source
  int64_t bytes = 0;  // size of these files
  int64_t same = 0;
  int64_t by_content = 0;  // files in `same`, by the proof
  int64_t by_record = 0;
  int64_t by_sidecar = 0;
  int64_t by_etag = 0;
  int64_t by_size = 0;
  int64_t different = 0;
  int64_t missing = 0;
  int64_t extra = 0;
  int64_t unreadable = 0;
  int64_t passed = 0;  // links, devices, folder markers
  double seconds = 0;

  bool is_clean(bool extra_counts) const { return different + missing + unreadable + (extra_counts ? extra : 0) == 0; }
};

// Computes XXH3-128 of the version of an object that a listing or stat returned. Errors: those of reading, cancelled.
[[nodiscard]] Result<Hash128> hash_object(Storage& storage, const ObjectInfo& object, std::stop_token stop = {},
                                          Progress* progress = nullptr);

// Compares `source` and `target`. Errors: those of the arguments and of listing, cancelled.
[[nodiscard]] Result<VerifyReport> verify(const std::string& source, const std::string& target,
                                          const VerifyOptions& options = {}, std::stop_token stop = {},
                                          Progress* progress = nullptr);

}  // namespace millrace::sync
