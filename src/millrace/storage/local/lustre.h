// SPDX-License-Identifier: Apache-2.0
#pragma once

// How files lie on the servers of Lustre (FSx for Lustre), by the program `lfs` from PATH. A layout is chosen when a
// file is made and stays; where there is no Lustre, or no `lfs`, all of this does nothing. Thread-safe.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/status.h"
#include "millrace/storage/local/syscalls.h"

namespace millrace {

// What files that are made in a directory get.
enum class LustreLayout {
  kSingle,       // one server each: logs, indexes, small files, one file a rank where ranks outnumber servers
  kSpread,       // 8 servers each: shards of up to some GiB that many nodes read at once
  kProgressive,  // grows with the file: 1 server up to 100 MiB, 4 up to 10 GiB, then all
  kAll,          // all servers: few large files, each written by many
};
std::string_view lustre_layout_name(LustreLayout layout);  // "single", "spread", "progressive", "all"
std::optional<LustreLayout> parse_lustre_layout(std::string_view name);

// Gives `dir` that layout for what will be made in it. False, and nothing done, where it does not lie on Lustre.
// Errors: not_found (no directory, or Lustre without `lfs`), permission_denied and others as lfs says.
[[nodiscard]] Result<bool> set_lustre_layout(const std::string& dir, LustreLayout layout,
                                             Syscalls& sys = real_syscalls());
// What `lfs getstripe` says of `path` (of a directory: what files in it will get); nothing where it does not lie on
// Lustre. Errors: as above.
[[nodiscard]] Result<std::optional<std::string>> show_lustre_layout(const std::string& path,
                                                                    Syscalls& sys = real_syscalls());

namespace local {

inline constexpr int64_t kLustreMagic = 0x0BD00BD0;  // statfs.f_type

bool is_lustre(Syscalls& sys, const std::string& path);
// What `lfs ARGUMENTS` prints. Errors: not_found (no such program), unavailable (with what it said).
[[nodiscard]] Result<std::string> run_lfs(std::vector<std::string> arguments);

struct Stripes {
  int count = 0;  // -1: all servers
  int64_t size_bytes = 0;
  bool operator==(const Stripes&) const = default;
};
// For an object of `size_hint_bytes` (0: unknown), `wanted` as WriteOptions::stripe_count; nothing: what the directory
// gives. Small objects keep that: on many servers they would cost each reader a request to all of them.
std::optional<Stripes> stripes_for(int64_t size_hint_bytes, int wanted);
// Makes the empty file `path` so. Errors: as run_lfs.
[[nodiscard]] Status make_striped_file(const std::string& path, const Stripes& stripes);

}  // namespace local
}  // namespace millrace
