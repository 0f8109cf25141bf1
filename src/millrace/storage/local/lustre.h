// SPDX-License-Identifier: Apache-2.0
#pragma once

// Sets and shows the layouts of files on the servers of Lustre (FSx for Lustre) with the program `lfs` from PATH. A
// file keeps the layout with which it was created. Without Lustre or `lfs` these functions do nothing. Thread-safe.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/status.h"
#include "millrace/storage/local/syscalls.h"

namespace millrace {

// The layout of new files in a directory.
enum class LustreLayout {
  kSingle,       // one server each: logs, indexes, small files; one file per rank if ranks outnumber servers
  kSpread,       // 8 servers each: shards of up to some GiB that many nodes read at once
  kProgressive,  // grows with the file: 1 server up to 100 MiB, 4 up to 10 GiB, then all
  kAll,          // all servers: few large files, each written by many
};
std::string_view lustre_layout_name(LustreLayout layout);  // "single", "spread", "progressive", "all"
std::optional<LustreLayout> parse_lustre_layout(std::string_view name);

// Sets the layout of new files in `dir`. Returns false, without effect, when `dir` is not on Lustre. Errors: not_found
// (no directory, or Lustre without `lfs`), permission_denied and others as lfs says.
[[nodiscard]] Result<bool> set_lustre_layout(const std::string& dir, LustreLayout layout,
                                             Syscalls& sys = real_syscalls());
// Returns the output of `lfs getstripe` for `path` (for a directory: the layout of new files); nullopt when `path` is
// not on Lustre. Errors: those of set_lustre_layout.
[[nodiscard]] Result<std::optional<std::string>> show_lustre_layout(const std::string& path,
                                                                    Syscalls& sys = real_syscalls());

namespace local {

inline constexpr int64_t kLustreMagic = 0x0BD00BD0;  // statfs.f_type

bool is_lustre(Syscalls& sys, const std::string& path);
// Returns the output of `lfs ARGUMENTS`. Errors: not_found (no such program), unavailable (with the program's
// message).
[[nodiscard]] Result<std::string> run_lfs(std::vector<std::string> arguments);

struct Stripes {
  int count = 0;  // -1: all servers
  int64_t size_bytes = 0;
  bool operator==(const Stripes&) const = default;
};
// Returns the stripes for an object of `size_hint_bytes` (0: unknown), with `wanted` as WriteOptions::stripe_count;
// nullopt: the directory's layout. Small objects keep the directory's layout: on many servers, they would cost each
// reader a request to each server.
std::optional<Stripes> stripes_for(int64_t size_hint_bytes, int wanted);
// Creates the empty file `path` with these stripes. Errors: those of run_lfs.
[[nodiscard]] Status make_striped_file(const std::string& path, const Stripes& stripes);

}  // namespace local
}  // namespace millrace
