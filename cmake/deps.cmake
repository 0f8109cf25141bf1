# Every dependency of the C++ core, with the reason it is here. All come from Debian by name (see `dev`); the wheel takes
# them from packaging/libraries.toml.
find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)

option(MILLRACE_BUNDLE "Link every library from an archive, libcurl and Oniguruma too, as the wheel does" OFF)
set(MILLRACE_PYARROW_DIRS "" CACHE STRING "Folders of the pyarrow versions to read Parquet with; empty: the one of Python_EXECUTABLE")

# All that is missing is told at once, each with the names of its packages.
set(missing_libraries "")
set(missing_packages "")
macro(millrace_missing name debian rpm)
  string(APPEND missing_libraries "\n  ${name} (Debian, Ubuntu: ${debian}; Fedora, RHEL: ${rpm})")
  string(APPEND missing_packages " ${debian}")
endmacro()
macro(millrace_package name debian rpm)
  find_package(${name} QUIET ${ARGN})
  if(NOT ${name}_FOUND)
    millrace_missing(${name} ${debian} ${rpm})
  endif()
endmacro()
macro(millrace_pkgconfig variable module debian rpm)
  pkg_check_modules(${variable} QUIET IMPORTED_TARGET ${module})
  if(NOT ${variable}_FOUND)
    millrace_missing(${module} ${debian} ${rpm})
  endif()
endmacro()

millrace_package(tl-expected libexpected-dev expected-devel)       # Result<T>: std::expected is C++23
millrace_package(fmt libfmt-dev fmt-devel)                         # messages: <format> is missing in g++ 12; its compiled half is base/fmt_library.cpp
millrace_package(nlohmann_json nlohmann-json3-dev json-devel)      # small JSON (what others wrote, CLI output), only in .cpp files
millrace_package(simdjson libsimdjson-dev simdjson-devel)          # JSON read fast: tokenizer.json, jsonl, manifests, records
millrace_package(CLI11 libcli11-dev cli11-devel)                   # argument parsing with help, config files and completion data
millrace_pkgconfig(XXHASH libxxhash libxxhash-dev xxhash-devel)    # XXH3: content hashes at memory speed
millrace_package(ZLIB zlib1g-dev zlib-devel)                       # gzip inputs
millrace_pkgconfig(ZSTD libzstd libzstd-dev libzstd-devel)         # zstd inputs
millrace_pkgconfig(ONIGURUMA oniguruma libonig-dev oniguruma-devel)  # expressions that no scanner of ours knows; the header, unless bundled: it is opened at run time
millrace_package(OpenSSL libssl-dev openssl-devel COMPONENTS Crypto SSL)  # SHA-256, HMAC and MD5 of S3's requests; TLS of the tests' server
millrace_pkgconfig(YAML yaml-0.1 libyaml-dev libyaml-devel)        # cluster and layout files: events with places, the twin of PyYAML's parser
millrace_package(pugixml libpugixml-dev pugixml-devel)             # the XML that S3 answers
millrace_pkgconfig(URING liburing liburing-dev liburing-devel)     # io_uring: many transfers of local files under way on few threads
millrace_pkgconfig(CURL libcurl libcurl4-openssl-dev libcurl-devel)  # HTTP and TLS; the header, unless bundled: it is opened at run time (it brings 30 libraries)
if(MILLRACE_TESTS)
  millrace_package(GTest libgtest-dev,libgmock-dev gtest-devel,gmock-devel)  # unit tests
endif()
if(missing_libraries)
  string(REPLACE "," " " missing_packages "${missing_packages}")
  message(FATAL_ERROR "Millrace needs libraries that are not here:${missing_libraries}\n"
    "On Debian or Ubuntu: apt-get install${missing_packages}\n"
    "Where you may not install packages, take the wheel, which needs none of them: pip install millrace-io")
endif()

