// SPDX-License-Identifier: Apache-2.0
#pragma once

// The files of a dataset: one, those below a folder, or those of a pattern. Thread-safe.

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
  std::string root;               // the folder: a path or URL without a '/' at its end
  bool single = false;            // `root` was not given: it is the folder of the one file
  std::vector<SourceFile> files;  // episode_2 before episode_10
};

// Files whose names end in `ending` (".csv", in either case), of a file, a folder or a pattern (glob.h). Names that
// begin with '.' or '_' are left out. Errors: not_found (no such file), already_exists (two files that differ in the
// case of their ending), those of open_url and listing.
[[nodiscard]] Result<SourceFiles> find_source_files(const std::string& source, std::string_view ending);

// Orders names as people do: by their runs of digits as numbers.
bool natural_less(std::string_view a, std::string_view b);

}  // namespace millrace::episodes
