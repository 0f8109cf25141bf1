# Every dependency of the C++ core, with the reason it is here. All come from Debian by name (see `dev`).
find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)
find_package(tl-expected REQUIRED)       # Result<T>: std::expected is C++23
find_package(fmt REQUIRED)               # messages: <format> is missing in g++ 12; header-only, so no shared library
find_package(nlohmann_json REQUIRED)     # small JSON (manifests, records, CLI output), only in .cpp files
find_package(simdjson REQUIRED)          # large JSON read fast: tokenizer.json, jsonl
find_package(CLI11 REQUIRED)             # argument parsing with help, config files and completion data
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)  # XXH3: content hashes at memory speed
pkg_check_modules(ONIGURUMA REQUIRED oniguruma)  # expressions that no scanner of ours knows; only the header, it is opened at run time
if(MILLRACE_TESTS)
  find_package(GTest REQUIRED)           # unit tests
endif()
