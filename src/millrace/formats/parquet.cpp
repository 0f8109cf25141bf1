// SPDX-License-Identifier: Apache-2.0
#include "millrace/formats/parquet.h"

#include <dlfcn.h>

#include <array>
#include <string>

#include "millrace/formats/arrow_adapter.h"
#include "millrace/formats/documents.h"
#include "millrace/formats/parquet/library.h"

namespace millrace::formats {
namespace {

constexpr std::string_view kParquetMagic = "PAR1";

Result<ParquetLibrary> load_library() {
  ASSIGN_OR_RETURN(void* const library, open_arrow_adapter());
  // SAFETY: library.h declares the symbols with these types.
  return ParquetLibrary{reinterpret_cast<OpenTable>(dlsym(library, kOpenTableSymbol)),
                        reinterpret_cast<OpenColumns>(dlsym(library, kOpenColumnsSymbol)),
                        reinterpret_cast<WriteTable>(dlsym(library, kWriteTableSymbol)),
                        reinterpret_cast<OpenRows>(dlsym(library, kOpenRowsSymbol)),
                        reinterpret_cast<NewRowCopier>(dlsym(library, kRowCopierSymbol)),
                        reinterpret_cast<ReplaceColumns>(dlsym(library, kReplaceColumnsSymbol))};
}

}  // namespace

Result<const ParquetLibrary*> parquet_library() {
  static const Result<ParquetLibrary> library = load_library();
  if (!library) return tl::unexpected(library.error());
  return &*library;
}

Result<bool> is_parquet(const RandomReader& file) {
  std::array<char, kParquetMagic.size()> mark{};
  if (file.size() < static_cast<int64_t>(3 * mark.size())) return false;
  for (const int64_t offset : {int64_t{0}, file.size() - static_cast<int64_t>(mark.size())}) {
    RETURN_IF_ERROR(file.read_at(offset, std::as_writable_bytes(std::span(mark))));
    if (std::string_view(mark.data(), mark.size()) != kParquetMagic) return false;
  }
  return true;
}

Result<std::unique_ptr<DocumentSource>> open_table(const RandomReader& file, const DocumentOptions& options,
                                                   int64_t begin_row) {
  const Result<const ParquetLibrary*> library = parquet_library();
  if (!library)
    return with_context(Result<std::unique_ptr<DocumentSource>>(tl::unexpected(library.error())), file.name());
  Result<std::unique_ptr<DocumentSource>> source;
  (*library)->open_table(file, options, begin_row, source);
  return source;
}

}  // namespace millrace::formats
