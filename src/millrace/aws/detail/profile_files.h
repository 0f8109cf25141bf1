// SPDX-License-Identifier: Apache-2.0
#pragma once

// The config file and the credentials file as one. They are parsed once for each of their versions, however many
// buckets a process opens. Thread-safe; a forked child parses them again.

#include <memory>
#include <string>

#include "millrace/aws/profile_file.h"

namespace millrace::aws {

// A file that is missing is empty. Looks at both files each time, so a change is seen by the next call. Errors: those
// of reading, invalid_argument (a line that cannot be parsed).
[[nodiscard]] Result<std::shared_ptr<const ProfileFiles>> read_profile_files(const std::string& config_path,
                                                                             const std::string& credentials_path);

}  // namespace millrace::aws
