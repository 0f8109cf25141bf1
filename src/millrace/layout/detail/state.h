// SPDX-License-Identifier: Apache-2.0
#pragma once

// Compares the state of a directory with its declaration. Private to layout. Thread-safe.

#include <optional>
#include <stop_token>
#include <string>

#include "millrace/layout/detail/tree.h"
#include "millrace/layout/layout.h"

namespace millrace::layout {

// Owner and group of a declaration, as numbers; -1: no change.
struct Ids {
  int64_t user = -1, group = -1;
};
// Finds the numbers of owner and group. Errors: invalid_argument (a name that this machine does not know).
[[nodiscard]] Result<Ids> find_ids(const Directory& directory);

// Returns the state of the open directory and its differences from `directory`, including stripes.
[[nodiscard]] Result<DirectoryState> state_of(const OpenDirectory& open, const Layout& layout,
                                              const Directory& directory, const Ids& ids);

MountState state_of(const Mount& mount, const std::map<std::string, std::string>& table);

std::string mode_text(uint32_t mode);  // "2775"

// --- Lustre, through lfs of PATH ------------------------------------------------------------------------------------
struct FoundStripe {
  int64_t count = 0, size_bytes = 0;
  std::string text;  // "4 x 16 MiB"
};
// Reads the stripe of a directory. nullopt if there is no lfs, or if lfs says that the directory is not on Lustre.
std::optional<FoundStripe> read_stripe(const std::string& path);
[[nodiscard]] Status write_stripe(const std::string& path, const Stripe& stripe);
bool differs(const FoundStripe& found, const Stripe& wanted);
std::string stripe_text(int64_t count, int64_t size_bytes);

}  // namespace millrace::layout
