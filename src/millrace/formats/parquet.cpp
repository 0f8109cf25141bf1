// SPDX-License-Identifier: Apache-2.0
#include "millrace/formats/parquet.h"

#include <dlfcn.h>
#include <glob.h>

#include <array>
#include <filesystem>
#include <string>
#include <vector>

#include "millrace/formats/documents.h"
#include "millrace/formats/parquet/library.h"

namespace millrace::formats {
namespace {

constexpr std::string_view kParquetMagic = "PAR1";
constexpr std::string_view kInstall =
    "reading Parquet needs pyarrow " MILLRACE_PYARROW ": pip install 'millrace[parquet]'";

void add_folder_of(const std::filesystem::path& program, std::vector<std::filesystem::path>& folders) {
  std::error_code error;
  const auto real = std::filesystem::canonical(program, error);
  if (!error) folders.push_back(real.parent_path());
}

// Beside this code (the Python package, a build folder), or in the package of the environment that the program is
// installed in.
std::vector<std::filesystem::path> library_folders() {
  std::vector<std::filesystem::path> folders;
  Dl_info self{};
  // SAFETY: only the address is looked at.
  if (dladdr(reinterpret_cast<const void*>(&library_folders), &self) != 0) add_folder_of(self.dli_fname, folders);
  add_folder_of("/proc/self/exe", folders);
  if (folders.empty()) return folders;
  glob_t packages{};
  const auto pattern = folders.back().parent_path() / "lib/python3*/site-packages/millrace";
  if (::glob(pattern.c_str(), 0, nullptr, &packages) == 0) {
    for (size_t i = 0; i < packages.gl_pathc; ++i) folders.emplace_back(packages.gl_pathv[i]);
  }
  ::globfree(&packages);
  return folders;
}

Result<OpenTable> load_library() {
  for (const auto& folder : library_folders()) {
    const auto path = folder / kParquetLibrary;
    std::error_code error;
    if (!std::filesystem::exists(path, error)) continue;
    void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return fail(ErrorCode::kUnsupported, "{} ({})", kInstall, dlerror());
    // SAFETY: library.h declares both symbols with these types.
    const auto* version = reinterpret_cast<const char*>(dlsym(library, kParquetVersionSymbol));
    const auto open = reinterpret_cast<OpenTable>(dlsym(library, kOpenTableSymbol));
    if (version == nullptr || open == nullptr || std::string_view(version) != kParquetVersion) {
      return fail(ErrorCode::kUnsupported, "{}: it belongs to another build of Millrace", path.native());
    }
    return open;
  }
  return fail(ErrorCode::kUnsupported, "this build of Millrace cannot read Parquet ({} is not beside it): {}",
              kParquetLibrary, kInstall);
}

}  // namespace

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
  static const Result<OpenTable> library = load_library();
  if (!library)
    return with_context(Result<std::unique_ptr<DocumentSource>>(tl::unexpected(library.error())), file.name());
  Result<std::unique_ptr<DocumentSource>> source;
  (*library)(file, options, begin_row, source);
  return source;
}

}  // namespace millrace::formats
