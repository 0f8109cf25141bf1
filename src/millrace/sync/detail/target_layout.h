// SPDX-License-Identifier: Apache-2.0
#pragma once

// Private to sync/: the directory that files will be copied to, on the servers of Lustre. Thread-safe.

#include "millrace/storage/local/lustre.h"
#include "millrace/storage/url.h"

namespace millrace::sync {

// Makes the directory where it is missing, and gives it the layout; a warning where it does not lie on Lustre. What
// Lustre then has is logged. Errors: those of lfs and of making the directory.
[[nodiscard]] Status lay_out_target(const Location& target, LustreLayout layout);

}  // namespace millrace::sync
