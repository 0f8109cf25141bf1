// SPDX-License-Identifier: Apache-2.0
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include "millrace/base/text/units.h"
#include "millrace/loader/dataset_reader.h"
#include "millrace/python/arrays.h"
#include "millrace/python/interruptible.h"
#include "millrace/python/path_arg.h"

namespace millrace::python {

namespace {

using loader::DatasetReader;
using loader::StoredSample;

struct PyDataset {
  std::unique_ptr<DatasetReader> reader;
};

void init(PyDataset* self, OneOrManyPaths shards, std::string ids_field, std::string cache,
          std::string_view cache_bytes) {
  const std::vector<std::string> paths = to_paths(std::move(shards));
  const loader::DatasetOptions options{std::move(ids_field), std::move(cache),
                                       unwrap(with_context(parse_bytes(cache_bytes), "cache_bytes"))};
  new (self) PyDataset{interruptible<std::unique_ptr<DatasetReader>>(
      [&](const std::stop_token& stop) { return DatasetReader::open(paths, options, stop); })};
}

// What `call(stop_token)` answers. Ctrl-C ends it while a server is waited for.
template <class T>
T ask(PyDataset& self, const std::function<Result<T>(const std::stop_token&)>& call) {
  if (self.reader->waits_for_server()) return interruptible<T>(call);
  return without_gil([&] { return call({}); });
}

nb::dict read(PyDataset& self, int64_t number) {
  const StoredSample sample =
      ask<StoredSample>(self, [&](const auto& stop) { return self.reader->read(number, stop); });
  nb::dict fields;
  fields["__key__"] = nb::str(sample.key.data(), sample.key.size());
  for (const auto& [name, data] : sample.fields) {
    fields[nb::str(name.data(), name.size())] = nb::bytes(data.data(), data.size());
  }
  return fields;
}

}  // namespace

void register_dataset(nb::module_& m) {
  nb::class_<PyDataset>(m, "DatasetReader", "Reads samples of shards by number; use millrace.Dataset.")
      .def("__init__", &init, nb::arg("shards"), nb::arg("ids_field") = "", nb::arg("cache") = "",
           nb::arg("cache_bytes") = "0")
      .def("__len__", [](PyDataset& self) { return self.reader->size(); })
      .def("read", &read, nb::arg("number"), nb::sig("def read(self, number: int) -> dict[str, str | bytes]"))
      .def(
          "read_ids",
          [](PyDataset& self, int64_t number) {
            return to_array(ask<std::vector<uint32_t>>(
                self, [&](const auto& stop) { return self.reader->read_ids(number, stop); }));
          },
          nb::arg("number"), nb::sig("def read_ids(self, number: int) -> numpy.typing.NDArray[numpy.uint32]"));
}

}  // namespace millrace::python
