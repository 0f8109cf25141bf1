# Every dependency of the C++ core, with the reason it is here. All come from Debian by name (see `dev`).
find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)
find_package(tl-expected REQUIRED)       # Result<T>: std::expected is C++23
find_package(fmt REQUIRED)               # messages: <format> is missing in g++ 12; its compiled half is base/fmt_library.cpp
find_package(nlohmann_json REQUIRED)     # small JSON (manifests, records, CLI output), only in .cpp files
find_package(simdjson REQUIRED)          # large JSON read fast: tokenizer.json, jsonl
find_package(CLI11 REQUIRED)             # argument parsing with help, config files and completion data
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)  # XXH3: content hashes at memory speed
# The library's plain functions are built for the oldest x86; beside them it may have some that choose by the machine.
include(CheckCXXSourceCompiles)
set(CMAKE_REQUIRED_LIBRARIES PkgConfig::XXHASH)
check_cxx_source_compiles("#include <xxh_x86dispatch.h>
int main() { return XXH3_128bits_update_dispatch(nullptr, nullptr, 0); }" MILLRACE_XXHASH_DISPATCH)
unset(CMAKE_REQUIRED_LIBRARIES)
find_package(ZLIB REQUIRED)              # gzip inputs
pkg_check_modules(ZSTD REQUIRED IMPORTED_TARGET libzstd)      # zstd inputs
pkg_check_modules(ONIGURUMA REQUIRED oniguruma)  # expressions that no scanner of ours knows; only the header, it is opened at run time
find_package(OpenSSL REQUIRED COMPONENTS Crypto SSL)  # SHA-256, HMAC and MD5 of S3's requests; TLS of the tests' server
pkg_check_modules(YAML REQUIRED IMPORTED_TARGET yaml-0.1)  # cluster and layout files: events with places, the twin of PyYAML's parser
find_package(pugixml REQUIRED)           # the XML that S3 answers
pkg_check_modules(URING REQUIRED IMPORTED_TARGET liburing)  # io_uring: many transfers of local files under way on few threads
pkg_check_modules(CURL REQUIRED libcurl) # HTTP and TLS; only the header, it is opened at run time (it brings 30 libraries)
if(MILLRACE_TESTS)
  find_package(GTest REQUIRED)           # unit tests
endif()

# Arrow's C++ library as pyarrow brings it (from PyPI; Debian has none): Parquet. Found without being imported, so it
# works in pip's build environment too. Its soname holds its version, so build and use must agree on MAJOR.MINOR.
find_package(Python 3.11 QUIET COMPONENTS Interpreter)
if(Python_EXECUTABLE)
  execute_process(COMMAND ${Python_EXECUTABLE} -c
    "import importlib.util, pathlib; print(pathlib.Path(importlib.util.find_spec('pyarrow').origin).parent)"
    OUTPUT_VARIABLE pyarrow_dir OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE pyarrow_missing ERROR_QUIET)
endif()
if(Python_EXECUTABLE AND NOT pyarrow_missing)
  file(GLOB arrow_library ${pyarrow_dir}/libarrow.so.*)
  file(GLOB parquet_library ${pyarrow_dir}/libparquet.so.*)
  file(STRINGS ${pyarrow_dir}/include/arrow/util/config.h pyarrow_version REGEX "ARROW_VERSION_STRING")
  string(REGEX REPLACE ".*\"([0-9]+\\.[0-9]+).*" "\\1" MILLRACE_PYARROW "${pyarrow_version}")
  add_library(pyarrow_cpp INTERFACE)
  target_include_directories(pyarrow_cpp SYSTEM INTERFACE ${pyarrow_dir}/include)
  target_link_libraries(pyarrow_cpp INTERFACE ${parquet_library} ${arrow_library})
else()
  message(STATUS "pyarrow is not there: this build will not read Parquet")
endif()
