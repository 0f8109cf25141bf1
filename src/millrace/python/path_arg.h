// SPDX-License-Identifier: Apache-2.0
#pragma once

// Paths and URLs as users give them: a str or anything with __fspath__.

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace millrace::python {

struct PathArg {
  std::string text;
};
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

  bool from_python(handle source, uint8_t flags, cleanup_list* cleanup) noexcept {
    make_caster<std::string> text;
    if (PyUnicode_Check(source.ptr())) {
      if (!text.from_python(source, flags, cleanup)) return false;
    } else {
      const object path = steal(PyOS_FSPath(source.ptr()));  // a str, bytes, or an error
      if (!path.is_valid() || !text.from_python(path, flags, cleanup)) {
        PyErr_Clear();
        return false;
      }
    }
    value.text = std::move(text.value);
    return true;
  }
};

}  // namespace nanobind::detail
