// SPDX-License-Identifier: Apache-2.0
#pragma once

// Converts paths and URLs that users pass: a str, or an object whose __fspath__ returns a str. As with os.fsencode(),
// lone surrogates of a str represent bytes that are not UTF-8.

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace millrace::python {

struct PathArg {
  std::string text;
};
// Returns a path as os.fsdecode() does: bytes that are not UTF-8 become lone surrogates.
inline nanobind::str path_text(std::string_view path) {
  return nanobind::steal<nanobind::str>(
      PyUnicode_DecodeUTF8(path.data(), static_cast<Py_ssize_t>(path.size()), "surrogateescape"));
}
using OneOrManyPaths = std::variant<PathArg, std::vector<PathArg>>;

inline std::vector<std::string> to_paths(OneOrManyPaths given) {
  if (auto* one = std::get_if<PathArg>(&given)) return {std::move(one->text)};
  std::vector<std::string> paths;
  for (PathArg& path : std::get<std::vector<PathArg>>(given)) paths.push_back(std::move(path.text));
  return paths;
}

}  // namespace millrace::python

namespace nanobind::detail {

template <>
struct type_caster<millrace::python::PathArg> {
  NB_TYPE_CASTER(millrace::python::PathArg, const_name("str | os.PathLike[str]"))

  bool from_python(handle source, uint8_t /*flags*/, cleanup_list* /*cleanup*/) noexcept {
    const object path = steal(PyOS_FSPath(source.ptr()));  // a str, bytes, or an error
    const bool is_text = path.is_valid() && PyUnicode_Check(path.ptr());
    const object bytes = is_text ? steal(PyUnicode_AsEncodedString(path.ptr(), "utf-8", "surrogateescape")) : object();
    if (!bytes.is_valid()) {
      PyErr_Clear();
      return false;
    }
    value.text.assign(PyBytes_AS_STRING(bytes.ptr()), static_cast<size_t>(PyBytes_GET_SIZE(bytes.ptr())));
    return true;
  }
};

}  // namespace nanobind::detail
