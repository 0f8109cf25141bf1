// SPDX-License-Identifier: Apache-2.0
#pragma once

// The number of files and connections that this process may have open. Thread-safe.

namespace millrace {

// Returns the current soft limit (RLIMIT_NOFILE), at most a million.
int open_file_limit();
// Raises the soft limit to the hard one, as far as the system allows. For programs only: a library must not change the
// process that it runs in.
void raise_open_file_limit();

}  // namespace millrace
