// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "millrace/base/text/units.h"
#include "millrace/cli/html_report.h"
#include "millrace/cli/job_states.h"
#include "millrace/jobs/record.h"
#include "millrace/plan/prices.h"

namespace millrace::cli {

namespace {

struct RunsArgs {
  std::vector<std::string> folders;
  std::string run, other, text, to = "csv", out, instance, html;
  double price = 0;
};

// What `job submit` wrote down of the run's job: its script, arguments and data belong to the settings.
void add_ledger_facts(jobs::TrainingRecord& record) {
  const std::string job = record.fact("job_id");
  const auto ledger = open_ledger();
  if (job.empty() || !ledger) return;
  const auto contents = ledger->read();
  if (!contents) return;
  for (const jobs::LedgerRun& run : contents->runs) {
    // Slurm uses numbers again; the job was submitted before its training began.
    if (run.record.job_id != job || static_cast<double>(run.record.submitted) > record.starts.back().begun) continue;
    const Json submitted = jobs::record_json(run.record);
    for (const char* name : {"script_hash", "arguments", "data"}) {
      record.starts.back().facts["submitted"][name] = submitted[name];
    }
  }
}

Result<double> gpu_price(const RunsArgs& args) {
  if (args.instance.empty()) return args.price;
  const plan::PriceBook& book = plan::builtin_prices();
  if (const auto price = plan::find_price(book, args.instance)) return price->usd_per_gpu_hour();
  return fail(ErrorCode::kNotFound, "{} has no price of {}; give the price of a GPU hour by --price", book.name(),
              args.instance);
}

Result<jobs::TrainingRecord> find_training(const std::string& typed) {
  ASSIGN_OR_RETURN(jobs::TrainingRecord record, find_record(typed));
  add_ledger_facts(record);
  return record;
}

// What the guides' table holds, and what the counters add.
struct RunNumbers {
  double seconds = 0, tokens = 0, wait_s = 0, stall_s = 0, saves = 0;
  int64_t world = 1, gpus = 0;
  std::string batch;

