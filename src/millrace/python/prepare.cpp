// SPDX-License-Identifier: Apache-2.0
#include "millrace/prepare/prepare.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include "millrace/python/interruptible.h"
#include "millrace/python/path_arg.h"
#include "millrace/python/pyarrow.h"
#include "millrace/python/results.h"

namespace millrace::python {

namespace {

void add_counts(nb::dict& d, const formats::DocumentCounts& counts) {
  d["invalid_utf8"] = counts.invalid_utf8;
  d["rejected"] = counts.rejected;
  d["duplicates"] = counts.duplicates;
  d["filtered"] = counts.filtered;
  d["empty"] = counts.empty;
}

PrepareResult part_dict(const formats::PartRecord& part) {
  PrepareResult d;
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
  add_counts(d, part.counts);
  return d;
}

PrepareResult prepare_py(OneOrManyPaths inputs, PathArg tokenizer, PathArg out,
                         std::optional<std::pair<int64_t, int64_t>> task, std::string_view format,
                         std::optional<std::string> ids, bool text, int64_t block_documents, int64_t shard_bytes,
                         std::string_view documents, std::string text_field, std::string chat, bool refuse_control_text,
                         bool last_turn_only, bool add_special_tokens, std::string bos, std::string eos, bool strict,
                         int64_t max_document_bytes, std::string_view on_error, int64_t max_errors, bool dedup,
                         int64_t dedup_memory_bytes, int64_t min_bytes, int64_t max_bytes, int64_t min_tokens,
                         int64_t max_tokens, int threads, bool json_as_text, double max_invalid_utf8, bool replace,
                         bool dry_run, bool strip, bool keep_empty) {
  if (on_error != "fail" && on_error != "skip") throw nb::value_error("on_error: expected 'fail' or 'skip'");
  find_pyarrow();
  prepare::PrepareOptions options;
  options.inputs = to_paths(std::move(inputs));
  options.tokenizer = std::move(tokenizer.text);
  options.output = std::move(out.text);
  if (task) {
    options.task = {task->first, task->second};
  } else if (const auto slurm = unwrap(prepare::task_from_slurm(options.output))) {
    options.task = *slurm;
  }
  options.shards.format = unwrap(prepare::parse_output_format(format));
  options.ids_format = ids.value_or("");
  options.shards.text = text;
  options.shards.block_documents = block_documents;
  options.shards.documents = unwrap(formats::parse_document_mode(documents));
  options.shards.text_field = std::move(text_field);
  options.shards.chat = std::move(chat);
  options.shards.refuse_control_text = refuse_control_text;
  options.shards.last_turn_only = last_turn_only;
  options.shards.add_special_tokens = add_special_tokens;
  options.shards.bos = std::move(bos);
  options.shards.eos = std::move(eos);
  options.shards.shard_bytes = shard_bytes;
  options.shards.rules.strict_utf8 = strict;
  options.shards.rules.max_document_bytes = max_document_bytes;
  options.shards.rules.skip_errors = on_error == "skip";
  options.max_errors = max_errors;
  options.shards.rules.dedup = dedup;
  options.dedup_memory_bytes = dedup_memory_bytes;
  options.shards.rules.min_bytes = min_bytes;
  options.shards.rules.max_bytes = max_bytes;
  options.shards.rules.min_tokens = min_tokens;
  options.shards.rules.max_tokens = max_tokens;
  options.shards.rules.strip = strip;
  options.shards.rules.keep_empty = keep_empty;
  options.threads = threads;
  options.text_rules.json_as_text = json_as_text;
  options.text_rules.max_invalid_utf8 = max_invalid_utf8;
  options.replace = replace;
  options.dry_run = dry_run;
  const auto report =
      interruptible<prepare::PrepareReport>([&](std::stop_token stop) -> Result<prepare::PrepareReport> {
        ASSIGN_OR_RETURN(auto done, prepare::prepare(options, stop));
        if (options.task.count == 1 && !dry_run) RETURN_IF_ERROR(prepare::finish(options.output));
        return done;
      });
  PrepareResult d = part_dict(report.part);
  d["output_bytes"] = report.output_bytes;
  if (report.estimate) {
    d["expected_documents"] = report.estimate->documents;
    d["expected_tokens"] = report.estimate->tokens;
    d["expected_output_bytes"] = report.estimate->output_bytes;
    d["sampled_bytes"] = report.estimate->sampled_bytes;
  }
  d["shards_reused"] = report.shards_reused;
  d["read_seconds"] = report.read_seconds;
  d["encode_seconds"] = report.encode_seconds;
  d["write_seconds"] = report.write_seconds;
  d["limited_by"] = report.limiting_stage();
  d["seconds"] = report.seconds;
  d["cpu_seconds"] = report.cpu_seconds;
  return d;
}

FinishResult finish_py(const PathArg& out) {
  const auto manifest = without_gil([&] { return prepare::finish(out.text); });
  FinishResult d;
  d["shards"] = manifest.shards.size();
  d["documents"] = manifest.documents;
  d["tokens"] = manifest.tokens;
  d["input_bytes"] = manifest.input_bytes;
  add_counts(d, manifest.counts);
  return d;
}

nb::typed<nb::list, SplitPart> split_py(OneOrManyPaths inputs, PathArg out, int64_t parts, std::string_view documents,
                                        std::string text_field, double validation, uint64_t seed,
                                        int64_t max_document_bytes, bool json_as_text, double max_invalid_utf8,
                                        bool replace, bool dry_run, bool keep_empty) {
  find_pyarrow();
  prepare::SplitOptions options;
  options.inputs = to_paths(std::move(inputs));
  options.output = std::move(out.text);
  options.parts = parts;
  options.documents.mode = unwrap(formats::parse_document_mode(documents));
  options.documents.text_field = std::move(text_field);
  options.validation = validation;
  options.seed = seed;
  options.documents.max_document_bytes = max_document_bytes;
  options.text_rules.json_as_text = json_as_text;
  options.text_rules.max_invalid_utf8 = max_invalid_utf8;
  options.replace = replace;
  options.dry_run = dry_run;
  options.documents.keep_empty = keep_empty;
  const auto report =
      interruptible<prepare::SplitReport>([&](std::stop_token stop) { return prepare::split(options, stop); });
  nb::typed<nb::list, SplitPart> list;
  for (const auto& part : report.parts) {
    SplitPart d;
    d["name"] = part.name;
    d["bytes"] = part.bytes;
    d["documents"] = part.documents;
    list.append(d);
  }
  return list;
}

}  // namespace

void register_prepare(nb::module_& m) {
  m.def(
      "prepare", &prepare_py, nb::arg("inputs"), nb::kw_only(), nb::arg("tokenizer"), nb::arg("out"),
      nb::arg("task") = nb::none(), nb::arg("format") = "webdataset", nb::arg("ids") = nb::none(),
      nb::arg("text") = true, nb::arg("block_documents") = 0, nb::arg("shard_bytes") = 0, nb::arg("documents") = "line",
      nb::arg("text_field") = "text", nb::arg("chat") = "", nb::arg("refuse_control_text") = false,
      nb::arg("last_turn_only") = false, nb::arg("add_special_tokens") = true, nb::arg("bos") = "", nb::arg("eos") = "",
      nb::arg("strict") = false, nb::arg("max_document_bytes") = 64 << 20, nb::arg("on_error") = "fail",
      nb::arg("max_errors") = 1000, nb::arg("dedup") = false, nb::arg("dedup_memory_bytes") = 1 << 30,
      nb::arg("min_bytes") = 0, nb::arg("max_bytes") = 0, nb::arg("min_tokens") = 0, nb::arg("max_tokens") = 0,
      nb::arg("threads") = 0, nb::arg("json_as_text") = false, nb::arg("max_invalid") = 0.001,
      nb::arg("replace") = false, nb::arg("dry_run") = false, nb::arg("strip") = false, nb::arg("keep_empty") = false,
      "Tokenises raw text into shards; the same as `millrace prepare`.\n\n"
      "Args:\n"
      "    inputs: paths or URLs; globs and braces are expanded, folders stand for all files below them, '@list.txt'\n"
      "        for the lines of that file, '-' for standard input. Text, jsonl or Parquet, plain, gzip or zstd.\n"
      "    tokenizer: a tokenizer.json, or a tiktoken.model (docs/tokenizer.md).\n"
      "    out: the folder of the shards.\n"
      "    task: (i, n): do part i of n, 0-based. None: the Slurm array task, else everything.\n"
      "    format: 'webdataset' (tar), 'megatron' (bin and idx) or 'tokens' (llm.c's token files).\n"
      "    ids: of tar shards: 'npy' (token_ids.npy, uint32), 'json' (token_ids.json) or 'raw' (token_ids.u16 or "
      ".u32);\n"
      "        None: 'npy'. Other formats have their own form of ids and take none.\n"
      "    text: write text.txt beside the ids.\n"
      "    block_documents: of tar shards: the number of documents whose ids share one member; 0: one each.\n"
      "    shard_bytes: start a new shard at this size; 0: one shard a task.\n"
      "    documents: 'line', 'paragraph', 'file' or 'jsonl'; a row of a Parquet table is always one.\n"
      "    text_field: the field of a jsonl object ('meta.body' inside objects) or the column of a table.\n"
      "    chat: 'chatml', 'llama-3' or 'llama-2' (documents='jsonl'): each line is a conversation, written through "
      "this\n"
      "        template with loss_mask.npy; refuse_control_text makes the template's marks in a message an error.\n"
      "    bos, eos: tokens to put around every document beside what the post-processor adds.\n"
      "    strip: take white space from both ends of a document, as str.strip().\n"
      "    keep_empty: take texts that are empty or only white space; without it they are no documents, in any "
      "format,\n"
      "        and `empty` of the result counts them.\n"
      "    strict: ill-formed UTF-8 is an error, instead of being replaced by U+FFFD.\n"
      "    on_error: 'fail', or 'skip': leave the document out and write it to SHARD.rejected.jsonl; more than\n"
      "        max_errors of a task fail it all the same.\n"
      "    dedup: leave out texts that came before in the task.\n"
      "    min_bytes, max_bytes, min_tokens, max_tokens: leave out documents of another length; a max of 0 is none.\n"
      "    json_as_text: lines or paragraphs of JSON are meant, instead of being an error.\n"
      "    max_invalid: refuse a file with more ill-formed UTF-8 sequences per byte than this; 1 takes any.\n"
      "    replace: write a finished task again when its inputs are others now, instead of raising.\n"
      "    dry_run: write no file, and estimate the output from a sample.\n"
      "Returns: a dict: documents, tokens, input_bytes, output_bytes, shards, seconds, cpu_seconds, ...; of a dry run\n"
      "    also expected_documents, expected_tokens, expected_output_bytes and sampled_bytes.\n"
      "Raises: FileNotFoundError, ValueError, FileExistsError (finished from other inputs), OSError (no space),\n"
      "    NotImplementedError (the tokenizer).");
  m.def("finish", &finish_py, nb::arg("out"),
        "Joins the part records of all tasks into manifest.json. Raises FileNotFoundError naming the missing parts.");
  m.def(
      "split", &split_py, nb::arg("inputs"), nb::kw_only(), nb::arg("out"), nb::arg("parts"),
      nb::arg("documents") = "line", nb::arg("text_field") = "text", nb::arg("validation") = 0.0, nb::arg("seed") = 0,
      nb::arg("max_document_bytes") = 64 << 20, nb::arg("json_as_text") = false, nb::arg("max_invalid") = 0.001,
      nb::arg("replace") = false, nb::arg("dry_run") = false, nb::arg("keep_empty") = false,
      "Cuts raw files into `parts` files of nearly equal bytes without breaking a document; the same as `millrace "
      "split`.\n\n"
      "`validation` is the share of the documents, chosen by the hash of their text and `seed`, that goes to a file of "
      "its own. `replace` writes parts again that are there with other content, instead of raising FileExistsError; "
      "rows of a table without text are left out unless `keep_empty`; the rest as in prepare.");
}

}  // namespace millrace::python