# xxHash's plain functions are built for the oldest x86; beside them it may have some that choose by the machine.
include(CheckCXXSourceCompiles)
set(CMAKE_REQUIRED_LIBRARIES PkgConfig::XXHASH)
check_cxx_source_compiles("#include <xxh_x86dispatch.h>
int main() { return XXH3_128bits_update_dispatch(nullptr, nullptr, 0); }" MILLRACE_XXHASH_DISPATCH)
unset(CMAKE_REQUIRED_LIBRARIES)

# Arrow's C++ library as pyarrow brings it (from PyPI; Debian has none): Parquet. Found without being imported, so it
# works in pip's build environment too. Its soname holds its version, MAJOR * 100 + MINOR.
find_package(Python 3.11 QUIET COMPONENTS Interpreter)
if(Python_EXECUTABLE AND NOT MILLRACE_PYARROW_DIRS)
  execute_process(COMMAND ${Python_EXECUTABLE} -c
    "import importlib.util, pathlib; print(pathlib.Path(importlib.util.find_spec('pyarrow').origin).parent)"
    OUTPUT_VARIABLE pyarrow_dir OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
set(MILLRACE_PYARROW_SONAMES "")
foreach(folder IN LISTS MILLRACE_PYARROW_DIRS pyarrow_dir)
  file(GLOB arrow_library ${folder}/libarrow.so.*)
  file(GLOB parquet_library ${folder}/libparquet.so.*)
  string(REGEX MATCH "[0-9]+$" soname "${arrow_library}")
  if(NOT soname OR NOT parquet_library)
    message(FATAL_ERROR "${folder} is no pyarrow: it holds no libarrow.so.NUMBER and libparquet.so.NUMBER")
  endif()
  add_library(pyarrow_${soname} INTERFACE)
  target_include_directories(pyarrow_${soname} SYSTEM INTERFACE ${folder}/include)
  target_link_libraries(pyarrow_${soname} INTERFACE ${parquet_library} ${arrow_library})
  list(APPEND MILLRACE_PYARROW_SONAMES ${soname})
endforeach()
if(NOT MILLRACE_PYARROW_SONAMES)
  message(STATUS "pyarrow is not there: this build will not read Parquet")
endif()

# What a module of codecs links: shared libraries, or as the wheel archives and all that they need.
function(millrace_link_codec target name)
  if(MILLRACE_BUNDLE)
    target_include_directories(${target} SYSTEM PRIVATE ${${name}_STATIC_INCLUDE_DIRS})
    # The assembler code of these archives refers to their own data directly.
    target_link_options(${target} PRIVATE -Wl,-Bsymbolic)
    target_link_libraries(${target} PRIVATE ${${name}_STATIC_LDFLAGS})
  else()
    target_link_libraries(${target} PRIVATE PkgConfig::${name})
  endif()
endfunction()

# FFmpeg: frames of videos. Its major version is part of every soname, so what was built with one runs with that one.
pkg_check_modules(FFMPEG IMPORTED_TARGET libavformat>=59 libavcodec>=59 libavutil>=57 libswscale>=6)
if(MILLRACE_BUNDLE)
  set(MILLRACE_FFMPEG_INSTALL "the wheel brings it: reinstall millrace-io, or take the command and the module from one wheel")
elseif(FFMPEG_FOUND)
  set(MILLRACE_FFMPEG_INSTALL "video needs the FFmpeg that this build was made with: apt-get install")
  foreach(library avformat avcodec avutil swscale)
    string(REGEX MATCH "^[0-9]+" major "${FFMPEG_lib${library}_VERSION}")
    string(APPEND MILLRACE_FFMPEG_INSTALL " lib${library}${major}")
  endforeach()
else()
  set(MILLRACE_FFMPEG_INSTALL "apt-get install libavformat-dev libavcodec-dev libavutil-dev libswscale-dev, then build again")
  message(STATUS "FFmpeg is not there: this build will not read video (${MILLRACE_FFMPEG_INSTALL})")
endif()

# Pictures: each codec where it is found (src/millrace/images/); a wheel has all.
set(needed)
if(MILLRACE_BUNDLE)
  set(needed REQUIRED)
endif()
pkg_check_modules(JPEG ${needed} IMPORTED_TARGET libjpeg)
pkg_check_modules(PNG ${needed} IMPORTED_TARGET libpng)
pkg_check_modules(WEBP ${needed} IMPORTED_TARGET libwebp)
if(MILLRACE_BUNDLE)
  set(MILLRACE_IMAGES_INSTALL "${MILLRACE_FFMPEG_INSTALL}")
else()
  set(MILLRACE_IMAGES_INSTALL "apt-get install libjpeg62-turbo-dev libpng-dev libwebp-dev, then build again")
endif()
