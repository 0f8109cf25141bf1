// SPDX-License-Identifier: Apache-2.0
#pragma once

// Releases files whose content is proven to be in the bucket, which frees their blocks, and restores them. A released
// file is a stub: name, size and times stay, its permissions are 0000, and it has an extended attribute. A program
// that opens it gets EACCES, never zeros. Root would read zeros, so root may not release. If the link has `show_at`,
// the stub is a guarded one (guarded_stub.h). If the link has `hsm`, Lustre releases and restores; a released file
// then looks like any other file to programs and to the state (hsm.h). Thread-safe; one process at a time.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "millrace/base/progress.h"
#include "millrace/link/config.h"
#include "millrace/link/hsm.h"
#include "millrace/link/state.h"
#include "millrace/sync/transfer.h"

namespace millrace::link {

struct ReleaseOptions {
  LinkHome home;      // of the link; needed with `show_at`
  std::string below;  // a file or a folder below the link's directory; "": everything
  // Releases only files that nobody changed or, as far as the file system reports, read for this long.
  double older_than_s = 0;
  // Stops when this share of the file system is free, 0 to 1. Files unused for the longest time go first. 0: releases
  // all eligible files.
  double keep_free = 0;
  std::vector<std::string> pins;  // more patterns of files that stay, besides the link's pins
  // Paths below the directory in the order of their next use. With keep_free they are released last, in reverse order.
  std::vector<std::string> next_use;
  bool dry_run = false;
  size_t most_candidates = 10'000;  // candidates held in memory at once
  HsmLimits hsm;                    // limits of archiving, if the link has `hsm`
  std::function<void(const std::string& path, int64_t size, const std::string& left)> on_file;  // `left`: why it stays
};
struct ReleaseReport {
  int64_t files = 0, bytes = 0;
  int64_t left = 0;       // not released: in use, changed, or not proven to be in the bucket
  double free_share = 0;  // free share of the file system at the end
};
// Releases files. Errors: permission_denied (root, without `hsm` and `show_at`), not_found (nothing is at `below`),
// unsupported (the file system has no holes or no attributes), unavailable (another node runs the link), those of the
// state and of the bucket.
[[nodiscard]] Result<ReleaseReport> release(const LinkConfig& config, const Location& here, LinkState& state,
                                            const ReleaseOptions& options, const std::stop_token& stop);

// Reads the lines of `file` as paths below the link's directory. A line may be such a path, a whole path, or a URL
// below the link's. Errors: those of reading the file, invalid_argument (a whole path or a URL outside the link).
[[nodiscard]] Result<std::vector<std::string>> read_order(const LinkConfig& config, const std::string& file);
// Does the same for lines already read; `name` is their source, for errors.
[[nodiscard]] Result<std::vector<std::string>> order_of(const LinkConfig& config, const std::vector<std::string>& lines,
                                                        std::string_view name);

// Returns the share of the directory's file system that users may still fill, 0 to 1.
double free_share(const std::string& directory);

struct RestoreOptions {
  std::string below;               // as in ReleaseOptions
  std::vector<std::string> order;  // paths below the directory to restore first, in this order
  HsmLimits hsm;                   // limits of restoring, if the link has `hsm`
  bool dry_run = false;
  std::function<void(const std::string& path, int64_t size, const std::string& error)> on_file;
};
struct RestoreReport {
  int64_t files = 0, bytes = 0;
  int64_t failed = 0;
  std::optional<Error> first_failure;
};
// Restores files. Errors: not_found (nothing is at `below`), those of the state and of the arguments, cancelled,
// resource_exhausted (no room for the content), timeout (the HSM makes no more progress), those of check_hsm().
[[nodiscard]] Result<RestoreReport> restore(const LinkConfig& config, const Location& here, const Location& there,
                                            LinkState& state, sync::TransferEngine& engine,
                                            const RestoreOptions& options, const std::stop_token& stop,
                                            Progress* progress);

// Settles releases that a kill interrupted: each file becomes a stub or gets its old state back. Errors: those of the
// state.
[[nodiscard]] Status settle_releases(const LinkConfig& config, const Location& here, LinkState& state);

}  // namespace millrace::link
