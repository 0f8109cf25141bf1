// SPDX-License-Identifier: Apache-2.0
#pragma once

// Private to sync/: sets the Lustre layout of the directory that files will be copied to. Thread-safe.

#include "millrace/storage/local/lustre.h"
#include "millrace/storage/url.h"

namespace millrace::sync {

// Creates the directory if it is missing, and sets its layout. Logs the resulting layout, or a warning if the
// directory is not on Lustre. Errors: those of lfs and of creating the directory.
[[nodiscard]] Status lay_out_target(const Location& target, LustreLayout layout);

}  // namespace millrace::sync
