// SPDX-License-Identifier: Apache-2.0
#pragma once

// Oniguruma. It is opened when the first regular expression asks for it and not linked, because a distribution's
// library also exports regcomp and regexec, which would take the place of libc's in the whole process
// (oniguruma_library.cpp). The wheel has one without them linked (oniguruma_linked.cpp). Thread-safe.

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
  OnigSyntaxType* syntax;  // its own, which is the one of `tokenizers`
  OnigEncodingType* utf8;

  // Errors: unsupported (the library is not there; what to install).
  [[nodiscard]] static Result<const Oniguruma*> open();
};

// Errors: as Oniguruma::open.
[[nodiscard]] Result<Oniguruma> load_oniguruma();

}  // namespace millrace::tokenizer
