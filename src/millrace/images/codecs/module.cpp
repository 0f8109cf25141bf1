// SPDX-License-Identifier: Apache-2.0
// What the program finds in the library.
#include "millrace/images/codecs/codecs.h"

extern "C" {

[[gnu::visibility("default")]] extern const char millrace_images_version[];
const char millrace_images_version[] = MILLRACE_VERSION " " __VERSION__;

[[gnu::visibility("default")]] extern const millrace::images::ImagesApi millrace_images_api;
const millrace::images::ImagesApi millrace_images_api = {
#ifdef MILLRACE_JPEG
    .jpeg = &millrace::images::decode_jpeg,
#else
    .jpeg = nullptr,
#endif
#ifdef MILLRACE_PNG
    .png = &millrace::images::decode_png,
#else
    .png = nullptr,
#endif
#ifdef MILLRACE_WEBP
    .webp = &millrace::images::decode_webp,
#else
    .webp = nullptr,
#endif
};
}
