// SPDX-License-Identifier: Apache-2.0
#pragma once

// Opens the library Oniguruma. It is opened when the first regular expression needs it, and is not linked, because a
// distribution's library also exports regcomp and regexec, which would replace those of libc in the whole process
// (oniguruma_library.cpp). The wheel links a copy without these two (oniguruma_linked.cpp). Thread-safe.

#include <oniguruma.h>

#include "millrace/base/status.h"

namespace millrace::tokenizer {

struct Oniguruma {
  decltype(&::onig_new) compile;
  decltype(&::onig_free) release;
  decltype(&::onig_search) search;
  decltype(&::onig_region_new) new_region;
  decltype(&::onig_region_free) free_region;
  decltype(&::onig_error_code_to_str) error_text;
  OnigSyntaxType* syntax;  // Oniguruma's own syntax, as `tokenizers` uses it
  OnigEncodingType* utf8;

  // Opens the library once. Errors: unsupported (the library is missing; what to install).
  [[nodiscard]] static Result<const Oniguruma*> open();
};

// Loads the functions of the library. Errors: as for Oniguruma::open().
[[nodiscard]] Result<Oniguruma> load_oniguruma();

}  // namespace millrace::tokenizer
