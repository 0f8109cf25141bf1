// SPDX-License-Identifier: Apache-2.0
#pragma once

// The text of a Python str, for code that runs without the GIL.

#include <cstdint>
#include <string_view>
#include <vector>

#include "millrace/python/errors.h"

namespace millrace::python {

// Returns the UTF-8 of a str as a view into the object. Raises UnicodeEncodeError, a ValueError, for lone surrogates,
// which have no UTF-8.
std::string_view utf8_of(nb::handle text);

// A str whose UTF-8 is written on request, into memory that the caller reuses. utf8_of, in contrast, makes Python keep
// the UTF-8 as long as the str lives. REQUIRES, at construction: the GIL. The caller keeps the str alive.
class StrView {
 public:
  explicit StrView(nb::handle text);

  // Returns an upper bound of the bytes of its UTF-8.
  size_t most_bytes() const { return most_bytes_; }
  // Sets `text`, which is valid until `scratch` is written to again. Needs no GIL. Returns false for lone surrogates.
  bool utf8(std::vector<char>& scratch, std::string_view& text) const;

 private:
  // The form in which Python stores the str: UTF-8, or code points of this many bytes.
  enum class Kind { kUtf8, kOne, kTwo, kFour };
  const void* data_;
  size_t size_;
  size_t most_bytes_;
  Kind kind_;
};

}  // namespace millrace::python
