// SPDX-License-Identifier: Apache-2.0
// In the place of oniguruma_library.cpp where it is linked as an archive (MILLRACE_BUNDLE).
#include "millrace/tokenizer/words/oniguruma_library.h"

namespace millrace::tokenizer {

Result<Oniguruma> load_oniguruma() {
  return Oniguruma{
      .compile = &::onig_new,
      .release = &::onig_free,
      .search = &::onig_search,
      .new_region = &::onig_region_new,
      .free_region = &::onig_region_free,
      .error_text = &::onig_error_code_to_str,
      .syntax = &::OnigSyntaxOniguruma,
      .utf8 = &::OnigEncodingUTF8,
  };
}

}  // namespace millrace::tokenizer
