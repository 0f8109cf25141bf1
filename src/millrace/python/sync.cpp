// SPDX-License-Identifier: Apache-2.0
#include "millrace/sync/sync.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <deque>
#include <iterator>
#include <map>
#include <memory>

#include "millrace/base/text/strings.h"
#include "millrace/python/interruptible.h"
#include "millrace/python/path_arg.h"
#include "millrace/python/results.h"
#include "millrace/sync/cp.h"
#include "millrace/sync/ls.h"
#include "millrace/sync/rm.h"
#include "millrace/sync/stage.h"
#include "millrace/sync/verify.h"

namespace millrace::python {

namespace {

using Rules = std::vector<std::string>;  // "+ PATTERN", "- PATTERN"

sync::Filter filter_of(const Rules& rules) {
  sync::Filter filter;
  for (const std::string& rule : rules) unwrap(filter.add_lines(rule, "filters"));
  return filter;
}

template <class Dict>
Dict report_dict(const sync::SyncReport& report) {
  Dict d;
  d["copied_files"] = report.copied_files;
  d["copied_bytes"] = report.copied_bytes;
  d["moved_bytes"] = report.moved_bytes;
  d["server_bytes"] = report.server_bytes;
  d["resumed_bytes"] = report.resumed_bytes;
  d["saved_bytes"] = report.saved_bytes();
  d["skipped_files"] = report.skipped_files;
  d["skipped_bytes"] = report.skipped_bytes;
  d["deleted_files"] = report.deleted_files;
  d["deleted_bytes"] = report.deleted_bytes;
  d["extra_files"] = report.extra_files;
  d["removed_files"] = report.removed_files;
  d["made_folders"] = report.made_folders;
  d["set_folders"] = report.set_folders;
  d["passed"] = report.passed;
  d["refused"] = report.refused;
  d["retries"] = report.retries;
  d["seconds"] = report.seconds;
  return d;
}

using Texts = std::map<std::string, std::string>;

// What an object in s3:// gets beside its bytes.
struct ObjectArgs {
  const Texts& headers;
  const std::optional<Texts>& metadata;
  const std::optional<Texts>& tags;
};

sync::ObjectChanges changes_of(const ObjectArgs& args) {
  sync::ObjectChanges changes{.headers = {}, .metadata = {}, .tags = args.tags};
  for (const auto& [name, value] : args.headers) {
    const auto* const field =
        std::find_if(std::begin(kObjectHeaderFields), std::end(kObjectHeaderFields),
                     [&](const ObjectHeaderField& each) { return each.name == lower_case(name); });
    if (field == std::end(kObjectHeaderFields)) {
      throw nb::value_error(fmt::format("headers: {} is not one that an object keeps: Content-Type, Content-Encoding, "
                                        "Content-Language, Content-Disposition, Cache-Control, Expires",
                                        name)
                                .c_str());
    }
    changes.headers.*field->value = value;
  }
  if (args.metadata) {
    changes.metadata.emplace();
    for (const auto& [name, value] : *args.metadata) (*changes.metadata)[lower_case(name)] = value;
  }
  return changes;
}

// Raises when any part of a run failed, as the verbs exit with 1.
Result<sync::SyncReport> whole(Result<sync::SyncReport> report) {
  if (report) RETURN_IF_ERROR(report->status());
  return report;
}

TransferResult cp_or_mv(decltype(sync::cp)& verb, const PathArg& source, const PathArg& target, bool recursive,
                        const Rules& filters, bool follow_links, bool posix, bool records, bool dry_run,
                        int64_t memory_bytes, const ObjectArgs& object) {
  sync::SyncOptions options;
  options.transfer.object = changes_of(object);
  options.engine.memory_bytes = memory_bytes;
  options.filter = filter_of(filters);
  options.follow_links = follow_links;
  options.transfer.posix = posix;
  options.record = options.transfer.sidecar = records;
  options.dry_run = dry_run;
  return report_dict<TransferResult>(interruptible<sync::SyncReport>(
      [&](std::stop_token stop) { return whole(verb(source.text, target.text, recursive, options, stop, nullptr)); }));
}

TransferResult cp_py(const PathArg& source, const PathArg& target, bool recursive, const Rules& filters,
                     bool follow_links, bool posix, bool records, bool dry_run, int64_t memory_bytes,
                     const Texts& headers, const std::optional<Texts>& metadata, const std::optional<Texts>& tags) {
  return cp_or_mv(sync::cp, source, target, recursive, filters, follow_links, posix, records, dry_run, memory_bytes,
                  {headers, metadata, tags});
}

TransferResult mv_py(const PathArg& source, const PathArg& target, bool recursive, const Rules& filters, bool posix,
                     bool records, bool dry_run, int64_t memory_bytes, const Texts& headers,
                     const std::optional<Texts>& metadata, const std::optional<Texts>& tags) {
  return cp_or_mv(sync::mv, source, target, recursive, filters, false, posix, records, dry_run, memory_bytes,
                  {headers, metadata, tags});
}

TransferResult sync_py(const PathArg& source, const PathArg& target, const Rules& filters, bool delete_extra,
                       std::optional<int64_t> max_delete, std::string_view compare, bool follow_links, bool posix,
                       bool records, bool dry_run, int64_t memory_bytes, const Texts& headers,
                       const std::optional<Texts>& metadata, const std::optional<Texts>& tags) {
  sync::SyncOptions options;
  options.transfer.object = changes_of({headers, metadata, tags});
  options.engine.memory_bytes = memory_bytes;
  options.filter = filter_of(filters);
  if (compare == "checksum") {
    options.compare = sync::CompareBy::kChecksum;
  } else if (compare == "size") {
    options.compare = sync::CompareBy::kSize;
  } else if (compare != "usual") {
    throw nb::value_error("compare: expected 'usual', 'checksum' or 'size'");
  }
  options.delete_extra = delete_extra;
  options.max_delete = max_delete;
  options.follow_links = follow_links;
  options.transfer.posix = posix;
  options.record = options.transfer.sidecar = records;
  options.dry_run = dry_run;
  return report_dict<TransferResult>(interruptible<sync::SyncReport>(
      [&](std::stop_token stop) { return whole(sync::sync(source.text, target.text, options, stop)); }));
}

ListEntry entry_dict(const sync::LsEntry& entry) {
  ListEntry d;
  d["path"] = path_text(entry.path);
  d["type"] = entry.is_folder ? "folder" : entry.kind == sync::Entry::Kind::kFile ? "object" : "other";
  d["size"] = entry.info.size;
  d["modified"] = entry.info.modified.as_seconds();
  d["version"] = entry.info.version;
  return d;
}

// The result of `ls`: an iterator that holds one page, whatever the number of entries.
class PyListing {
 public:
  PyListing(const std::string& url, bool recursive, const Rules& filters) {
    sync::LsOptions options{.recursive = recursive};
    options.filter = filter_of(filters);
    listing_ = interruptible<std::unique_ptr<sync::Listing>>(
        [&](std::stop_token) { return sync::Listing::open(url, options, stop_.get_token()); });
  }
  ~PyListing() {
    const GilRelease release;
    listing_.reset();
  }
  ListEntry next() {
    if (ahead_.empty()) fetch();
    if (ahead_.empty()) throw nb::stop_iteration();
    const sync::LsEntry entry = std::move(ahead_.front());
    ahead_.pop_front();
    return entry_dict(entry);
  }

