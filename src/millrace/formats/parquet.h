// SPDX-License-Identifier: Apache-2.0
#pragma once

// Reads Parquet tables as a source of documents: each row's value of one column. Arrow reads the tables. Arrow is
// large, comes with the environment's pyarrow, and has another ABI in each version. The code that uses Arrow is
// therefore an adapter, one library for each version (parquet/). The first table opens the adapter that fits the
// installed pyarrow. Thread-safe.

#include <cstdint>
#include <memory>
#include <string_view>

#include "millrace/base/io/io.h"
#include "millrace/base/status.h"

namespace millrace::formats {

class DocumentSource;
struct DocumentOptions;

// Sets the folder of pyarrow, for an environment in which pyarrow is not installed beside this code. Call it before
// the first open_table(). The variable MILLRACE_PYARROW takes precedence. Not thread-safe.
void set_pyarrow_folder(std::string_view folder);

// Returns whether the file begins and ends like Parquet. Errors: those of read_at.
[[nodiscard]] Result<bool> is_parquet(const RandomReader& file);

// Opens the rows from `begin_row` on of the column options.text_field ("text", or "meta.body" inside structs), which
// must hold strings or binary. Null and blank values are not documents. Memory: a chunk and the pages it was read
// from. `file` must outlive the source.
// Errors: unsupported (no adapter fits the installed pyarrow, says what to install; a column of another type),
// not_found (no such column; names the columns that exist), corruption.
[[nodiscard]] Result<std::unique_ptr<DocumentSource>> open_table(const RandomReader& file,
                                                                 const DocumentOptions& options, int64_t begin_row);

}  // namespace millrace::formats
