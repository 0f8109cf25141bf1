// SPDX-License-Identifier: Apache-2.0
#pragma once

// Finds the files of a dataset: a single file, the files below a folder, or those that match a pattern. Thread-safe.

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/io/file_time.h"
#include "millrace/storage/url.h"

namespace millrace::episodes {

struct SourceFile {
  std::string url;
  std::string name;  // below the root, without the ending: "a/episode_3"
  int64_t size = 0;
  FileTime modified;
};

struct SourceFiles {
  std::string root;               // the folder: a path or URL without a final '/'
  bool single = false;            // one file was given; `root` is its folder
  std::vector<SourceFile> files;  // in the order of natural_less(): episode_2 before episode_10
};

// Finds the files whose names end in `ending` (".csv", in upper or lower case). `source` is a file, a folder or a
// pattern (glob.h). Leaves out names that begin with '.' or '_'. Errors: not_found (no such file), already_exists (two
// files that differ in the case of their ending), those of open_url and listing.
[[nodiscard]] Result<SourceFiles> find_source_files(const std::string& source, std::string_view ending);

// Orders names as people do: compares runs of digits as numbers.
bool natural_less(std::string_view a, std::string_view b);

}  // namespace millrace::episodes
