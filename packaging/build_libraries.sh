#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Compiles the libraries of libraries.toml into static archives that a shared object can take.
#   build_libraries.sh SOURCES PREFIX
# SOURCES is what fetch_sources.py wrote. Needs a C and a C++ compiler, make, perl, nasm (on x86), cmake, meson and ninja;
# no network. A library that is already in PREFIX in the same version is left alone.
set -euo pipefail
[ $# = 2 ] || { sed -n '3,6s/^# //p' "$0" >&2; exit 2; }
SOURCES=$(realpath "$1")
mkdir -p "$2"
PREFIX=$(realpath "$2")
JOBS=$(nproc)
# Without their assembler code the codecs of video and pictures take several times as long.
SIMD=OFF
[ "$(uname -m)" != x86_64 ] || SIMD=ON
LOG=$PREFIX/log

# No file keeps the path that it was built in: assertions of the libraries would carry it into the wheel.
flags() { echo "-O2 -fPIC -ffile-prefix-map=$SOURCES=. -ffunction-sections -fdata-sections"; }

with_cmake() {
  local source=$1
  shift
  cmake -S "$source" -B build-millrace -Wno-dev -DCMAKE_BUILD_TYPE=Release -DCMAKE_POLICY_VERSION_MINIMUM=3.5 \
    -DCMAKE_INSTALL_PREFIX="$PREFIX" -DCMAKE_INSTALL_LIBDIR=lib -DCMAKE_PREFIX_PATH="$PREFIX" \
    -DCMAKE_C_FLAGS="$(flags)" -DCMAKE_CXX_FLAGS="$(flags)" -DCMAKE_POSITION_INDEPENDENT_CODE=ON \
    -DBUILD_SHARED_LIBS=OFF -DBUILD_TESTING=OFF "$@"
  cmake --build build-millrace --parallel "$JOBS" --target install
}

# write_pkgconfig MODULE LIBRARY: for libraries whose build files write none, or one for /usr. `version` is the loop's.
write_pkgconfig() {
  printf 'Name: %s\nDescription: %s\nVersion: %s\nLibs: -L%s -l%s\nCflags: -I%s\n' "$1" "$1" "$version" \
    "$PREFIX/lib" "$2" "$PREFIX/include" >"$PREFIX/lib/pkgconfig/$1.pc"
}

build_zlib() {
  CFLAGS=$(flags) ./configure --static --prefix="$PREFIX"
  make -j "$JOBS" libz.a
  make install
}
build_zstd() {
  make -C lib -j "$JOBS" CFLAGS="$(flags)" PREFIX="$PREFIX" LIBDIR="$PREFIX/lib" install-static install-includes install-pc
}
build_xxhash() {
  # Its build files leave the functions that choose by the processor out of the archive.
  local objects=(xxhash.o)
  [ "$(uname -m)" != x86_64 ] || objects+=(xxh_x86dispatch.o)
  make CFLAGS="$(flags)" "${objects[@]}"
  ar rcs "$PREFIX/lib/libxxhash.a" "${objects[@]}"
  install -m 644 xxhash.h xxh3.h xxh_x86dispatch.h "$PREFIX/include/"
  write_pkgconfig libxxhash xxhash
}
build_libyaml() {
  with_cmake .
  write_pkgconfig yaml-0.1 yaml
}
build_liburing() {
  ./configure --prefix="$PREFIX" --libdir="$PREFIX/lib" --libdevdir="$PREFIX/lib"
  make ENABLE_SHARED=0 CFLAGS="$(flags)" install
}
build_pugixml() { with_cmake .; }
build_simdjson() { with_cmake . -DSIMDJSON_DEVELOPER_MODE=OFF; }
# Its POSIX functions would take the names of libc's.
build_oniguruma() { with_cmake . -DENABLE_POSIX_API=OFF -DINSTALL_DOCUMENTATION=OFF; }
build_openssl() {
  # For size: what costs time in TLS is assembler code.
  # Its text of flags goes into the library, so there is no map of paths here; names in messages are relative anyway.
  # --openssldir has no openssl.cnf on any distribution: the system's is written for another version.
  ./Configure linux-"$(uname -m)" --prefix="$PREFIX" --libdir=lib --openssldir=/etc/millrace/ssl \
    no-shared no-module no-engine no-dso no-tests no-legacy no-srp no-psk no-dtls no-comp no-cms no-ct no-idea no-bf \
    no-cast no-camellia no-seed no-rc2 no-rc4 no-mdc2 no-md4 no-whirlpool no-sm2 no-sm3 no-sm4 no-aria no-gost no-ts \
    no-rmd160 no-scrypt no-blake2 no-ui-console no-afalgeng no-autoload-config no-cmp no-dsa no-ec2m no-rfc3779 no-siv \
    no-siphash -Os -fPIC
  make -j "$JOBS" build_libs ENGINESDIR=/nonexistent MODULESDIR=/nonexistent
  make install_dev ENGINESDIR=/nonexistent MODULESDIR=/nonexistent
}
# What src/millrace/http asks for: HTTP/1.1, TLS, proxies. It names the CA file itself.
build_curl() {
  with_cmake . -DHTTP_ONLY=ON -DBUILD_CURL_EXE=OFF -DCURL_USE_OPENSSL=ON -DOPENSSL_ROOT_DIR="$PREFIX" \
    -DOPENSSL_USE_STATIC_LIBS=ON -DCURL_DISABLE_OPENSSL_AUTO_LOAD_CONFIG=ON -DCURL_CA_BUNDLE=none -DCURL_CA_PATH=none \
    -DCURL_ZLIB=OFF -DUSE_LIBIDN2=OFF -DCURL_USE_LIBPSL=OFF -DCURL_USE_LIBSSH2=OFF -DCURL_DISABLE_NTLM=ON \
    -DENABLE_MANUAL=OFF -DPICKY_COMPILER=OFF
}
# It takes a relative folder for one below its sources.
build_libjpeg-turbo() {
  with_cmake . -DENABLE_SHARED=OFF -DWITH_TURBOJPEG=OFF -DREQUIRE_SIMD="$SIMD" -DCMAKE_INSTALL_LIBDIR="$PREFIX/lib"
}
build_libpng() { with_cmake . -DPNG_SHARED=OFF -DPNG_TESTS=OFF -DPNG_EXECUTABLES=OFF -DZLIB_ROOT="$PREFIX"; }
build_libwebp() {
  with_cmake . -DWEBP_BUILD_ANIM_UTILS=OFF -DWEBP_BUILD_CWEBP=OFF -DWEBP_BUILD_DWEBP=OFF -DWEBP_BUILD_GIF2WEBP=OFF \
    -DWEBP_BUILD_IMG2WEBP=OFF -DWEBP_BUILD_VWEBP=OFF -DWEBP_BUILD_WEBPINFO=OFF -DWEBP_BUILD_LIBWEBPMUX=OFF \
    -DWEBP_BUILD_WEBPMUX=OFF -DWEBP_BUILD_EXTRAS=OFF
}
build_dav1d() {
  CFLAGS=$(flags) meson setup build-millrace --prefix="$PREFIX" --libdir=lib --buildtype=release --default-library=static \
    -Db_staticpic=true -Denable_tools=false -Denable_tests=false
  ninja -C build-millrace -j "$JOBS" install
}
build_svt-av1() { with_cmake . -DBUILD_APPS=OFF -DBUILD_DEC=OFF -DSVT_AV1_LTO=OFF -DENABLE_NASM="$SIMD"; }
# MP4 in and out, the codecs of robot datasets in, AV1 out, and frames in other formats of pixels. No network, no
# program, nothing that it would find on this machine by itself.
build_ffmpeg() {
  # glibc 2.35 has a new version of hypot, and RHEL 9 and Amazon Linux 2023 have glibc 2.34: the old one will do.
  printf '%s\n' '#ifdef __x86_64__' '__asm__(".symver hypot,hypot@GLIBC_2.2.5");' '#endif' >old_symbols.h
  ./configure --prefix="$PREFIX" --disable-everything --disable-autodetect --disable-programs --disable-doc \
    --disable-network --disable-avdevice --disable-avfilter --disable-swresample --disable-postproc \
    --disable-shared --enable-static --enable-pic --disable-debug --pkg-config=pkg-config --pkg-config-flags=--static \
    --extra-cflags="$(flags) -include $PWD/old_symbols.h" --enable-pthreads --enable-libdav1d --enable-libsvtav1 \
    --enable-decoder=h264,hevc,libdav1d,mpeg4,vp8,vp9,mjpeg --enable-encoder=libsvtav1 --enable-demuxer=mov \
    --enable-muxer=mp4,mov --enable-parser=h264,hevc,av1,mpeg4video,vp8,vp9,mjpeg \
    --enable-bsf=h264_mp4toannexb,hevc_mp4toannexb,extract_extradata,av1_frame_merge,vp9_superframe
  # It keeps its switches as a text, and they name this machine's folders.
  sed -i 's|^#define FFMPEG_CONFIGURATION .*|#define FFMPEG_CONFIGURATION "packaging/build_libraries.sh"|' config.h
  make -j "$JOBS" install-libs install-headers
}
build_fmt() { with_cmake . -DFMT_TEST=OFF -DFMT_DOC=OFF; }
build_nlohmann_json() { with_cmake . -DJSON_BuildTests=OFF; }
build_CLI11() { with_cmake . -DCLI11_BUILD_TESTS=OFF -DCLI11_BUILD_EXAMPLES=OFF -DCLI11_BUILD_DOCS=OFF -DCLI11_SINGLE_FILE=OFF; }
build_tl-expected() {
  install -D -m 644 expected.hpp "$PREFIX/include/tl/expected.hpp"
  mkdir -p "$PREFIX/share/cmake/tl-expected"
  cat >"$PREFIX/share/cmake/tl-expected/tl-expected-config.cmake" <<'CMAKE'
add_library(tl::expected INTERFACE IMPORTED)
get_filename_component(prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
set_target_properties(tl::expected PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${prefix}/include")
CMAKE
}

[ $SIMD = OFF ] || command -v nasm >/dev/null || { echo "build_libraries.sh: nasm is missing" >&2; exit 1; }
mkdir -p "$LOG" "$PREFIX/lib/pkgconfig" "$PREFIX/licenses"
export PKG_CONFIG_LIBDIR=$PREFIX/lib/pkgconfig:$PREFIX/share/pkgconfig
while read -r name version license; do
  [ "$(cat "$LOG/$name.built" 2>/dev/null)" != "$version" ] || continue
  echo "==> $name $version" >&2
  if ! (cd "$SOURCES/$name" && set -e && "build_$name") >"$LOG/$name.log" 2>&1; then
    tail -n 30 "$LOG/$name.log" >&2
    echo "build_libraries.sh: $name did not compile; all of its output is in $LOG/$name.log" >&2
    exit 1
  fi
  install -D -m 644 "$SOURCES/$name/$license" "$PREFIX/licenses/$name/$(basename "$license")"
  echo "$version" >"$LOG/$name.built"
done <"$SOURCES/order"