  explicit RunNumbers(const jobs::TrainingRecord& record) {
    seconds = record.seconds();
    world = std::max<int64_t>(1, parse_whole(record.fact("world_size")).value_or(1));
    gpus = parse_whole(record.fact("gpus")).value_or(0);
    // Rank 0 counts its own part.
    tokens = record.counted("loader", "tokens") * static_cast<double>(world);
    wait_s = record.counted("loader", "wait_seconds");
    stall_s = record.counted("checkpointer", "stall_seconds");
    saves = record.counted("checkpointer", "saves");
    batch = record.fact("config/global_batch_size");
    if (batch.empty()) batch = record.fact("config/batch_size");
  }
  double tokens_per_s() const { return seconds > 0 ? tokens / seconds : 0; }
  double gpu_hours() const { return seconds / 3600 * static_cast<double>(gpus); }
};

std::string loss_text(const jobs::TrainingRecord& record) {
  const jobs::RecordPoint* loss = record.last_of("train/loss");
  return loss == nullptr ? "" : fmt::format("{:.4f}", loss->value);
}

std::string status_text(const jobs::TrainingRecord& record) {
  const jobs::RecordStart& last = record.starts.back();
  if (last.end.empty()) return "running or killed";
  return last.error.empty() ? last.end : fmt::format("{} ({})", last.end, last.error);
}

Json number_or_null(const jobs::RecordPoint* point) {
  return point == nullptr ? Json(nullptr) : Json(point->value);
}

Json run_json(const jobs::TrainingRecord& record, double price) {
  const RunNumbers numbers(record);
  Json last = Json::object();
  for (const auto& [name, points] : record.values) {
    if (!points.empty()) last[name] = points.back().value;
  }
  return {{"type", "training_run"},
          {"name", record.name},
          {"folder", record.folder},
          {"started", jobs::utc_time(static_cast<int64_t>(record.starts.front().begun))},
          {"status", record.status().empty() ? Json(nullptr) : Json(record.status())},
          {"error", record.starts.back().error},
          {"job_id", record.starts.back().facts.value("job_id", Json(nullptr))},
          {"gpus", numbers.gpus},
          {"world_size", numbers.world},
          {"batch", numbers.batch},
          {"steps", record.last_step() < 0 ? Json(nullptr) : Json(record.last_step())},
          {"seconds", numbers.seconds},
          {"final_loss", number_or_null(record.last_of("train/loss"))},
          {"tokens_per_s", numbers.tokens_per_s()},
          {"data_wait_s", numbers.wait_s},
          {"save_stall_s", numbers.stall_s},
          {"checkpoints", numbers.saves},
          {"restarts", record.starts.size() - 1},
          {"cost_usd", price > 0 ? Json(numbers.gpu_hours() * price) : Json(nullptr)},
          {"last", last},
          {"facts", record.starts.back().facts}};
}

Status run_runs_ls(const RunsArgs& args, Context& context) {
  std::vector<std::string> folders;
  if (args.folders.empty()) {
    ASSIGN_OR_RETURN(const jobs::Ledger ledger, open_ledger());
    folders = jobs::remembered_trainings(ledger);
  } else {
    folders = jobs::find_trainings(args.folders);
  }
  std::vector<jobs::TrainingRecord> records;
  for (const std::string& folder : folders) {
    auto record = jobs::read_training(folder);
    if (record) {
      records.push_back(*std::move(record));
    } else if (record.error().code() == ErrorCode::kUnsupported) {  // a folder that is gone is no news
      log(LogLevel::kWarning, "{}", record.error().to_string());
    }
  }
  std::sort(records.begin(), records.end(),
            [](const auto& a, const auto& b) { return a.starts.front().begun < b.starts.front().begun; });
  TextTable table({{"started"},
                   {"run"},
                   {"gpus", true},
                   {"batch", true},
                   {"steps", true},
                   {"time", true},
                   {"loss", true},
                   {"restarts", true},
                   {"status"}});
  for (const jobs::TrainingRecord& record : records) {
    const RunNumbers numbers(record);
    table.add({jobs::utc_time(static_cast<int64_t>(record.starts.front().begun)), record.name,
               std::to_string(numbers.gpus), numbers.batch,
               record.last_step() < 0 ? "" : format_count(record.last_step()), format_duration(numbers.seconds),
               loss_text(record), std::to_string(record.starts.size() - 1), status_text(record)});
    context.out.print_json(run_json(record, 0));
  }
  context.out.print_text(table.empty() ? "" : table.to_string());
  if (records.empty()) context.out.note("no runs; `with mr.Run(folder) as run:` records one");
  return {};
}

Status run_runs_show(const RunsArgs& args, Context& context) {
  ASSIGN_OR_RETURN(const jobs::TrainingRecord record, find_training(args.run));
  ASSIGN_OR_RETURN(const double price, gpu_price(args));
  const RunNumbers numbers(record);
  TextTable table({{"what"}, {"value"}});
  const auto add = [&](const char* what, const std::string& value) {
    if (!value.empty()) table.add({what, value});
  };
  add("run", record.name);
  add("folder", record.folder);
  add("started", jobs::utc_time(static_cast<int64_t>(record.starts.front().begun)));
  add("status", status_text(record));
  add("job", record.fact("job_id"));
  add("user", record.fact("user"));
  add("commit", record.fact("git/commit") + (record.fact("git/dirty") == "true" ? ", and files differ" : ""));
  add("GPUs", std::to_string(numbers.gpus));
  add("ranks", std::to_string(numbers.world));
  add("batch", numbers.batch);
  add("steps", record.last_step() < 0 ? "none" : format_count(record.last_step()));
  add("time", format_duration(numbers.seconds));
  add("final loss", loss_text(record));
  if (numbers.tokens > 0) add("tokens/s", fmt::format("{:.0f}", numbers.tokens_per_s()));
  add("waited for data", format_duration(numbers.wait_s));
  add("checkpoints",
      fmt::format("{:.0f}, which kept training for {}", numbers.saves, format_duration(numbers.stall_s)));
  add("restarts", std::to_string(record.starts.size() - 1));
  if (price > 0)
    add("cost", fmt::format("{:.2f} USD for {:.1f} GPU hours", numbers.gpu_hours() * price, numbers.gpu_hours()));
  for (const auto& [name, points] : record.values) {
    if (!points.empty()) table.add({name, fmt::format("{:g} at step {}", points.back().value, points.back().step)});
  }
  for (const jobs::Note& note : record.notes) {
    table.add({"note", fmt::format("{} {}: {}", jobs::utc_time(static_cast<int64_t>(note.time)), note.user,
                                   printable(note.text))});
  }
  Json object = run_json(record, price);
  object["notes"] = Json::array();
  for (const jobs::Note& note : record.notes)
    object["notes"].push_back({{"time", note.time}, {"user", note.user}, {"text", note.text}});
  context.out.print(object, table.to_string());
  HtmlReport report(args.html, "Run " + record.name);
  report.add(object);
  report.add_input("record", record.name, record.folder);
  return report.write(context);
}

Status run_runs_diff(const RunsArgs& args, Context& context) {
  ASSIGN_OR_RETURN(const jobs::TrainingRecord left, find_training(args.run));
  ASSIGN_OR_RETURN(const jobs::TrainingRecord right, find_training(args.other));
  TextTable table({{"what"}, {args.run}, {args.other}});
  HtmlReport report(args.html, fmt::format("Runs {} and {}", args.run, args.other));
  for (const jobs::Difference& each : jobs::compare_trainings(left, right)) {
    const Json object = {{"type", "run_difference"}, {"what", each.what}, {"left", each.left}, {"right", each.right}};
    context.out.print_json(object);
    report.add(object);
    table.add({each.what, printable(each.left, 60), printable(each.right, 60)});
  }
  context.out.print_text(table.empty() ? "the runs differ in no setting and no value\n" : table.to_string());
  report.add_input("record", args.run, left.folder);
  report.add_input("record", args.other, right.folder);
  return report.write(context);
}

Status run_runs_note(const RunsArgs& args, Context& context) {
  ASSIGN_OR_RETURN(const jobs::TrainingRecord record, find_training(args.run));
  RETURN_IF_ERROR(jobs::add_note(record.folder, args.text));
  context.out.print_done({{"type", "run_note"}, {"folder", record.folder}, {"text", args.text}}, "");
  return {};
}

// As RFC 4180 has it.
std::string csv_cell(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? "\"\"" : std::string(1, c);
  return quoted + '"';
}

std::string csv_of(const jobs::TrainingRecord& record) {
  std::map<int64_t, std::map<std::string, double>> rows;
  for (const auto& [name, points] : record.values) {
    for (const jobs::RecordPoint& point : points) rows[point.step][name] = point.value;
  }
  std::string text = "step";
  for (const auto& [name, points] : record.values) text += "," + csv_cell(name);
  text += "\n";
  for (const auto& [step, row] : rows) {
    text += std::to_string(step);
    for (const auto& [name, points] : record.values) {
      const auto found = row.find(name);
      text += found == row.end() ? "," : fmt::format(",{}", found->second);
    }
    text += "\n";
  }
  return text;
}

Status run_runs_export(const RunsArgs& args, Context& context) {
  ASSIGN_OR_RETURN(const jobs::TrainingRecord record, find_training(args.run));
  const bool events = args.to == "tensorboard";
  std::string path = args.out;
  if (events) {
    std::error_code error;
    std::filesystem::create_directories(path, error);
    path += fmt::format("/events.out.tfevents.{}.millrace", static_cast<int64_t>(record.starts.front().begun));
  }
  const std::string content = events ? jobs::tensorboard_events(record) : csv_of(record);
  if (path.empty()) {
    context.out.print_text(content);
    context.out.print_json({{"type", "run_export"}, {"to", args.to}, {"path", nullptr}, {"content", content}});
    return {};
  }
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << content;
  file.close();
  if (!file) return fail(ErrorCode::kPermissionDenied, "cannot write {}", path);
  context.out.print_done({{"type", "run_export"}, {"to", args.to}, {"path", path}}, path + "\n");
  return {};
}

}  // namespace

void add_runs(Verbs& verbs) {
  CLI::App& runs = verbs.add_group("runs", "List, compare and export the records that trainings leave (mr.Run)");
  auto args = std::make_shared<RunsArgs>();
  const auto run_of = [&](CLI::App& app) {
    app.add_option("RUN", args->run, "A folder with a record, the name of a run, or the number of its job")
        ->required()
        ->option_text(" ");
  };
  verbs
      .add(runs, "ls", "List the runs below folders, or by default those in the ledger",
           {"millrace runs ls", "millrace runs ls /fsx/runs", "millrace runs ls --json"},
           [args](Context& context) { return run_runs_ls(*args, context); })
      .add_option("FOLDER", args->folders, "Folder to search for records, four levels deep")
      ->option_text(" ");
  CLI::App& show = verbs.add(
      runs, "show", "Show what a run was told, how far it came, and what it cost",
      {"millrace runs show /fsx/runs/a", "millrace runs show a --price 4.33", "millrace runs show 1234 --json"},
      [args](Context& context) { return run_runs_show(*args, context); });
  run_of(show);
  add_html_flag(show, args->html);
  show.add_option("--price", args->price, "US dollars for a GPU and hour: the cost is added")
      ->check(CLI::Range(0.0, 1e6))
      ->option_text("USD");
  show.add_option("--instance", args->instance, "EC2 type: the price of the planner's book is taken")
      ->option_text("TYPE")
      ->excludes("--price");
  CLI::App& diff = verbs.add(
      runs, "diff", "Say what differs between two runs: settings, code, environment, curves",
      {"millrace runs diff a b", "millrace runs diff /fsx/runs/a /fsx/runs/b", "millrace runs diff a b --json"},
      [args](Context& context) { return run_runs_diff(*args, context); });
  run_of(diff);
  add_html_flag(diff, args->html);
  diff.add_option("OTHER", args->other, "The run to compare it with")->required()->option_text(" ");
  CLI::App& note =
      verbs.add(runs, "note", "Add a note to a run",
                {"millrace runs note a 'the learning rate was too high'", "millrace runs note /fsx/runs/a 'baseline'",
                 "millrace runs note 1234 'node g07 was slow'"},
                [args](Context& context) { return run_runs_note(*args, context); });
  run_of(note);
  note.add_option("TEXT", args->text, "The note")->required()->option_text(" ");
  CLI::App& exported = verbs.add(
      runs, "export", "Print a run's values as CSV, or write them for TensorBoard",
      {"millrace runs export a", "millrace runs export a --out a.csv",
       "millrace runs export a --to tensorboard --out events"},
      [args](Context& context) { return run_runs_export(*args, context); },
      [args] {
        if (args->to == "tensorboard" && args->out.empty()) {
          throw CLI::ValidationError("--out", "tensorboard needs a folder");
        }
      });
  run_of(exported);
  add_choice_flag(
      exported, "--to", {"csv", "tensorboard"}, [args](const std::string& to) { args->to = to; },
      "The form (default: csv)");
  exported.add_option("--out", args->out, "A file, or the folder of event files (default: standard output)")
      ->option_text("PATH");
}

}  // namespace millrace::cli
