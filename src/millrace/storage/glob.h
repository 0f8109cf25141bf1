// SPDX-License-Identifier: Apache-2.0
#pragma once

// Names by pattern, and the files of a folder, in any storage that lists. Thread-safe.

#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/status.h"

namespace millrace {

inline constexpr std::string_view kWildcards = "*?[";

struct Match {
  std::string url;
  bool folder = false;  // without a '/' at its end
};

// What matches `pattern`, in byte order: *, ? and [] within one component, and "**" for any number of folders, none
// too. Behind "**" only files are matches; those in a folder that the whole pattern names are. A leading dot is matched
// by a dot alone. Where the pattern has no wildcard, the file of that name. Nothing is no error.
// Errors: those of open_url and Storage::list.
[[nodiscard]] Result<std::vector<Match>> find_matches(const std::string& pattern);

struct FolderFiles {
  std::vector<std::string> urls;    // in byte order
  std::vector<std::string> passed;  // files whose name, or that of a folder on the way, begins with '_'
};
// Every file below the folder `url`, however deep. Names that begin with '.' are left out, on the way too; so are those
// with '_', by the convention of Spark, Hive and Arrow (_SUCCESS, _delta_log), which are told. Errors: as find_matches.
[[nodiscard]] Result<FolderFiles> files_below(const std::string& url);

}  // namespace millrace
