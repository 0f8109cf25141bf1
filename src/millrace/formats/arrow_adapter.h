// SPDX-License-Identifier: Apache-2.0
#pragma once

// Which of the Parquet adapters (parquet/) goes with the pyarrow at hand. Thread-safe.

#include "millrace/base/status.h"

namespace millrace::formats {

// The adapter's handle for dlsym. It fits the Arrow that the process has loaded, or else the first pyarrow of
// MILLRACE_PYARROW, set_pyarrow_folder (parquet.h), the environment that this code is installed in. Errors: unsupported
// (this build has no adapter, or none that fits: which pyarrow to install).
[[nodiscard]] Result<void*> open_arrow_adapter();

}  // namespace millrace::formats
