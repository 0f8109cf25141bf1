// SPDX-License-Identifier: Apache-2.0
#pragma once

// The text of a Python str, for code that runs without the GIL.

#include <cstdint>
#include <string_view>
#include <vector>

#include "millrace/python/errors.h"

namespace millrace::python {

// The UTF-8 of a str, as a view into the object. Lone surrogates have no UTF-8: UnicodeEncodeError, a ValueError.
std::string_view utf8_of(nb::handle text);

// A str whose UTF-8 is written only when it is asked for, to memory that the caller uses again: utf8_of has Python keep
// it for as long as the str lives. The one who makes it holds the GIL and keeps the str alive.
class StrView {
 public:
  explicit StrView(nb::handle text);

  // Bytes of the UTF-8 at most.
  size_t most_bytes() const { return most_bytes_; }
  // Valid until `scratch` is written to again. Needs no GIL. False: lone surrogates.
  bool utf8(std::vector<char>& scratch, std::string_view& text) const;

 private:
  // How Python holds it: UTF-8, or code points of so many bytes each.
  enum class Kind { kUtf8, kOne, kTwo, kFour };
  const void* data_;
  size_t size_;
  size_t most_bytes_;
  Kind kind_;
};

}  // namespace millrace::python
