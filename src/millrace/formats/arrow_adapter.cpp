// SPDX-License-Identifier: Apache-2.0
#include "millrace/formats/arrow_adapter.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "millrace/base/lazy_library.h"
#include "millrace/formats/parquet.h"
#include "millrace/formats/parquet/library.h"

namespace millrace::formats {
namespace {

using Paths = std::vector<std::filesystem::path>;

constexpr std::string_view kInstall = "pip install 'millrace-io[parquet]'";
constexpr const char* kFolderVariable = "MILLRACE_PYARROW";

std::filesystem::path& chosen_folder() {
  static std::filesystem::path folder;
  return folder;
}

// By the number in Arrow's soname: "2600" is Arrow 26.0. The newest first.
using Adapters = std::map<std::string, std::filesystem::path, std::greater<>>;

Adapters find_adapters() {
  const std::string_view prefix = kParquetLibrary;
  Adapters adapters;
  for (const auto& folder : lazy_library_folders()) {
    for (const auto& path : matching_paths(folder / fmt::format("{}*.so", prefix))) {
      adapters.emplace(path.stem().string().substr(prefix.size()), path);
    }
  }
  return adapters;
}

std::string version_of(const std::string& soname) {
  const int number = std::atoi(soname.c_str());
  return fmt::format("{}.{}", number / 100, number % 100);
}

std::string versions_of(const Adapters& adapters) {
  std::vector<std::string> versions;
  for (const auto& adapter : adapters) versions.push_back(version_of(adapter.first));
  return fmt::format("{}", fmt::join(versions, ", "));
}

Result<void*> open_adapter(const std::filesystem::path& path) {
  return open_lazy_library_at(
      path, {.version_symbol = kParquetVersionSymbol, .version = kParquetVersion, .install = kInstall});
}

// An adapter names its libraries by soname alone, which the dynamic linker finds among those that are loaded already.
bool load_arrow(const std::filesystem::path& folder, const std::string& soname) {
  for (const char* name : {"libarrow.so.", "libparquet.so."}) {
    if (dlopen((folder / (name + soname)).c_str(), RTLD_NOW | RTLD_LOCAL) == nullptr) return false;
  }
  return true;
}

Paths pyarrow_folders() {
  Paths folders;
  if (const char* named = std::getenv(kFolderVariable)) folders.emplace_back(named);
  if (!chosen_folder().empty()) folders.push_back(chosen_folder());
  for (auto& folder : package_folders("pyarrow")) folders.push_back(std::move(folder));
  return folders;
}

// Two versions of Arrow in one process may clash, so a loaded one comes first.
const std::filesystem::path* find_loaded(const Adapters& adapters) {
  for (const auto& [soname, path] : adapters) {
    if (dlopen(("libparquet.so." + soname).c_str(), RTLD_NOW | RTLD_NOLOAD) != nullptr) return &path;
  }
  return nullptr;
}

}  // namespace

void set_pyarrow_folder(std::string_view folder) {
  chosen_folder() = folder;
}

Result<void*> open_arrow_adapter() {
  const Adapters adapters = find_adapters();
  if (adapters.empty()) {
    return fail(ErrorCode::kUnsupported,
                "this build of Millrace has no Parquet ({}*.so is not beside it): build it where pyarrow is installed, "
                "or take the wheel: {}",
                kParquetLibrary, kInstall);
  }
  if (const auto* path = find_loaded(adapters)) return open_adapter(*path);
  std::string others;
  for (const auto& folder : pyarrow_folders()) {
    for (const auto& arrow : matching_paths(folder / "libarrow.so.*")) {
      const auto soname = arrow.extension().string().substr(1);
      const auto adapter = adapters.find(soname);
      if (adapter != adapters.end() && load_arrow(folder, soname)) return open_adapter(adapter->second);
      others += fmt::format("; {} is pyarrow {}", folder.native(), version_of(soname));
    }
  }
  // An adapter in a build folder holds the path of its pyarrow.
  if (auto built = open_adapter(adapters.begin()->second)) return built;
  return fail(ErrorCode::kUnsupported, "Parquet needs pyarrow {}: {}, or name its folder in {}{}",
              versions_of(adapters), kInstall, kFolderVariable, others);
}

}  // namespace millrace::formats
