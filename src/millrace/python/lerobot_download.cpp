// SPDX-License-Identifier: Apache-2.0
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "millrace/lerobot/download.h"
#include "millrace/python/interruptible.h"
#include "millrace/python/path_arg.h"
#include "millrace/python/results.h"

namespace millrace::python {

namespace {

using Patterns = std::vector<std::string>;

DownloadResult download_py(const std::string& name, const PathArg& out, const std::string& revision,
                           const Patterns& include, const Patterns& exclude, bool replace, bool dry_run,
                           int64_t memory_bytes) {
  lerobot::DownloadOptions options{.name = name, .revision = revision, .target = out.text, .replace = replace};
  options.include = include;
  options.exclude = exclude;
  options.sync.dry_run = dry_run;
  options.sync.engine.memory_bytes = memory_bytes;
  const auto report = interruptible<lerobot::DownloadReport>([&](std::stop_token stop) {
    auto done = lerobot::download_dataset(options, stop);
    if (done && !done->sync.status()) done = tl::unexpected(done->sync.status().error());
    return done;
  });
  DownloadResult d;
  d["repo"] = report.repo;
  d["revision"] = report.revision;
  d["commit"] = report.commit;
  d["output"] = report.target;
  d["copied_files"] = report.sync.copied_files;
  d["copied_bytes"] = report.sync.copied_bytes;
  d["moved_bytes"] = report.sync.moved_bytes;
  d["resumed_bytes"] = report.sync.resumed_bytes;
  d["skipped_files"] = report.sync.skipped_files;
  d["skipped_bytes"] = report.sync.skipped_bytes;
  d["deleted_files"] = report.sync.deleted_files;
  d["retries"] = report.sync.retries;
  d["seconds"] = report.sync.seconds;
  d["warnings"] = report.warnings;
  return d;
}

}  // namespace

void register_lerobot_download(nb::module_& m) {
  m.def(
      "lerobot_download", &download_py, nb::arg("name"), nb::kw_only(), nb::arg("out") = "", nb::arg("revision") = "",
      nb::arg("include") = Patterns(), nb::arg("exclude") = Patterns(), nb::arg("replace") = false,
      nb::arg("dry_run") = false, nb::arg("memory_bytes") = sync::kTransferMemoryBytes,
      "Gets a dataset from the Hugging Face Hub, checked and pinned to one commit; the same as\n"
      "`millrace lerobot download`. A call that was stopped or killed continues when it is made again.\n\n"
      "Args:\n"
      "    name: a name of the organisation lerobot, 'org/name', or 'hf://datasets/org/name[@revision]'.\n"
      "    out: a path or URL; \"\": the name, in the current folder.\n"
      "    revision: a tag, branch or commit; \"\": the newest version tag, or main where there is none.\n"
      "    include, exclude: patterns of rsync; with include only what matches one, and nothing that exclude matches.\n"
      "    replace: where `out` holds another commit, bring this one and remove the files that it does not have.\n"
      "    memory_bytes: as of millrace.sync.\n"
      "Returns: a dict: repo, revision, commit, output, copied_files, copied_bytes, skipped_files, warnings, ...\n"
      "Raises: FileNotFoundError (no such dataset or revision, or a private one), PermissionError (gated, a refused\n"
      "    token), FileExistsError (`out` holds another commit), ConnectionError, millrace.CorruptionError, OSError.");
}

}  // namespace millrace::python
