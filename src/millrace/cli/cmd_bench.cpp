// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "millrace/base/command.h"
#include "millrace/base/text/units.h"
#include "millrace/bench/storage_bench.h"
#include "millrace/bench/workplace.h"
#include "millrace/cli/command.h"
#include "millrace/cli/html_report.h"

namespace millrace::cli {

namespace {

namespace fs = std::filesystem;

struct BenchStorageArgs {
  bench::StorageConfig config;
  std::string profile = "all", seconds = "5s", srun, meet, html;
  int64_t checkpoint_bytes = 98'000'000'000, gpus = 8;  // of a 7B model, resumable
  int nodes = 1;
  bool clean = false;
};

constexpr std::chrono::seconds kPatience{120};

void check_bench_storage(BenchStorageArgs& args) {
  constexpr double kLeastSeconds = 0.05;
  constexpr int64_t kUnit = int64_t{4} << 20, kPage = 4096;
  bench::StorageConfig& config = args.config;
  if (config.mounts.empty()) throw CLI::ValidationError("DIR", "name the folder of each file system to test");
  config.test_seconds = usage_value("--seconds", parse_duration(args.seconds));
  if (config.test_seconds.count() < kLeastSeconds) throw CLI::ValidationError("--seconds", "is 50ms or more");
  if (config.file_bytes <= 0 || config.file_bytes % kUnit != 0) {
    throw CLI::ValidationError("--size", "is a multiple of 4MiB");
  }
  if (config.block_bytes < kPage || config.block_bytes % kPage != 0 || config.file_bytes % config.block_bytes != 0) {
    throw CLI::ValidationError("--block", "is a multiple of 4KiB, and a part of --size");
  }
  if (config.small_bytes < 1) throw CLI::ValidationError("--small-size", "is 1 byte or more");
  config.training = args.profile == "all" || args.profile == "training";
  config.checkpoint = args.profile == "all" || args.profile == "checkpoint";
  config.metadata = args.profile == "all" || args.profile == "metadata";
  config.sweep = args.profile == "sweep";
}

std::string rate_text(const bench::TestResult& result, double rate) {
  if (result.unit == "B/s") return format_rate(rate);
  return fmt::format("{} {}", format_count(static_cast<int64_t>(rate)), result.unit);
}

std::string latency_text(double seconds) {
  return seconds <= 0
             ? ""
             : fmt::format(seconds < 0.01 ? fmt::runtime("{:.3f} ms") : fmt::runtime("{:.1f} ms"), seconds * 1000);
}

std::string cache_text(const bench::TestResult& result) {
  if (result.cached < 0) return result.test.find("read") == std::string::npos ? "" : "past it";
  return fmt::format("{:.0f} % of it", result.cached * 100);
}

// Reads beside writes, a row for each step of a sweep; "" where there was none.
std::string sweep_table(const std::vector<bench::TestResult>& results, std::string_view sweep, const char* steps) {
  TextTable table({{"file system"}, {steps, true}, {"read", true}, {"p50", true}, {"write", true}, {"p50", true}});
  for (const bench::TestResult& read : results) {
    if (read.sweep != sweep || !read.test.starts_with("read")) continue;
    const auto write = std::find_if(results.begin(), results.end(), [&](const bench::TestResult& each) {
      return each.mount == read.mount && each.sweep == sweep && each.place == read.place &&
             each.test.starts_with("write");
    });
    const bool has_write = write != results.end();
    table.add({read.mount, sweep == "size" ? bench::size_name(read.place) : std::to_string(read.place),
               rate_text(read, read.median()), latency_text(read.p50_s),
               has_write ? rate_text(*write, write->median()) : "", has_write ? latency_text(write->p50_s) : ""});
  }
  return table.empty() ? "" : table.to_string() + "\n";
}

void print_results(const BenchStorageArgs& args, const std::vector<bench::TestResult>& results, HtmlReport& report,
                   Context& context) {
  TextTable table({{"file system"},
                   {"test"},
                   {"ranks", true},
                   {"request", true},
                   {"median", true},
                   {"least", true},
                   {"most", true},
                   {"slowest rank", true},
                   {"p50", true},
                   {"p99", true},
                   {"page cache"}});
  double spread = 0;
  for (const bench::TestResult& result : results) {
    context.out.print_json(result.to_json());
    report.add(result.to_json());
    spread = std::max(spread, result.start_spread_s);
    if (!result.sweep.empty()) continue;
    table.add({result.mount, result.test, std::to_string(result.ranks),
               result.request_bytes > 0 ? format_bytes(result.request_bytes) : "", rate_text(result, result.median()),
               rate_text(result, result.least()), rate_text(result, result.most()),
               fmt::format("{:.0f} %", result.slowest_share * 100), latency_text(result.p50_s),
               latency_text(result.p99_s), cache_text(result)});
  }
  std::string text = table.empty() ? "" : table.to_string() + "\n";
  text += sweep_table(results, "depth", "random requests of 4 KiB at once");
  text += sweep_table(results, "size", "file size");
  text += fmt::format("{} of {} after one warm-up round; ranks began within {:.1f} ms of each other{}\n",
                      counted(args.config.rounds, "round"), args.seconds, spread * 1000,
                      args.nodes > 1 ? ", by the clocks of their nodes" : "");
  if (args.nodes == 1)
    text +=
        "one node reads what it wrote itself: a server's cache may have it (--nodes 2 or more reads another node's)\n";
  TextTable meaning({{"file system"}, {"what it means"}, {"value", true}, {"how"}});
  for (const bench::Meaning& each : bench::meanings(results, {static_cast<double>(args.checkpoint_bytes), args.gpus})) {
    const Json object = {{"type", "bench_meaning"},
                         {"mount", each.mount},
                         {"what", each.what},
                         {"value", each.value},
                         {"formula", each.formula}};
    context.out.print_json(object);
    report.add(object);
    meaning.add({each.mount, each.what, each.value, each.formula});
  }
  if (!meaning.empty()) text += "\n" + meaning.to_string();
  context.out.print_text(text);
}

// One node of several, started by srun below.
Status run_node(BenchStorageArgs& args, Context& context) {
  const auto number = [](const char* name, int otherwise) {
    const char* text = std::getenv(name);
    return text == nullptr ? otherwise : std::atoi(text);
  };
  const fs::path work = fs::path(args.meet).parent_path();
  for (const std::string& mount : args.config.mounts) {
    args.config.folders.push_back((fs::path(mount) / work.filename()).string());
  }
  bench::Meeting meeting(args.meet, number("SLURM_PROCID", 0), number("SLURM_NTASKS", 1),
                         std::chrono::milliseconds(200), kPatience);
  std::ofstream results;
  if (meeting.node() == 0) results.open(args.meet + "/results");
  const auto take = [&](const bench::TestResult& result) { results << result.to_json().dump() << '\n' << std::flush; };
  return bench::run_storage_bench(args.config, meeting, take, context.stop);
}

Result<std::vector<bench::TestResult>> run_by_srun(const BenchStorageArgs& args, const std::string& meet,
                                                   Context& context) {
  ASSIGN_OR_RETURN(const std::vector<std::string> more, split_command(args.srun));
  std::error_code error;
  const std::string program = fs::read_symlink("/proc/self/exe", error).string();
  std::vector<std::string> words{"srun",
                                 fmt::format("--nodes={}", args.nodes),
                                 fmt::format("--ntasks={}", args.nodes),
                                 "--ntasks-per-node=1",
                                 "--kill-on-bad-exit=1",
                                 "--job-name=millrace-bench"};
  if (std::getenv("SLURM_JOB_ID") != nullptr) words.push_back("--overlap");
  words.insert(words.end(), more.begin(), more.end());
  const bench::StorageConfig& config = args.config;
  words.insert(words.end(), {program,        "bench",
                             "storage",      "--quiet",
                             "--meet",       meet,
                             "--profile",    args.profile,
                             "--ranks",      std::to_string(config.ranks),
                             "--depth",      std::to_string(config.depth),
                             "--size",       std::to_string(config.file_bytes),
                             "--block",      std::to_string(config.block_bytes),
                             "--small-size", std::to_string(config.small_bytes),
                             "--files",      std::to_string(config.files),
                             "--rounds",     std::to_string(config.rounds),
                             "--seconds",    args.seconds});
  for (const std::string& mount : config.mounts) words.push_back(fs::absolute(mount).string());
  // Far more than the rounds take; the job may also wait for nodes.
  const auto limit = std::chrono::hours(12);
  ASSIGN_OR_RETURN(const CommandOutput done, run_command(words, limit, context.stop));
  if (!done.ok) return fail(ErrorCode::kUnavailable, "srun ended with {}: {}", done.status, printable(done.err, 1000));
  std::vector<bench::TestResult> results;
  std::ifstream file(meet + "/results");
  for (std::string line; std::getline(file, line);) {
    const auto object = Json::parse(line, nullptr, false);
    if (object.is_object()) results.push_back(bench::result_of(object));
  }
  if (results.empty()) return fail(ErrorCode::kUnavailable, "node 0 left no results: {}", printable(done.err, 1000));
  return results;
}

Status run_bench_storage(BenchStorageArgs& args, Context& context) {
  if (!args.meet.empty()) return run_node(args, context);
  for (const std::string& mount : args.config.mounts) {
    ASSIGN_OR_RETURN(const int removed, bench::remove_left_folders(mount));
    if (removed > 0)
      context.out.note(
          fmt::format("bench: removed {} that an earlier test left in {}", counted(removed, "folder"), mount));
  }
  if (args.clean) return {};
  RETURN_IF_ERROR(bench::check_space(args.config, args.nodes));
  ASSIGN_OR_RETURN(bench::Workplace place, bench::Workplace::make(args.config.mounts));
  args.config.folders = place.folders();
  const std::string meet = place.folders()[0] + "/meet";
  std::error_code error;
  fs::create_directory(meet, error);
  if (error) return tl::unexpected(errno_error(error.value(), "mkdir " + meet));
  std::vector<bench::TestResult> results;
  if (args.nodes > 1) {
    ASSIGN_OR_RETURN(results, run_by_srun(args, meet, context));
  } else {
    bench::Meeting meeting(meet, 0, 1, std::chrono::milliseconds(20), kPatience);
    const auto take = [&](const bench::TestResult& result) {
      context.out.note(fmt::format("bench: {}: {}: {}", result.mount, result.test, rate_text(result, result.median())));
      results.push_back(result);
    };
    RETURN_IF_ERROR(bench::run_storage_bench(args.config, meeting, take, context.stop));
  }
  RETURN_IF_ERROR(place.remove());
  HtmlReport report(args.html, "millrace bench storage");
  print_results(args, results, report, context);
  return report.write(context);
}

}  // namespace

void add_bench(Verbs& verbs) {
  CLI::App& group =
      verbs.add_group("bench", "Measure file systems, the loader, checkpoints and tokenizers as training uses them");
  add_bench_loader(verbs, group);
  add_bench_checkpoint(verbs, group);
  add_bench_tokenizer(verbs, group);
  auto args = std::make_shared<BenchStorageArgs>();
  CLI::App& app = verbs.add(
      group, "storage", "Measure file systems: streams, random reads, small files, checkpoints and metadata",
      {"millrace bench storage /fsx/scratch --nodes 4", "millrace bench storage /fsx1 /fsx2 --profile checkpoint",
       "millrace bench storage none --size 64MiB --json"},
      [args](Context& context) { return run_bench_storage(*args, context); }, [args] { check_bench_storage(*args); });
  bench::StorageConfig& config = args->config;
  app.add_option("DIR", config.mounts, "A folder on each file system to test; files made there are removed")
      ->option_text(" ");
  add_choice_flag(
      app, "--profile", {"training", "checkpoint", "metadata", "all", "sweep"},
      [args](const std::string& word) { args->profile = word; },
      "Which tests to run; all: the first three; sweep: over requests at once and file sizes (default: all)");
  const auto count = [&](const char* flag, auto& value, int64_t most, const char* text) {
    app.add_option(flag, value, text)->check(CLI::Range(int64_t{1}, most))->option_text("N");
  };
  count("--nodes", args->nodes, 10'000,
        "Number of nodes, started by srun; each reads what another one wrote (default: 1, this one)");
  count("--ranks", config.ranks, 1024, "Ranks per node, each with its own files (default: 4)");
  count("--depth", config.depth, 4096, "Random reads at once per node (default: 32)");
  count("--files", config.files, 10'000'000, "Small files per rank (default: 1000)");
  count("--rounds", config.rounds, 1000, "Measured rounds, after one warm-up round (default: 3)");
  add_size_flag(app, "--size", config.file_bytes, "Size of a rank's file (default: 256MiB)");
  add_size_flag(app, "--block", config.block_bytes, "Size of a stream's request (default: 1MiB)");
  add_size_flag(app, "--small-size", config.small_bytes, "Size of a small file (default: 128KiB)");
  add_size_flag(app, "--limit", config.limit_bytes, "The most space to take on a file system (default: 16GiB)");
  app.add_option("--seconds", args->seconds, "The longest time of a round (default: 5s)")->option_text("TIME");
  add_size_flag(app, "--checkpoint-size", args->checkpoint_bytes,
                "Checkpoint to plan with (default: 98GB, a 7B model that can be resumed)");
  count("--gpus", args->gpus, 10'000'000, "GPUs to plan checkpoints for (default: 8)");
  app.add_option("--srun", args->srun, "Further arguments for srun, such as '--partition=p5'")->option_text("WORDS");
  app.add_flag("--clean", args->clean, "Only remove the files that an earlier test left");
  add_html_flag(app, args->html);
  app.add_option("--meet", args->meet, "Where nodes meet; set by the verb itself")->group("");
}

}  // namespace millrace::cli
