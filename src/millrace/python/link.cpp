// SPDX-License-Identifier: Apache-2.0
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "millrace/base/text/units.h"
#include "millrace/link/release.h"
#include "millrace/link/status.h"
#include "millrace/link/wait.h"
#include "millrace/python/interruptible.h"
#include "millrace/python/path_arg.h"
#include "millrace/python/results.h"

namespace millrace::python {

namespace {

using link::LinkedPath;

link::LinkedPath linked_py(const PathArg& path) {
  return unwrap(link::find_linked(unwrap(link::links_folder()), path.text));
}

std::vector<std::string> order_py(const LinkedPath& path, const std::vector<PathArg>& given, const char* name) {
  std::vector<std::string> lines;
  for (const PathArg& each : given) lines.push_back(each.text);
  return unwrap(link::order_of(path.config, lines, name));
}

LinkStatusResult status_dict(const link::LinkConfig& config, const link::LinkHome& home) {
  constexpr size_t kShown = 20;
  link::LinkStatus status = without_gil([&] { return link::read_status(home, kShown); });
  const auto number = [&](const char* name) { return parse_whole(status.facts[name]).value_or(0); };
  LinkStatusResult d;
  d["name"] = config.name;
  d["directory"] = config.directory;
  d["url"] = config.url;
  d["running"] = status.running;
  d["doing"] = status.facts["doing"];
  d["behind_s"] = status.behind_s;
  d["silent_since"] = status.silent_since > 0 ? nb::cast(status.silent_since) : nb::none();
  d["files"] = status.counts.files;
  d["bytes"] = status.counts.bytes;
  d["proven"] = status.counts.proven;
  d["released"] = status.counts.released;
  d["released_bytes"] = status.counts.released_bytes;
  d["unfinished"] = number("postponed");
  d["passed"] = number("passed");
  d["waiting"] = number("waiting");
  d["last_sweep"] = status.facts["last_sweep"].empty() ? nb::none() : nb::cast(number("last_sweep"));
  d["error"] = status.facts["error"];
  d["not_deleted"] = status.facts["not_deleted"];
  d["conflicts"] = status.counts.conflicts;
  d["problems"] = status.counts.problems;
  nb::list conflicts, problems;
  for (const link::Conflict& each : status.conflicts) {
    nb::dict conflict;
    conflict["path"] = each.path;
    conflict["time"] = each.time;
    conflict["reason"] = each.reason;
    conflict["outcome"] = each.outcome;
    conflicts.append(conflict);
  }
  for (const link::Problem& each : status.problems) {
    nb::dict problem;
    problem["path"] = each.path;
    problem["since"] = each.since;
    problem["error"] = each.error;
    problems.append(problem);
  }
  d["latest_conflicts"] = conflicts;
  d["latest_problems"] = problems;
  return d;
}

LinkStatusResult link_status_py(const PathArg& path) {
  const LinkedPath linked = linked_py(path);
  return status_dict(linked.config, linked.home);
}

nb::typed<nb::list, LinkStatusResult> link_statuses_py() {
  const std::string links = unwrap(link::links_folder());
  nb::typed<nb::list, LinkStatusResult> found;
  for (const link::LinkConfig& config : without_gil([&] { return link::read_links(links); })) {
    found.append(status_dict(config, link::home_of(links, config.name)));
  }
  return found;
}

LinkWaitResult link_wait_py(const PathArg& path, std::optional<double> timeout) {
  const LinkedPath linked = linked_py(path);
  std::optional<std::chrono::duration<double>> within;
  if (timeout) within = std::chrono::duration<double>(*timeout);
  const auto report = interruptible<link::WaitReport>([&](std::stop_token stop) {
    return link::wait_for(linked.config, linked.home, linked.below, within, stop, nullptr);
  });
  LinkWaitResult d;
  d["files"] = report.files;
  d["bytes"] = report.bytes;
  d["proofs"] = report.proofs;
  d["seconds"] = report.seconds;
  return d;
}

LinkReleaseResult link_release_py(const PathArg& path, double older_than, double keep_free,
                                  const std::vector<std::string>& pins, const std::vector<PathArg>& next_use,
                                  bool dry_run) {
  if (!(keep_free >= 0 && keep_free <= 1)) throw nb::value_error("keep_free is a share of the file system: 0 to 1");
  const LinkedPath linked = linked_py(path);
  link::ReleaseOptions options{.home = linked.home,
                               .below = linked.below,
                               .older_than_s = older_than,
                               .keep_free = keep_free,
                               .pins = pins,
                               .next_use = order_py(linked, next_use, "next_use"),
                               .dry_run = dry_run};
  std::map<std::string, std::string> kept;
  options.on_file = [&](const std::string& file, int64_t, const std::string& left) {
    constexpr size_t kMostTold = 1000;
    if (!left.empty() && kept.size() < kMostTold) kept.emplace(file, left);
  };
  const auto report =
      interruptible<link::ReleaseReport>([&](const std::stop_token& stop) -> Result<link::ReleaseReport> {
        ASSIGN_OR_RETURN(const auto state, link::LinkState::open(linked.home.state_path()));
        ASSIGN_OR_RETURN(const Location here, open_url(linked.config.directory));
        return link::release(linked.config, here, *state, options, stop);
      });
  LinkReleaseResult d;
  d["files"] = report.files;
  d["bytes"] = report.bytes;
  d["left"] = report.left;
  d["reasons"] = kept;
  d["free_share"] = report.free_share;
  return d;
}

LinkRestoreResult link_restore_py(const PathArg& path, const std::vector<PathArg>& order, bool dry_run) {
  const LinkedPath linked = linked_py(path);
  const link::RestoreOptions options{
      .below = linked.below, .order = order_py(linked, order, "order"), .hsm = {}, .dry_run = dry_run, .on_file = {}};
  const auto report =
      interruptible<link::RestoreReport>([&](const std::stop_token& stop) -> Result<link::RestoreReport> {
        ASSIGN_OR_RETURN(const auto state, link::LinkState::open(linked.home.state_path()));
        ASSIGN_OR_RETURN(const Location here, open_url(linked.config.directory));
        ASSIGN_OR_RETURN(const Location there, open_url(linked.config.url));
        ASSIGN_OR_RETURN(const auto engine, sync::TransferEngine::create());
        auto done = link::restore(linked.config, here, there, *state, *engine, options, stop, nullptr);
        if (done && done->first_failure) return tl::unexpected(*done->first_failure);
        return done;
      });
  LinkRestoreResult d;
  d["files"] = report.files;
  d["bytes"] = report.bytes;
  return d;
}

}  // namespace

void register_link(nb::module_& m) {
  m.def("link_status", &link_status_py, nb::arg("path"),
        "What the link that `path` lies in did, what waits and what went wrong; the same as `millrace link status`.\n\n"
        "Returns: a dict: name, directory, url, running, behind_s (seconds), files, error, problems, conflicts, ...\n"
        "Raises: FileNotFoundError (`path` lies in no link).");
  m.def("link_statuses", &link_statuses_py, "The same of each link of this user and machine, by name.");
  m.def("link_wait", &link_wait_py, nb::arg("path"), nb::kw_only(), nb::arg("timeout") = nb::none(),
        "Returns when every file below `path` is proven to be in the bucket, in the version that it has; the same as\n"
        "`millrace link wait`.\n\n"
        "Args:\n"
        "    path: a file or a folder of a link that a process runs on this machine.\n"
        "    timeout: seconds; None: for ever.\n"
        "Returns: a dict: files, bytes, proofs (how many files by which proof), seconds.\n"
        "Raises: FileNotFoundError (no such path, or it lies in no link), TimeoutError (it names the first file that\n"
        "    is not there yet), ConnectionError (files wait, and no process runs the link).");
  m.def("link_release", &link_release_py, nb::arg("path"), nb::kw_only(), nb::arg("older_than") = 0.0,
        nb::arg("keep_free") = 0.0, nb::arg("pins") = std::vector<std::string>(), nb::arg("next_use") = nb::tuple(),
        nb::arg("dry_run") = false,
        nb::sig("def link_release(path: str | os.PathLike[str], *, older_than: float = 0.0, keep_free: float = 0.0, "
                "pins: Sequence[str] = (), next_use: Sequence[str | os.PathLike[str]] = (), dry_run: bool = False) -> "
                "LinkReleaseResult"),
        "Gives the blocks of files back whose content is proven to be in the bucket; the same as\n"
        "`millrace link release`.\n\n"
        "Args:\n"
        "    path: a file or a folder of a link.\n"
        "    older_than: only files that nobody has used for this many seconds.\n"
        "    keep_free: stop when this share of the file system is free, 0 to 1; 0: all that may go.\n"
        "    pins: rsync's patterns of files that stay, beside those of the link.\n"
        "    next_use: paths or URLs in the order of their next use; with keep_free they go last, the latest used "
        "first.\n"
        "Returns: a dict: files, bytes, left (files that stay), reasons (why, by path, of 1000 of them), free_share.\n"
        "Raises: FileNotFoundError, PermissionError (root, who would read zeros), NotImplementedError (a file system\n"
        "    without holes or attributes).");
  m.def("link_restore", &link_restore_py, nb::arg("path"), nb::kw_only(), nb::arg("order") = nb::tuple(),
        nb::arg("dry_run") = false,
        nb::sig("def link_restore(path: str | os.PathLike[str], *, order: Sequence[str | os.PathLike[str]] = (), "
                "dry_run: bool = False) -> LinkRestoreResult"),
        "Brings the content of released files back; the same as `millrace link restore`.\n\n"
        "Args:\n"
        "    path: a file or a folder of a link.\n"
        "    order: paths or URLs of files that come first, in this order.\n"
        "Returns: a dict: files, bytes.\n"
        "Raises: FileNotFoundError, OSError (no space), ConnectionError; when single files fail the rest is brought\n"
        "    first.");
}

}  // namespace millrace::python
