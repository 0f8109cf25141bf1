// SPDX-License-Identifier: Apache-2.0
#pragma once

// Parquet tables as a source of documents: each row's value of one column. Arrow reads them. It is large, comes with
// the environment's pyarrow, and has another ABI in each version. So the code that uses it is an adapter, a library for
// each version (parquet/), and the one that fits the pyarrow at hand is opened at the first table. Thread-safe.

#include <cstdint>
#include <memory>
#include <string_view>

#include "millrace/base/io/io.h"
#include "millrace/base/status.h"

namespace millrace::formats {

class DocumentSource;
struct DocumentOptions;

// Where pyarrow lies, for an environment in which it is not beside this code; call it before the first open_table. The
// variable MILLRACE_PYARROW comes before it. Not thread-safe.
void set_pyarrow_folder(std::string_view folder);

// Whether it begins and ends as Parquet does. Errors: those of read_at.
[[nodiscard]] Result<bool> is_parquet(const RandomReader& file);

// The rows from `begin_row` of the column options.text_field ("text", or "meta.body" inside structs), which holds
// strings or binary; null and blank values are not documents. Memory: a chunk and the pages it was read from.
// `file` must outlive the source.
// Errors: unsupported (no adapter fits the pyarrow at hand: what to install; a column of another type), not_found (no
// such column: which there are), corruption.
[[nodiscard]] Result<std::unique_ptr<DocumentSource>> open_table(const RandomReader& file,
                                                                 const DocumentOptions& options, int64_t begin_row);

}  // namespace millrace::formats
