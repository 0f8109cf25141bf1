// SPDX-License-Identifier: Apache-2.0
// ckpt export and ckpt import: between checkpoints and the files of other programs. Formats that need torch go through
// `python -m millrace.torch.convert`.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "millrace/base/command.h"
#include "millrace/base/text/strings.h"
#include "millrace/base/text/units.h"
#include "millrace/checkpoint/exchange/exchange.h"
#include "millrace/cli/command.h"
#include "millrace/cli/html_report.h"

namespace millrace::cli {

namespace {

struct ExchangeArgs {
  std::string source, target;
  std::optional<int64_t> step;
  std::string format, dtype;
  std::string entry = "model";
  std::string names_file;
  std::string like;
  int64_t max_file_bytes = checkpoint::ExportOptions{}.max_file_bytes;
  int64_t memory_bytes = checkpoint::ExportOptions{}.buffer_bytes;
};

Result<checkpoint::NameMap> read_names(const std::string& url) {
  if (url.empty()) return checkpoint::NameMap();
  ASSIGN_OR_RETURN(const Location at, open_url(url));
  ASSIGN_OR_RETURN(const std::string text, read_object(*at.storage, at.key));
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  const auto is_name = [](const auto& item) { return item.value().is_string() || item.value().is_null(); };
  if (!json.is_object() || !std::all_of(json.items().begin(), json.items().end(), is_name))
    return fail(ErrorCode::kInvalidArgument, "{}: a name map is one JSON object of names: {}", at.url,
                R"({"from": "to", "begins.with.*": "then.*", "left.out": null})");
  std::vector<checkpoint::NameRule> rules;
  for (const auto& item : json.items()) {
    rules.push_back(
        {item.key(), item.value().is_null() ? std::nullopt : std::optional(item.value().template get<std::string>())});
  }
  return with_context(checkpoint::NameMap::create(std::move(rules)), at.url);
}

// Runs millrace.torch.convert, which answers with one JSON object.
Result<Json> convert_in_python(std::vector<std::string> arguments, const std::stop_token& stop) {
  std::vector<std::string> words{find_python(), "-m", "millrace.torch.convert"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  ASSIGN_OR_RETURN(const CommandOutput ran, run_command(words, std::chrono::hours(24 * 30), stop, kMaxCommandOutput,
                                                        process_url_options().variables()));
  if (!ran.ok) {
    const std::string reason = last_line(ran.err);
    if (reason.find("No module named") != reason.npos)
      return fail(
          ErrorCode::kUnsupported,
          "{}: {}; this format is read by PyTorch: pip install millrace-io torch, or name a Python that has both "
          "in MILLRACE_PYTHON",
          words.front(), reason);
    return fail(ErrorCode::kInternal, "{}", reason.empty() ? ran.status : reason);
  }
  Json answer = Json::parse(last_line(ran.out), nullptr, /*allow_exceptions=*/false);
  if (!answer.is_object()) return fail(ErrorCode::kInternal, "{}: no answer", words.front());
  if (answer.contains("error")) {
    const std::string kind = answer.value("kind", "");
    const ErrorCode code = kind == "FileNotFoundError" ? ErrorCode::kNotFound
                           : kind == "CorruptionError" ? ErrorCode::kCorruption
                           : kind == "FileExistsError" ? ErrorCode::kAlreadyExists
                                                       : ErrorCode::kInvalidArgument;
    return tl::unexpected<Error>(Error(code, answer["error"].get<std::string>()));
  }
  return answer;
}

// The step to export: the one that was asked for, or the newest.
Result<std::unique_ptr<checkpoint::Checkpoint>> open_step(const Location& root, std::optional<int64_t> step) {
  if (step) return checkpoint::Checkpoint::open(root, *step);
  ASSIGN_OR_RETURN(const auto steps, checkpoint::list_steps(root));
  if (steps.empty()) return fail(ErrorCode::kNotFound, "{}: no checkpoints there", root.url);
  const auto newest = std::find_if(steps.rbegin(), steps.rend(), [](const auto& info) { return !info.is_left; });
  return checkpoint::Checkpoint::open(root, newest == steps.rend() ? steps.back().step : newest->step);
}

// torch reads and writes files of this machine only.
Status check_local(const Location& at) {
  if (at.storage->capabilities().is_local()) return {};
  return fail(ErrorCode::kUnsupported, "{}: this format needs a folder of this machine; `millrace cp` moves it",
              at.url);
}

Status export_to_dcp(const ExchangeArgs& args, int64_t step, Context& context) {
  ASSIGN_OR_RETURN(const Location target, open_url(args.target));
  RETURN_IF_ERROR(check_local(target));
  ASSIGN_OR_RETURN(const Json answer,
                   convert_in_python({"export", args.source, std::to_string(step), args.target}, context.stop));
  context.out.print_done(
      {{"type", "ckpt_export"},
       {"step", step},
       {"format", "dcp"},
       {"output", args.target},
       {"tensors", answer["tensors"]},
       {"bytes", answer["bytes"]}},
      fmt::format("{}: step {}, {}, {}, for torch.distributed.checkpoint\n", args.target, step,
                  counted(answer["tensors"].get<int64_t>(), "tensor"), format_bytes(answer["bytes"].get<int64_t>())));
  return {};
}

Status run_ckpt_export(const ExchangeArgs& args, Context& context) {
  if (!args.like.empty() && args.format != "hf")
    return fail(ErrorCode::kInvalidArgument, "--like: only a folder of --format hf has room for other files");
  if (!args.dtype.empty() && args.format == "dcp")
    return fail(ErrorCode::kInvalidArgument, "--dtype: --format dcp writes every tensor as it is");
  if (!args.names_file.empty() && args.format == "dcp")
    return fail(ErrorCode::kInvalidArgument, "--names: it serves safetensors; --format dcp keeps the names");
  ASSIGN_OR_RETURN(const Location root, open_url(args.source));
  ASSIGN_OR_RETURN(const auto checkpoint, open_step(root, args.step));
  const int64_t step = checkpoint->info().step;
  if (args.format == "dcp") return export_to_dcp(args, step, context);
  ASSIGN_OR_RETURN(const Location target, open_url(args.target));
  checkpoint::ExportOptions options{.entry = args.entry,
                                    .names = {},
                                    .max_file_bytes = args.max_file_bytes,
                                    .buffer_bytes = args.memory_bytes,
                                    .single_file = args.format == "safetensors"};
  ASSIGN_OR_RETURN(options.names, read_names(args.names_file));
  if (!args.dtype.empty()) {
    options.dtype = formats::dtype_from_name(upper_case(args.dtype));
  }
  Progress progress;
  const auto view = context.out.watch(progress, "ckpt export");
  ASSIGN_OR_RETURN(const auto files,
                   checkpoint::export_safetensors(*checkpoint, target, options, context.stop, &progress));
  std::vector<std::string> copied;
  if (!args.like.empty()) {
    ASSIGN_OR_RETURN(const Location like, open_url(args.like));
    ASSIGN_OR_RETURN(copied, checkpoint::copy_companions(like, target));
  }
  int64_t bytes = 0, tensors = 0;
  for (const checkpoint::ExportedFile& file : files) {
    bytes += file.bytes;
    tensors += file.tensors;
  }
  std::string text = fmt::format("{}: step {}, {} in {}, {}", args.target, step, counted(tensors, "tensor"),
                                 counted(std::ssize(files), "file"), format_bytes(bytes));
  if (!copied.empty()) text += fmt::format("; copied {}", fmt::join(copied, ", "));
  context.out.print_done({{"type", "ckpt_export"},
                          {"step", step},
                          {"format", args.format},
                          {"output", args.target},
                          {"files", files.size()},
                          {"tensors", tensors},
                          {"bytes", bytes},
                          {"copied", copied}},
                         text + "\n");
  return {};
}

// What the source is, where the user does not say.
Result<std::string> format_of(const Location& at) {
  if (at.key.ends_with(".safetensors")) return "safetensors";
  const Location metadata = at.child(".metadata");
  if (const auto info = metadata.storage->stat(metadata.key)) return "dcp";
  const bool is_file = at.key.ends_with(".pt") || at.key.ends_with(".pth") || at.key.ends_with(".bin");
  return is_file ? "torch" : "safetensors";
}

Status run_ckpt_import(const ExchangeArgs& args, Context& context) {
  ASSIGN_OR_RETURN(const Location source, open_url(args.source));
  std::string format = args.format;
  if (format == "auto") {
    ASSIGN_OR_RETURN(format, format_of(source));
  }
  const int64_t step = args.step.value_or(0);
  int64_t tensors = 0, bytes = 0, parts = 0;
  if (format == "safetensors") {
    ASSIGN_OR_RETURN(const auto files, checkpoint::find_safetensors(source));
    ASSIGN_OR_RETURN(const Location root, open_url(args.target));
    checkpoint::ImportOptions options{
        .entry = args.entry, .names = {}, .step = step, .part_bytes = std::max<int64_t>(args.memory_bytes / 2, 1)};
    ASSIGN_OR_RETURN(options.names, read_names(args.names_file));
    Progress progress;
    const auto view = context.out.watch(progress, "ckpt import");
    ASSIGN_OR_RETURN(const auto info, checkpoint::import_safetensors(files, root, options, context.stop, &progress));
    tensors = info.tensors;
    bytes = info.bytes;
    parts = info.world_size;
  } else {
    if (!args.names_file.empty())
      return fail(ErrorCode::kInvalidArgument, "--names: it serves safetensors; rename on export instead");
    RETURN_IF_ERROR(check_local(source));
    const Location first = format == "dcp" ? source.child(".metadata") : source;
    RETURN_IF_ERROR(first.storage->stat(first.key));
    ASSIGN_OR_RETURN(const Json answer,
                     convert_in_python({"import", format, args.source, args.target, std::to_string(step),
                                        std::to_string(std::max<int64_t>(args.memory_bytes / 2, 1))},
                                       context.stop));
    tensors = answer["tensors"].get<int64_t>();
    bytes = answer["bytes"].get<int64_t>();
    parts = answer["parts"].get<int64_t>();
  }
  context.out.print_done({{"type", "ckpt_import"},
                          {"step", step},
                          {"from", format},
                          {"output", args.target},
                          {"tensors", tensors},
                          {"bytes", bytes},
                          {"parts", parts}},
                         fmt::format("{}: step {}, {} in {}, {}\n", args.target, step, counted(tensors, "tensor"),
                                     counted(parts, "part"), format_bytes(bytes)));
  return {};
}

void add_common_flags(CLI::App& app, ExchangeArgs& args) {
  app.add_option("--entry", args.entry, "Entry of the state that has the tensors; \"\": all names as they are")
      ->capture_default_str()
      ->option_text("NAME");
  app.add_option("--names", args.names_file,
                 R"(JSON object that renames: {"from": "to", "begins.*": "then.*", "left.out": null})")
      ->option_text("FILE");
  add_size_flag(app, "--memory", args.memory_bytes, "Memory limit", 1);
}

void add_step(CLI::App& app, ExchangeArgs& args, const std::string& description) {
  app.add_option("--step", args.step, description)->check(CLI::Range(int64_t{0}, kMaxCount))->option_text("N");
}

}  // namespace

void add_ckpt_export(Verbs& verbs, CLI::App& ckpt) {
  auto args = std::make_shared<ExchangeArgs>();
  args->format = "hf";
  CLI::App& app = verbs.add(ckpt, "export", "Write the weights of a step as files that other programs load",
                            {"millrace ckpt export run1/checkpoints model/ --like Llama-3-8B/ --dtype bf16",
                             "millrace ckpt export s3://b/run1 model.safetensors --format safetensors --step 2000",
                             "millrace ckpt export run1/checkpoints dcp/ --format dcp"},
                            [args](Context& context) { return run_ckpt_export(*args, context); });
  app.add_option("ROOT", args->source, "Folder of checkpoints")->required()->option_text(" ");
  app.add_option("OUT", args->target, "Folder to write (safetensors: the file)")->required()->option_text(" ");
  add_step(app, *args, "The step (default: the newest of the newest line)");
  add_choice_flag(
      app, "--format", {"hf", "safetensors", "dcp"}, [args](const std::string& format) { args->format = format; },
      "hf: files and index as transformers loads them; safetensors: one file; dcp: for torch.distributed.checkpoint, "
      "all entries (default: hf)");
  add_size_flag(app, "--max-file-size", args->max_file_bytes, "Largest size of one file in format hf", 1);
  app.add_option("--dtype", args->dtype, "Cast floating-point tensors (default: each as it is)")
      ->check(CLI::IsMember({"F64", "F32", "F16", "BF16"}, CLI::ignore_case))
      ->option_text("F32|F16|BF16|F64");
  app.add_option("--like", args->like, "Folder whose config and tokenizer files are copied")->option_text("DIR");
  add_common_flags(app, *args);
}

void add_ckpt_import(Verbs& verbs, CLI::App& ckpt) {
  auto args = std::make_shared<ExchangeArgs>();
  args->format = "auto";
  args->memory_bytes = int64_t{2} << 30;
  CLI::App& app = verbs.add(ckpt, "import", "Make a step from the weights or checkpoint of another program",
                            {"millrace ckpt import Llama-3-8B/ run1/checkpoints",
                             "millrace ckpt import old/step-2000/ run1/checkpoints --from dcp --step 2000",
                             "millrace ckpt import weights.pt run1/checkpoints --from torch"},
                            [args](Context& context) { return run_ckpt_import(*args, context); });
  app.add_option("SOURCE", args->source, "File, or folder of safetensors or of DCP")->required()->option_text(" ");
  app.add_option("ROOT", args->target, "Folder of checkpoints")->required()->option_text(" ");
  add_step(app, *args, "The number that the step gets (default: 0)");
  add_choice_flag(
      app, "--from", {"auto", "safetensors", "dcp", "torch"},
      [args](const std::string& format) { args->format = format; },
      "Format of SOURCE (default: told by its file names)");
  add_common_flags(app, *args);
}

}  // namespace millrace::cli
