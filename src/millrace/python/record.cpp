// SPDX-License-Identifier: Apache-2.0
#include "millrace/jobs/record.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include "millrace/base/hash/crc32c.h"
#include "millrace/jobs/secrets.h"
#include "millrace/python/errors.h"

namespace millrace::python {

namespace {

void remember(const std::string& folder) {
  without_gil([&]() -> Status {
    ASSIGN_OR_RETURN(std::string ledger, jobs::default_ledger_folder());
    return jobs::remember_training(jobs::Ledger(std::move(ledger)), folder);
  });
}

std::string facts_of_start(const std::string& folder) {
  const GilRelease release;
  return jobs::start_facts(folder);
}

uint32_t checksum(const nb::bytes& data) {
  return crc32c(std::as_bytes(std::span(data.c_str(), data.size())));
}

}  // namespace

void register_record(nb::module_& m) {
  m.def("run_facts", &facts_of_start, nb::arg("folder"),
        "User, host, job, git and environment of a training in `folder`, without secrets, as JSON.");
  m.def("remember_run", &remember, nb::arg("folder"), "Names a record's folder in the ledger. Raises OSError.");
  m.def(
      "without_secrets", [](std::string_view text) { return jobs::without_secrets(text); }, nb::arg("text"),
      "`text` with what looks like a secret replaced by <removed>.");
  m.def(
      "words_without_secrets",
      [](const std::vector<std::string>& words) { return jobs::without_secrets(std::span(words)); }, nb::arg("words"),
      "The same for the words of a command: the word behind `--token` is removed too.");
  m.def("names_secret", &jobs::names_secret, nb::arg("name"), "Whether a setting of this name holds a secret.");
  m.def("crc32c", &checksum, nb::arg("data"), "CRC-32C of the bytes.");
}

}  // namespace millrace::python