 private:
  static constexpr size_t kAtOnce = 1000;  // a page of S3

  using Entries = std::deque<sync::LsEntry>;
  void fetch() {
    Entries more = interruptible<Entries>([this](std::stop_token stop) -> Result<Entries> {
      const std::stop_callback passed_on(stop, [this] { stop_.request_stop(); });
      MutexLock lock(mutex_);  // iterators are for one thread; a second one must not break it
      Entries entries;
      while (entries.size() < kAtOnce) {
        ASSIGN_OR_RETURN(auto entry, listing_->next());
        if (!entry) break;
        entries.push_back(std::move(*entry));
      }
      return entries;
    });
    for (sync::LsEntry& entry : more) ahead_.push_back(std::move(entry));
  }

  std::stop_source stop_;
  Mutex mutex_;
  std::unique_ptr<sync::Listing> listing_;
  Entries ahead_;  // under the GIL
};

RemoveResult rm_py(const PathArg& url, bool recursive, const Rules& filters, bool force_root, bool dry_run) {
  sync::RmOptions options{.recursive = recursive, .force_root = force_root, .dry_run = dry_run};
  options.filter = filter_of(filters);
  const auto report = interruptible<sync::RmReport>([&](std::stop_token stop) -> Result<sync::RmReport> {
    auto done = sync::rm(url.text, options, stop);
    if (done && done->first_failure) return tl::unexpected(*done->first_failure);
    return done;
  });
  RemoveResult d;
  d["objects"] = report.objects;
  d["bytes"] = report.bytes;
  return d;
}

VerifyResult verify_py(const PathArg& source, const PathArg& target, const Rules& filters, bool recorded) {
  sync::VerifyOptions options;
  options.filter = filter_of(filters);
  if (recorded) options.effort = sync::VerifyOptions::Effort::kRecorded;
  std::vector<std::string> differences;
  options.on_file = [&](const sync::VerifyOptions::Finding& finding) {
    using Kind = sync::VerifyOptions::Finding::Kind;
    if (finding.kind == Kind::kDifferent || finding.kind == Kind::kMissing || finding.kind == Kind::kUnreadable) {
      differences.push_back(finding.path);
    }
  };
  const auto report = interruptible<sync::VerifyReport>(
      [&](std::stop_token stop) { return sync::verify(source.text, target.text, options, stop); });
  VerifyResult d;
  d["ok"] = report.is_clean(false);
  d["files"] = report.files;
  d["bytes"] = report.bytes;
  d["same"] = report.same;
  d["extra"] = report.extra;
  nb::list paths;
  for (const std::string& path : differences) paths.append(path_text(path));
  d["differences"] = paths;
  return d;
}

StageResult stage_py(const PathArg& source, const PathArg& target, bool create_bucket, const std::string& sample,
                     const PathArg& sample_dir, const Rules& filters, bool posix, bool records, bool dry_run,
                     int64_t memory_bytes) {
  sync::StageOptions options{.create_bucket = create_bucket, .sample = sample, .sample_dir = sample_dir.text};
  options.sync.filter = filter_of(filters);
  options.sync.transfer.posix = posix;
  options.sync.record = options.sync.transfer.sidecar = records;
  options.sync.dry_run = dry_run;
  options.sync.engine.memory_bytes = memory_bytes;
  const auto report = interruptible<sync::StageReport>([&](std::stop_token stop) -> Result<sync::StageReport> {
    auto done = sync::stage(source.text, target.text, options, stop);
    if (done) RETURN_IF_ERROR(done->end);
    return done;
  });
  auto d = report_dict<StageResult>(report.upload);
  d["bucket_made"] = report.bucket_made;
  d["objects"] = report.objects;
  d["bytes"] = report.bytes;
  d["sample"] = report.sample;
  d["sample_bytes"] = report.sample_bytes;
  d["sample_members"] = report.members;
  d["seconds"] = report.seconds;
  return d;
}

}  // namespace

void register_sync(nb::module_& m) {
  m.def(
      "cp", &cp_py, nb::arg("source"), nb::arg("target"), nb::kw_only(), nb::arg("recursive") = false,
      nb::arg("filters") = Rules(), nb::arg("follow_links") = false, nb::arg("posix") = false,
      nb::arg("records") = true, nb::arg("dry_run") = false, nb::arg("memory_bytes") = sync::kTransferMemoryBytes,
      nb::arg("headers") = Texts(), nb::arg("metadata") = nb::none(), nb::arg("tags") = nb::none(),
      "Copies an object, or what is below a folder with recursive=True; the same as `millrace cp`.\n\n"
      "Args:\n"
      "    source, target: paths or URLs. A target that ends in '/', or is a folder, gets the object by its name.\n"
      "    filters: rules \"+ PATTERN\" and \"- PATTERN\" as rsync reads them; the first that matches decides.\n"
      "    follow_links: copy the targets of symbolic links, instead of skipping the links.\n"
      "    posix: copy owner, mode and times of files and folders.\n"
      "    records: store hashes in .millrace/ at the target.\n"
      "    memory_bytes: memory for parts in flight; larger values allow more connections to s3://, for fast "
      "networks.\n"
      "    headers: Content-Type, Content-Encoding, Content-Language, Content-Disposition, Cache-Control, Expires of\n"
      "        objects in s3://, instead of the source's, or of the type by a file's name.\n"
      "    metadata, tags: user metadata and tags of objects in s3://, instead of the source's; {}: none.\n"
      "Returns: a dict: copied_files, copied_bytes, moved_bytes, saved_bytes, seconds, ...\n"
      "Raises: FileNotFoundError, ValueError, PermissionError, OSError (no space), ConnectionError; when single\n"
      "    files fail the rest is copied first.");
  m.def("mv", &mv_py, nb::arg("source"), nb::arg("target"), nb::kw_only(), nb::arg("recursive") = false,
        nb::arg("filters") = Rules(), nb::arg("posix") = false, nb::arg("records") = true, nb::arg("dry_run") = false,
        nb::arg("memory_bytes") = sync::kTransferMemoryBytes, nb::arg("headers") = Texts(),
        nb::arg("metadata") = nb::none(), nb::arg("tags") = nb::none(),
        "cp, then removes from the source what is at the target, unless it changed meanwhile; the same as\n"
        "`millrace mv`.\n\n"
        "Args, returns, raises: as cp, and removed_files. A file that failed stays, links do too.");
  m.def("sync", &sync_py, nb::arg("source"), nb::arg("target"), nb::kw_only(), nb::arg("filters") = Rules(),
        nb::arg("delete") = false, nb::arg("max_delete") = nb::none(), nb::arg("compare") = "usual",
        nb::arg("follow_links") = false, nb::arg("posix") = false, nb::arg("records") = true,
        nb::arg("dry_run") = false, nb::arg("memory_bytes") = sync::kTransferMemoryBytes, nb::arg("headers") = Texts(),
        nb::arg("metadata") = nb::none(), nb::arg("tags") = nb::none(),
        "Makes `target` hold the files of `source`, moving only what differs; the same as `millrace sync`.\n\n"
        "Args:\n"
        "    filters, follow_links, posix, records, memory_bytes, headers, metadata, tags: as of cp.\n"
        "    delete: at the end, delete from the target what the source does not have; never after an error, nor when\n"
        "        the source has no files.\n"
        "    max_delete: delete nothing if more files than this would be deleted.\n"
        "    compare: 'usual' (recorded hashes, else what proves two files equal), 'checksum' (read both sides) or "
        "'size'.\n"
        "Returns, raises: as cp; ValueError when a requested deletion was refused.");
  nb::class_<PyListing>(m, "Listing",
                        "The result of ls(): an iterator over entries. Memory does not grow with their number.")
      .def(
          "__iter__", [](nb::handle self) { return nb::borrow(self); }, nb::sig("def __iter__(self) -> Listing"))
      .def("__next__", &PyListing::next);
  m.def(
      "ls",
      [](const PathArg& url, bool recursive, const Rules& filters) {
        return std::make_unique<PyListing>(url.text, recursive, filters);
      },
      nb::sig(
          "def ls(url: str | os.PathLike[str], *, recursive: bool = False, filters: Sequence[str] = ()) -> Listing"),
      nb::arg("url"), nb::kw_only(), nb::arg("recursive") = false, nb::arg("filters") = Rules(),
      "Lists a folder or bucket, entry by entry in byte order of the path, of any size: dicts with path,\n"
      "type ('object', 'folder' or 'other'), size, modified (seconds since 1970) and version. An object is listed as\n"
      "itself. Raises FileNotFoundError.");
  m.def("rm", &rm_py, nb::arg("url"), nb::kw_only(), nb::arg("recursive") = false, nb::arg("filters") = Rules(),
        nb::arg("force_root") = false, nb::arg("dry_run") = false,
        "Removes an object, or what is below a folder with recursive=True; the same as `millrace rm`.\n\n"
        "Returns: a dict: objects, bytes. Raises FileNotFoundError; ValueError for a folder without recursive, or a\n"
        "whole bucket or file system without force_root.");
  m.def("verify", &verify_py, nb::arg("source"), nb::arg("target"), nb::kw_only(), nb::arg("filters") = Rules(),
        nb::arg("recorded") = false,
        "Compares two trees, or two objects, by content; the same as `millrace verify`.\n\n"
        "With recorded=True hashes that Millrace recorded are believed of unchanged versions.\n"
        "Returns: a dict: ok, files, bytes, same, extra, differences (paths).");
  m.def("stage", &stage_py, nb::arg("source"), nb::arg("target"), nb::kw_only(), nb::arg("create_bucket") = false,
        nb::arg("sample") = "", nb::arg("sample_dir") = "", nb::arg("filters") = Rules(), nb::arg("posix") = false,
        nb::arg("records") = true, nb::arg("dry_run") = false, nb::arg("memory_bytes") = sync::kTransferMemoryBytes,
        "Uploads a folder, lists it and holds it against the source, downloads a sample, unpacks and checks it; the\n"
        "same as `millrace stage`.\n\n"
        "Args:\n"
        "    create_bucket: make the bucket of `target` where there is none.\n"
        "    sample: the file, by its path below `source`, that is checked; \"\": the smallest archive, else file.\n"
        "    sample_dir: keep the sample and what it unpacks to here; \"\": it is removed.\n"
        "    filters, posix, records, memory_bytes: as of cp.\n"
        "Returns: a dict: that of sync, and bucket_made, objects, bytes, sample, sample_bytes, sample_members.\n"
        "Raises: as sync; millrace.CorruptionError when what is there, or the sample, is not what was sent.");
}

}  // namespace millrace::python
