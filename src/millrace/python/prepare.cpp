// SPDX-License-Identifier: Apache-2.0
#include "millrace/prepare/prepare.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include "millrace/python/interruptible.h"

namespace millrace::python {

namespace {

nb::dict part_dict(const formats::PartRecord& part) {
  nb::dict d;
  nb::list shards;
  for (const auto& shard : part.shards) {
    nb::dict s;
    s["name"] = shard.name;
    s["size"] = shard.size;
    s["samples"] = shard.samples;
    s["tokens"] = shard.tokens;
    shards.append(s);
  }
  d["task"] = part.task;
  d["tasks"] = part.config.tasks;
  d["shards"] = shards;
  d["input_bytes"] = part.input_bytes;
  d["documents"] = part.documents;
  d["tokens"] = part.tokens;
  d["invalid_utf8"] = part.invalid_utf8;
  return d;
}

nb::dict prepare_py(std::vector<std::string> inputs, std::string tokenizer, std::string out,
                    std::optional<std::pair<int64_t, int64_t>> task, std::string ids, bool text,
                    std::string_view documents, std::string text_field, bool add_special_tokens, int64_t shard_bytes,
                    bool strict, int threads, bool dry_run) {
  prepare::PrepareOptions options;
  options.inputs = std::move(inputs);
  options.tokenizer = std::move(tokenizer);
  options.output = std::move(out);
  if (task) {
    options.task = {task->first, task->second};
  } else if (const auto slurm = unwrap(prepare::task_from_slurm())) {
    options.task = *slurm;
  }
  options.ids_format = std::move(ids);
  options.text = text;
  options.documents = unwrap(formats::parse_document_mode(documents));
  options.text_field = std::move(text_field);
  options.add_special_tokens = add_special_tokens;
  options.shard_bytes = shard_bytes;
  options.strict_utf8 = strict;
  options.threads = threads;
  options.dry_run = dry_run;
  const auto report =
      interruptible<prepare::PrepareReport>([&](std::stop_token stop) -> Result<prepare::PrepareReport> {
        ASSIGN_OR_RETURN(auto done, prepare::prepare(options, stop));
        if (options.task.count == 1 && !dry_run) RETURN_IF_ERROR(prepare::finish(options.output));
        return done;
      });
  nb::dict d = part_dict(report.part);
  d["output_bytes"] = report.output_bytes;
  d["shards_reused"] = report.shards_reused;
  d["seconds"] = report.seconds;
  d["cpu_seconds"] = report.cpu_seconds;
  return d;
}

nb::dict finish_py(const std::string& out) {
  const auto manifest = without_gil([&] { return prepare::finish(out); });
  nb::dict d;
  d["shards"] = manifest.shards.size();
  d["documents"] = manifest.documents;
  d["tokens"] = manifest.tokens;
  d["input_bytes"] = manifest.input_bytes;
  d["invalid_utf8"] = manifest.invalid_utf8;
  return d;
}

nb::list split_py(std::vector<std::string> inputs, std::string out, int64_t parts, std::string_view documents) {
  prepare::SplitOptions options;
  options.inputs = std::move(inputs);
  options.output = std::move(out);
  options.parts = parts;
  options.documents = unwrap(formats::parse_document_mode(documents));
  const auto report =
      interruptible<prepare::SplitReport>([&](std::stop_token stop) { return prepare::split(options, stop); });
  nb::list list;
  for (const auto& part : report.parts) {
    nb::dict d;
    d["name"] = part.name;
    d["bytes"] = part.bytes;
    d["documents"] = part.documents;
    list.append(d);
  }
  return list;
}

}  // namespace

void register_prepare(nb::module_& m) {
  m.def("prepare", &prepare_py, nb::arg("inputs"), nb::kw_only(), nb::arg("tokenizer"), nb::arg("out"),
        nb::arg("task") = nb::none(), nb::arg("ids") = "npy", nb::arg("text") = true, nb::arg("documents") = "line",
        nb::arg("text_field") = "text", nb::arg("add_special_tokens") = true, nb::arg("shard_bytes") = 0,
        nb::arg("strict") = false, nb::arg("threads") = 0, nb::arg("dry_run") = false,
        "Tokenises raw text into WebDataset shards; the same as `millrace prepare`.\n\n"
        "Args:\n"
        "    inputs: paths or URLs; globs and braces are expanded, folders stand for their files.\n"
        "    tokenizer: a tokenizer.json.\n"
        "    out: the folder of the shards.\n"
        "    task: (i, n): do part i of n, 0-based. None: the Slurm array task, else everything.\n"
        "    ids: 'npy' (token_ids.npy, uint32) or 'json' (token_ids.json).\n"
        "    text: write text.txt beside the ids.\n"
        "    documents: 'line', 'paragraph', 'file' or 'jsonl' (then text_field names the field).\n"
        "    shard_bytes: start a new shard at this size; 0: one shard a task.\n"
        "    strict: refuse ill-formed UTF-8 instead of replacing it by U+FFFD.\n"
        "Returns: a dict: documents, tokens, input_bytes, output_bytes, shards, seconds, cpu_seconds, ...\n"
        "Raises: FileNotFoundError, ValueError, OSError (no space), NotImplementedError (the tokenizer).");
  m.def("finish", &finish_py, nb::arg("out"),
        "Joins the part records of all tasks into manifest.json. Raises FileNotFoundError naming the missing parts.");
  m.def("split", &split_py, nb::arg("inputs"), nb::kw_only(), nb::arg("out"), nb::arg("parts"),
        nb::arg("documents") = "line",
        "Cuts raw files into `parts` files of nearly equal bytes without breaking a document; the same as `millrace "
        "split`.");
}

}  // namespace millrace::python
