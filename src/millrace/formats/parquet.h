// SPDX-License-Identifier: Apache-2.0
#pragma once

// Parquet tables as a source of documents: each row's value of one column. Arrow, which reads them, is large and comes
// with the environment's pyarrow, so what uses it is a library of its own (parquet/), opened at the first table.
// Thread-safe.

#include <cstdint>
#include <memory>

#include "millrace/base/io.h"
#include "millrace/base/status.h"

namespace millrace::formats {

class DocumentSource;
struct DocumentOptions;

// Whether it begins and ends as Parquet does. Errors: those of read_at.
[[nodiscard]] Result<bool> is_parquet(const RandomReader& file);

// The rows from `begin_row` of the column options.text_field ("text", or "meta.body" inside structs), which holds
// strings or binary; null and blank values are no documents. Memory: a chunk and the pages it was read from.
// `file` must outlive the source.
// Errors: unsupported (the library or its pyarrow is missing: what to install; a column of another type), not_found (no
// such column: which there are), corruption.
[[nodiscard]] Result<std::unique_ptr<DocumentSource>> open_table(const RandomReader& file,
                                                                 const DocumentOptions& options, int64_t begin_row);

}  // namespace millrace::formats
