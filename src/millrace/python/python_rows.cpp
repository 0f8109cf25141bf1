// SPDX-License-Identifier: Apache-2.0
#include "millrace/python/python_rows.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <tuple>
#include <utility>

#include "millrace/formats/json_columns.h"
#include "millrace/loader/row_source.h"
#include "millrace/storage/glob.h"

namespace millrace::python {

namespace {

using loader::Row;
using loader::RowReader;

// What a Python exception means to the loader. REQUIRES: the GIL.
Error error_of(nb::handle exception) {
  const auto is = [&](nb::handle type) { return PyErr_GivenExceptionMatches(exception.ptr(), type.ptr()) != 0; };
  ErrorCode code = ErrorCode::kInternal;
  if (is(nb::module_::import_("millrace._core").attr("CorruptionError"))) {
    code = ErrorCode::kCorruption;
  } else if (is(PyExc_FileNotFoundError)) {
    code = ErrorCode::kNotFound;
  } else if (is(PyExc_ValueError) || is(PyExc_LookupError) || is(PyExc_TypeError)) {
    code = ErrorCode::kInvalidArgument;
  } else if (is(PyExc_ImportError) || is(PyExc_NotImplementedError)) {
    code = ErrorCode::kUnsupported;
  } else if (is(PyExc_OSError)) {
    code = ErrorCode::kUnavailable;
  }
  const auto type =
      nb::cast<std::string>(nb::handle(reinterpret_cast<PyObject*>(Py_TYPE(exception.ptr()))).attr("__name__"));
  const auto text = nb::cast<std::string>(nb::str(exception));
  return Error(code, text.empty() ? type : code == ErrorCode::kInternal ? fmt::format("{}: {}", type, text) : text);
}

// Calls `call` with the GIL; a Python exception becomes an error.
template <class T, class Call>
Result<T> with_gil(const Call& call) {
  const nb::gil_scoped_acquire gil;
  try {
    return call();
  } catch (const nb::python_error& error) {
    return tl::unexpected(error_of(error.value()));
  } catch (const std::exception& error) {  // a value of another type than it should have
    return fail(ErrorCode::kInvalidArgument, "{}", error.what());
  }
}

class PythonRows final : public RowReader {
 public:
  explicit PythonRows(nb::handle rows) : rows_(rows) {}

  Result<std::vector<Row>> read(int64_t shard, int64_t begin, int64_t end) override {
    return with_gil<std::vector<Row>>([&]() -> Result<std::vector<Row>> {
      std::vector<Row> rows;
      for (const nb::handle given : nb::object(rows_.attr("_read")(shard, begin, end))) {
        Row& row = rows.emplace_back();
        if (PyExceptionInstance_Check(given.ptr())) {
          row.error = error_of(given);
          continue;
        }
        auto [key, fields] = nb::cast<std::pair<std::string, nb::list>>(given);
        row.key = std::move(key);
        for (const nb::handle field : fields) {
          const auto [name, value] = nb::cast<std::pair<std::string, nb::bytes>>(field);
          row.fields.emplace_back(name, std::string(value.c_str(), value.size()));
        }
      }
      return rows;
    });
  }

 private:
  const nb::handle rows_;
};

Result<RowReader::Facts> facts_of(nb::handle rows) {
  return with_gil<RowReader::Facts>([&]() -> Result<RowReader::Facts> {
    using Shards = std::vector<std::pair<std::string, int64_t>>;
    auto [name, identity, shards, bytes, window] =
        nb::cast<std::tuple<std::string, std::string, Shards, int64_t, int64_t>>(rows.attr("_facts")());
    RowReader::Facts facts{std::move(name), std::move(identity), {}, bytes, window};
    for (auto& [shard, samples] : shards) {
      if (samples < 0) return fail(ErrorCode::kInvalidArgument, "{}: a shard of {} samples", shard, samples);
      facts.shards.push_back({std::move(shard), samples});
    }
    return facts;
  });
}

std::vector<std::string> find_files(const std::vector<std::string>& patterns) {
  return without_gil([&]() -> Result<std::vector<std::string>> {
    std::vector<std::string> files;
    for (const std::string& given : patterns) {
      ASSIGN_OR_RETURN(const std::vector<std::string> names, expand_names(given));
      for (const std::string& name : names) {
        ASSIGN_OR_RETURN(const std::vector<Match> matches, find_matches(name));
        if (matches.empty()) return fail(ErrorCode::kNotFound, "{}: no such file", name);
        for (const Match& match : matches) files.push_back(match.url);
      }
    }
    return files;
  });
}

}  // namespace

namespace {

// Adds whole lines and returns those that Python must read: those that are not plain JSON objects.
nb::list add_json_lines(formats::JsonColumns& columns, const nb::bytes& lines) {
  std::vector<std::string> unread;
  {
    const std::string_view text(lines.c_str(), lines.size());
    const nb::gil_scoped_release release;
    columns.add(text, [&](std::string_view line) { unread.emplace_back(line); });
  }
  nb::list out;
  for (const std::string& line : unread) out.append(nb::bytes(line.data(), line.size()));
  return out;
}

nb::dict json_columns(const formats::JsonColumns& columns) {
  nb::dict out;
  for (const auto& [name, column] : columns.columns()) {
    out[nb::str(name.data(), name.size())] = nb::make_tuple(column.kinds, column.rows);
  }
  return out;
}

}  // namespace

loader::OpenSource open_rows(nb::handle rows) {
  if (rows.is_none()) return {};
  return [rows](const loader::SourceContext& context) -> Result<std::unique_ptr<order::SampleSource>> {
    ASSIGN_OR_RETURN(RowReader::Facts facts, facts_of(rows));
    return loader::make_row_source(std::move(facts), std::make_unique<PythonRows>(rows), context.metrics,
                                   context.activities);
  };
}

void register_rows(nb::module_& m) {
  nb::class_<formats::JsonColumns>(m, "JsonColumns",
                                   "The kinds of values in the columns of JSON lines (formats/json_columns.h).")
      .def(nb::init<>())
      .def("add", &add_json_lines, nb::arg("lines"), nb::sig("def add(self, lines: bytes) -> list[bytes]"),
           "Adds whole lines. Returns the lines that are not plain JSON objects.")
      .def_prop_ro("rows", &formats::JsonColumns::rows, "The number of lines that were read.")
      .def(
          "columns", &json_columns, nb::sig("def columns(self) -> dict[str, tuple[int, int]]"),
          "A set of kinds (1: null, 2: bool, 4: integer, 8: float, 16: other, 32: an integer of 19 digits or more) and "
          "the number of rows, for each column.");
  m.def("find_files", &find_files, nb::arg("patterns"),
        "The files that braces and wildcards name, in byte order. Raises FileNotFoundError.");
}

}  // namespace millrace::python
