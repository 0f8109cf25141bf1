// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "millrace/base/text/units.h"
#include "millrace/cli/command.h"
#include "millrace/episodes/convert.h"

namespace millrace::cli {

namespace {

struct EpisodesArgs {
  std::string source;
  episodes::ConvertOptions options;
};

Json episodes_object(const EpisodesArgs& args, const episodes::ConvertReport& report) {
  const bool packed = args.options.to == episodes::ConvertTo::kPacked;
  Json object{{"type", "episodes_convert"},
              {"url", args.source},
              {"output", report.output},
              {"to", packed ? "packed" : "npz"},
              {"dtype", args.options.is_float64 ? "float64" : "float32"},
              {"dry_run", args.options.dry_run},
              {"files", report.files},
              {"converted", report.converted},
              {"kept", report.kept},
              {"failed", report.failed.size()},
              {"rows", report.rows},
              {"input_bytes", report.input_bytes},
              {"output_bytes", report.output_bytes},
              {"kinds", Json::array()},
              {"rounded", Json::array()}};
  for (const auto& kind : report.kinds) {
    object["kinds"].push_back(
        {{"columns", kind.numbers}, {"text_columns", kind.texts}, {"files", kind.files}, {"first", kind.first}});
  }
  for (const auto& each : report.rounded) {
    object["rounded"].push_back(
        {{"column", each.column}, {"file", each.url}, {"row", each.row}, {"files", each.files}});
  }
  return object;
}

std::string episodes_text(const EpisodesArgs& args, const episodes::ConvertReport& report) {
  const bool dry_run = args.options.dry_run;
  std::string text =
      fmt::format("{}: {}{}, {}, {}", report.output, dry_run ? "would convert " : "",
                  counted(report.converted, "episode"), counted(report.rows, "row"), format_bytes(report.output_bytes));
  if (report.kept > 0) text += fmt::format("; {} kept from an earlier run", counted(report.kept, "episode"));
  if (!report.failed.empty()) {
    text += fmt::format("; {} failed", counted(static_cast<int64_t>(report.failed.size()), "file"));
  }
  text += "\n";
  for (const auto& kind : report.kinds) {
    text += fmt::format("{} with {}", counted(kind.files, "file"),
                        counted(static_cast<int64_t>(kind.numbers.size()), "number column"));
    if (!kind.texts.empty()) {
      text += fmt::format(" and {}", counted(static_cast<int64_t>(kind.texts.size()), "text column"));
    }
    text += fmt::format(", as {}\n", printable(kind.first));
  }
  return text;
}

Status run_episodes_convert(const EpisodesArgs& args, Context& context) {
  Progress progress;
  episodes::ConvertOptions options = args.options;
  options.stop = context.stop;
  options.progress = &progress;
  auto view = context.out.watch(progress, "convert");
  const auto report = episodes::convert_episodes(args.source, options);
  view.reset();
  if (!report) {
    if (report.error().code() == ErrorCode::kCancelled) {
      context.out.note("finished files are kept; run the same command again to continue");
    }
    return tl::unexpected(report.error());
  }
  for (const auto& failed : report->failed) context.out.finding(failed.url, failed.error);
  for (const auto& each : report->rounded) {
    context.out.note(fmt::format(
        "column {}: float32 rounds values of 16,777,216 and more ({}, row {}, and {}); --dtype float64 keeps them",
        each.column, each.url, each.row, counted(each.files, "file")));
  }
  context.out.print_done(episodes_object(args, *report), episodes_text(args, *report), args.options.dry_run);
  return {};
}

// One character, or "tab".
char character_of(const std::string& flag, const std::string& text) {
  if (text == "tab" || text == "\\t") return '\t';
  if (text.size() == 1 && text != "\"" && text != "\n" && text != "\r") return text.front();
  throw CLI::ValidationError(flag, "one character, or tab");
}

void add_csv_flags(CLI::App& app, formats::CsvOptions& csv) {
  app.add_option_function<std::string>(
         "--delimiter", [&csv](const std::string& text) { csv.delimiter = character_of("--delimiter", text); },
         "Character between cells (default: the commonest of , ; | and tab in the header)")
      ->option_text("CHAR");
  add_choice_flag(
      app, "--decimal", {".", ","}, [&csv](const std::string& text) { csv.decimal = text.front(); },
      "The decimal sign (default: .)");
  add_choice_flag(
      app, "--header", {"auto", "yes", "no"},
      [&csv](const std::string& text) {
        csv.header = text == "yes"  ? formats::CsvHeader::kYes
                     : text == "no" ? formats::CsvHeader::kNo
                                    : formats::CsvHeader::kAuto;
      },
      "Whether the first row has the names; auto refuses a first row that looks like data; no: c0, c1, ...");
  add_choice_flag(
      app, "--empty", {"error", "nan"}, [&csv](const std::string& text) { csv.empty_is_nan = text == "nan"; },
      "How to read an empty cell of a number column (default: error)");
  app.add_option("--text", csv.text_columns, "A column that is text, whatever its cells look like; may be repeated")
      ->option_text("NAME");
}

void add_episodes_convert(Verbs& verbs, CLI::App& group) {
  auto args = std::make_shared<EpisodesArgs>();
  const auto check = [args] {
    if (args->options.compress && args->options.to == episodes::ConvertTo::kPacked) {
      throw CLI::ValidationError("--compress", "packed files are mapped, and not compressed");
    }
  };
  CLI::App& app = verbs.add(
      group, "convert", "Convert CSV episodes to NPZ files or to one packed file",
      {"millrace episodes convert data/episodes",
       "millrace episodes convert data/episodes --to packed --out train.mrpack",
       "millrace episodes convert data/episodes --dry-run --json"},
      [args](Context& context) { return run_episodes_convert(*args, context); }, check);
  episodes::ConvertOptions& options = args->options;
  app.add_option("DIR", args->source, "A folder, a CSV file, or a pattern (data/**/states.csv); also s3://")
      ->required()
      ->option_text(" ");
  add_choice_flag(
      app, "--to", {"npz", "packed"},
      [&options](const std::string& to) {
        options.to = to == "packed" ? episodes::ConvertTo::kPacked : episodes::ConvertTo::kNpz;
      },
      "An NPZ file for each CSV file (the default), or one packed file for all");
  app.add_option("--out", options.output,
                 "The folder of NPZ files (default: beside each CSV file), or the packed file (default: "
                 "episodes.mrpack in DIR)")
      ->option_text("PATH");
  app.add_flag("--compress", options.compress, "Compress NPZ members; they are smaller and cannot be mapped");
  add_choice_flag(
      app, "--dtype", {"float32", "float64"},
      [&options](const std::string& type) { options.is_float64 = type == "float64"; },
      "The type of numbers (default: float32)");
  add_csv_flags(app, options.csv);
  app.add_option("--threads", options.threads, "Worker threads (default: the CPUs of this process)")
      ->check(CLI::Range(1, 4096))
      ->option_text("N");
  app.add_flag("--dry-run", options.dry_run, "Read and check every file, and write none");
}

}  // namespace

void add_episodes(Verbs& verbs) {
  CLI::App& group = verbs.add_group("episodes", "Convert episodes of robots from CSV files to arrays");
  add_episodes_convert(verbs, group);
}

}  // namespace millrace::cli
