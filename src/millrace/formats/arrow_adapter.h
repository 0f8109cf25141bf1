// SPDX-License-Identifier: Apache-2.0
#pragma once

// Opens the Parquet adapter (parquet/) that fits the installed pyarrow. Thread-safe.

#include "millrace/base/status.h"

namespace millrace::formats {

// Returns the adapter's handle for dlsym. The adapter fits the Arrow that the process has loaded. Without one, it fits
// the first pyarrow found at MILLRACE_PYARROW, set_pyarrow_folder (parquet.h), or in the environment that this code is
// installed in. Errors: unsupported (this build has no adapter, or none that fits; says which pyarrow to install).
[[nodiscard]] Result<void*> open_arrow_adapter();

}  // namespace millrace::formats
