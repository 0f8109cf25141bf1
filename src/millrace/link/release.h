// SPDX-License-Identifier: Apache-2.0
#pragma once

// Gives the blocks of files back whose content is proven to be in the bucket, and brings content again. A released file
// is a stub: name, size and times stay, its permissions are 0000, and it has an extended attribute. A program that
// opens it gets EACCES, never zeros; root would read zeros, so root may not release. Where the link has `show_at`, it
// is a guarded stub instead (guarded_stub.h). Where the link has `hsm`, Lustre does both: a released file is any other
// file to programs, and to the state (hsm.h). Thread-safe; one process at a time.

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
  LinkHome home;      // of a link with `show_at`
  std::string below;  // a file or a folder below the directory; "": everything
  // Only files that nobody changed or, as far as the file system tells, read for so long.
  double older_than_s = 0;
  // Stops when so much of the file system is free, 0 to 1; the longest unused go first. 0: releases all that may go.
  double keep_free = 0;
  std::vector<std::string> pins;  // more patterns of files that stay, beside those of the link
  // Paths below the directory in the order of their next use. With keep_free they go last, the latest used first.
  std::vector<std::string> next_use;
  bool dry_run = false;
  size_t most_candidates = 10'000;  // that are held in memory at once
  HsmLimits hsm;                    // of archiving, where the link has `hsm`
  std::function<void(const std::string& path, int64_t size, const std::string& left)> on_file;  // `left`: why it stays
};
struct ReleaseReport {
  int64_t files = 0, bytes = 0;
  int64_t left = 0;       // in use, changed, or not proven to be in the bucket
  double free_share = 0;  // of the file system, at the end
};
// Errors: permission_denied (root, without `hsm` and `show_at`), not_found (nothing is at `below`), unsupported (the
// file system has no holes or no attributes), unavailable (another node runs the link), those of the state and of the
// bucket.
[[nodiscard]] Result<ReleaseReport> release(const LinkConfig& config, const Location& here, LinkState& state,
                                            const ReleaseOptions& options, const std::stop_token& stop);

// The lines of `file` as paths below the directory of the link: such paths, whole paths, or URLs below the link's.
// Errors: those of reading it, invalid_argument (a whole path or a URL of elsewhere).
[[nodiscard]] Result<std::vector<std::string>> read_order(const LinkConfig& config, const std::string& file);
// The same for lines that are there already; `name` is where they come from.
[[nodiscard]] Result<std::vector<std::string>> order_of(const LinkConfig& config, const std::vector<std::string>& lines,
                                                        std::string_view name);

// The share of the directory's file system that users may still fill, 0 to 1.
double free_share(const std::string& directory);

struct RestoreOptions {
  std::string below;               // as of ReleaseOptions
  std::vector<std::string> order;  // paths below the directory that come first, in this order
  HsmLimits hsm;                   // where the link has `hsm`
  bool dry_run = false;
  std::function<void(const std::string& path, int64_t size, const std::string& error)> on_file;
};
struct RestoreReport {
  int64_t files = 0, bytes = 0;
  int64_t failed = 0;
  std::optional<Error> first_failure;
};
// Errors: not_found (nothing is at `below`), those of the state and of the arguments, cancelled, resource_exhausted
// (the content has no room), timeout (nothing comes from the HSM any more), those of check_hsm().
[[nodiscard]] Result<RestoreReport> restore(const LinkConfig& config, const Location& here, const Location& there,
                                            LinkState& state, sync::TransferEngine& engine,
                                            const RestoreOptions& options, const std::stop_token& stop,
                                            Progress* progress);

// After a kill: files whose release had begun become stubs or are what they were. Errors: those of the state.
[[nodiscard]] Status settle_releases(const LinkConfig& config, const Location& here, LinkState& state);

}  // namespace millrace::link
