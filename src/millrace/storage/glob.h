// SPDX-License-Identifier: Apache-2.0
#pragma once

// Finds names by pattern and the files of a folder, in any storage that lists. Thread-safe.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/status.h"

namespace millrace {

inline constexpr std::string_view kWildcards = "*?[";

// Whether `url` has *, ? or [. False for the path of an existing local file or folder, which is taken literally.
bool has_wildcards(const std::string& url);
// Like expand_braces(), except for the path of an existing local file or folder, which is taken literally.
[[nodiscard]] Result<std::vector<std::string>> expand_names(const std::string& pattern);

struct Match {
  std::string url;
  bool folder = false;  // without a '/' at its end
  // Size and version of a file, from the listing; the version is empty where the listing has none.
  int64_t size = 0;
  std::string version;
};

// Returns the matches of `pattern`, in byte order. *, ? and [] match within one component, "**" matches any number of
// folders, including none. After "**" only files match, including files in a folder that the whole pattern names. Only
// a dot matches a leading dot. A pattern without wildcards matches the file of that name. No match is no error.
// Errors: those of open_url and Storage::list.
[[nodiscard]] Result<std::vector<Match>> find_matches(const std::string& pattern);

struct FolderFiles {
  std::vector<Match> files;         // by URL, in byte order
  std::vector<std::string> passed;  // files below a name that begins with '_'
};
// Returns every file below the folder `url`, at any depth. Leaves out names of files and folders that begin with '.'.
// Also leaves out names that begin with '_', by the convention of Spark, Hive and Arrow (_SUCCESS, _delta_log), and
// lists their files in `passed`. Errors: those of find_matches.
[[nodiscard]] Result<FolderFiles> files_below(const std::string& url);

}  // namespace millrace
