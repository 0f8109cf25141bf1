// SPDX-License-Identifier: Apache-2.0
#pragma once

// Reads the config file and the credentials file as one. Each version of the files is parsed once, for any number of
// buckets that a process opens. Thread-safe; a forked child parses them again.

#include <memory>
#include <string>

#include "millrace/aws/profile_file.h"

namespace millrace::aws {

// Treats a missing file as empty. Checks both files each time, so the next call sees a change. Errors: those of
// reading, invalid_argument (a line that cannot be parsed).
[[nodiscard]] Result<std::shared_ptr<const ProfileFiles>> read_profile_files(const std::string& config_path,
                                                                             const std::string& credentials_path);

}  // namespace millrace::aws
