// SPDX-License-Identifier: Apache-2.0
#include "millrace/python/str_view.h"

#include <span>

#include "millrace/base/text/utf8.h"

namespace millrace::python {
std::string_view utf8_of(nb::handle text) {
  if (PyUnicode_Check(text.ptr()) == 0)
    throw nb::type_error(fmt::format("expected a str, not {}", nb::type_name(text.type()).c_str()).c_str());
  Py_ssize_t size = 0;
  const char* const data = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
  if (data == nullptr) throw nb::python_error();
  return {data, static_cast<size_t>(size)};
}

StrView::StrView(nb::handle text) {
#ifndef Py_LIMITED_API                             // which doesn't say how a str is held
  constexpr Py_ssize_t kMostCharacters = 1 << 22;  // characters whose UTF-8 fits the scratch memory
  PyObject* const object = text.ptr();
  const bool is_plain = PyUnicode_Check(object) != 0 && PyUnicode_IS_COMPACT(object) && !PyUnicode_IS_ASCII(object) &&
                        PyUnicode_GET_LENGTH(object) <= kMostCharacters;
  // SAFETY: a compact str that is not ASCII is one.
  if (is_plain && reinterpret_cast<PyCompactUnicodeObject*>(object)->utf8 == nullptr) {
    data_ = PyUnicode_DATA(object);
    size_ = static_cast<size_t>(PyUnicode_GET_LENGTH(object));
    const int kind = PyUnicode_KIND(object);
    kind_ = kind == PyUnicode_1BYTE_KIND ? Kind::kOne : kind == PyUnicode_2BYTE_KIND ? Kind::kTwo : Kind::kFour;
    most_bytes_ = size_ * (kind_ == Kind::kOne ? 2 : kind_ == Kind::kTwo ? 3 : 4);
    return;
  }
#endif
  const std::string_view utf8 = utf8_of(text);
  data_ = utf8.data();
  size_ = most_bytes_ = utf8.size();
  kind_ = Kind::kUtf8;
}

bool StrView::utf8(std::vector<char>& scratch, std::string_view& text) const {
  if (kind_ == Kind::kUtf8) {
    text = {static_cast<const char*>(data_), size_};
    return true;
  }
  const size_t room = size_ * 4 + 64;
  if (scratch.size() < room) scratch.resize(room);
  const auto write = [&](const auto* data) { return write_utf8(std::span(data, size_), scratch.data()); };
  const char* const end = kind_ == Kind::kOne   ? write(static_cast<const uint8_t*>(data_))
                          : kind_ == Kind::kTwo ? write(static_cast<const uint16_t*>(data_))
                                                : write(static_cast<const uint32_t*>(data_));
  if (end == nullptr) return false;
  text = {scratch.data(), static_cast<size_t>(end - scratch.data())};
  return true;
}

}  // namespace millrace::python
