// SPDX-License-Identifier: Apache-2.0
#include "millrace/base/lazy_library.h"

#include <dlfcn.h>
#include <glob.h>

#include <filesystem>
#include <vector>

namespace millrace {
namespace {

void add_folder_of(const std::filesystem::path& program, std::vector<std::filesystem::path>& folders) {
  std::error_code error;
  const auto real = std::filesystem::canonical(program, error);
  if (!error) folders.push_back(real.parent_path());
}

// Where this code lies: the Python package, a build folder, bin/.
std::vector<std::filesystem::path> own_folders() {
  std::vector<std::filesystem::path> folders;
  Dl_info self{};
  // SAFETY: only the address is looked at.
  if (dladdr(reinterpret_cast<const void*>(&own_folders), &self) != 0) add_folder_of(self.dli_fname, folders);
  add_folder_of("/proc/self/exe", folders);
  return folders;
}

void append(std::vector<std::filesystem::path>& folders, const std::vector<std::filesystem::path>& more) {
  folders.insert(folders.end(), more.begin(), more.end());
}

}  // namespace

std::vector<std::filesystem::path> matching_paths(const std::filesystem::path& pattern) {
  glob_t found{};
  std::vector<std::filesystem::path> paths;
  if (::glob(pattern.c_str(), 0, nullptr, &found) == 0) paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  ::globfree(&found);
  return paths;
}

std::vector<std::filesystem::path> package_folders(std::string_view name) {
  std::vector<std::filesystem::path> folders;
  for (const auto& own : own_folders()) {
    const auto above = own.parent_path();
    append(folders, matching_paths(above / name));  // pip install --target, or beside our own package
    append(folders, matching_paths(above / "lib*/python3*/*-packages" / name));
  }
  return folders;
}

std::vector<std::filesystem::path> lazy_library_folders() {
  auto folders = own_folders();
  if (folders.empty()) return folders;
  const auto above = folders.back().parent_path();
  append(folders, package_folders("millrace"));
  // In a build folder each room has its own.
  if (above.filename() == "millrace") append(folders, matching_paths(above / "*"));
  return folders;
}

Result<void*> open_lazy_library_at(const std::filesystem::path& path, const LazyLibrary& library) {
  void* const handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return fail(ErrorCode::kUnsupported, "{} ({})", library.install, dlerror());
  // SAFETY: LazyLibrary says what the symbol is.
  const auto* version = reinterpret_cast<const char*>(dlsym(handle, library.version_symbol));
  if (version == nullptr || std::string_view(version) != library.version) {
    return fail(ErrorCode::kUnsupported, "{}: it belongs to another build of Millrace", path.native());
  }
  return handle;
}

Result<void*> open_lazy_library(const LazyLibrary& library) {
  for (const auto& folder : lazy_library_folders()) {
    const auto path = folder / library.file;
    std::error_code error;
    if (std::filesystem::exists(path, error)) return open_lazy_library_at(path, library);
  }
  return fail(ErrorCode::kUnsupported, "{} ({} is not beside it): {}", library.missing, library.file, library.install);
}

}  // namespace millrace
