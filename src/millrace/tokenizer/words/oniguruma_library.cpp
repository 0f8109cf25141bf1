// SPDX-License-Identifier: Apache-2.0
#include "millrace/tokenizer/words/oniguruma_library.h"

#include <dlfcn.h>

namespace millrace::tokenizer {

Result<Oniguruma> load_oniguruma() {
  void* const library = dlopen("libonig.so.5", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    return fail(
        ErrorCode::kUnsupported,
        "this tokenizer has a regular expression that Millrace hands to Oniguruma, and libonig.so.5 is missing "
        "({}): install it (Debian and Ubuntu: libonig5; Fedora, RHEL and Amazon Linux: oniguruma), or the wheel "
        "of millrace-io, which holds it",
        dlerror());
  bool complete = true;
  const auto find = [&]<class T>(T& target, const char* name) {
    // SAFETY: the header declares the symbol of that name with this type.
    target = reinterpret_cast<T>(dlsym(library, name));
    complete &= target != nullptr;
  };
  Oniguruma onig{};
  find(onig.compile, "onig_new");
  find(onig.release, "onig_free");
  find(onig.search, "onig_search");
  find(onig.new_region, "onig_region_new");
  find(onig.free_region, "onig_region_free");
  find(onig.error_text, "onig_error_code_to_str");
  find(onig.syntax, "OnigSyntaxOniguruma");
  find(onig.utf8, "OnigEncodingUTF8");
  if (!complete) return fail(ErrorCode::kUnsupported, "libonig.so.5 lacks what a regular expression needs");
  return onig;
}

}  // namespace millrace::tokenizer
