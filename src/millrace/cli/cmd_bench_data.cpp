// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "millrace/base/text/units.h"
#include "millrace/base/thread/sync.h"
#include "millrace/bench/data_bench.h"
#include "millrace/cli/command.h"
#include "millrace/cli/html_report.h"
#include "millrace/loader/batch.h"
#include "millrace/prepare/tokenizer_file.h"
#include "millrace/storage/url.h"

namespace millrace::cli {

namespace {

constexpr double kLeastSeconds = 0.05;

struct BenchLoaderArgs {
  bench::LoaderBenchConfig config;
  std::string seconds = "10s", collate = "pack", html;
};

struct BenchTokenizerArgs {
  std::string url, seconds = "5s", html;
  std::vector<std::string> inputs;
  int threads = 0;
};

std::chrono::duration<double> seconds_of(const std::string& text) {
  const auto seconds = usage_value("--seconds", parse_duration(text));
  if (seconds.count() < kLeastSeconds) throw CLI::ValidationError("--seconds", "is 50ms or more");
  return seconds;
}

std::string tokens_text(double rate) {
  return format_count(static_cast<int64_t>(rate)) + " tokens/s";
}

Status run_bench_loader(const BenchLoaderArgs& args, Context& context) {
  const StopScope scope(context.stop);
  ASSIGN_OR_RETURN(const bench::LoaderBenchResult found, bench::bench_loader(args.config, context.stop));
  const double asked = args.config.train_tokens_per_s;
  TextTable table({{"what"}, {"value"}});
  table.add({"first batch after", format_duration(found.first_batch_s)});
  table.add({"as fast as it goes", fmt::format("{}, {} in {}", tokens_text(found.tokens_per_s()),
                                               counted(found.batches, "batch"), format_duration(found.seconds))});
  table.add({"read from storage", format_rate(static_cast<double>(found.read_bytes) / found.seconds)});
  table.add({"threads", std::to_string(found.threads)});
  table.add(
      {"stages, summed over threads", fmt::format("read {}, decode {}, collate {}", format_duration(found.read_s),
                                                  format_duration(found.decode_s), format_duration(found.collate_s))});
  table.add({"the limit", found.limit});
  if (found.cache_hit_bytes + found.cache_miss_bytes > 0) {
    table.add({"from the cache of the node",
               fmt::format("{:.0f} %", 100.0 * static_cast<double>(found.cache_hit_bytes) /
                                           static_cast<double>(found.cache_hit_bytes + found.cache_miss_bytes))});
  }
  std::string text = table.to_string();
  if (found.wait_share) {
    text += fmt::format("training at {} would wait {:.1f} % of its time for data\n", tokens_text(asked),
                        *found.wait_share * 100);
  }
  const Json object{{"type", "bench_loader"},
                    {"first_batch_s", found.first_batch_s},
                    {"seconds", found.seconds},
                    {"batches", found.batches},
                    {"tokens", found.tokens},
                    {"tokens_per_s", found.tokens_per_s()},
                    {"read_bytes", found.read_bytes},
                    {"read_s", found.read_s},
                    {"decode_s", found.decode_s},
                    {"collate_s", found.collate_s},
                    {"threads", found.threads},
                    {"limit", found.limit},
                    {"train_tokens_per_s", asked > 0 ? Json(asked) : Json(nullptr)},
                    {"wait_share", found.wait_share ? Json(*found.wait_share) : Json(nullptr)}};
  context.out.print(object, text);
  HtmlReport report(args.html, "millrace bench loader");
  report.add(object);
  return report.write(context);
}

Status run_bench_tokenizer(const BenchTokenizerArgs& args, Context& context) {
  constexpr int64_t kMostText = 64 << 20;
  const StopScope scope(context.stop);
  bench::TokenizerBenchConfig config;
  config.seconds = seconds_of(args.seconds);
  config.name = args.url;
  ASSIGN_OR_RETURN(config.json, prepare::read_tokenizer(args.url));
  for (const std::string& input : args.inputs) {
    ASSIGN_OR_RETURN(const Location place, open_url(input));
    ASSIGN_OR_RETURN(const std::string text, read_object(*place.storage, place.key, kMostText));
    config.text += text;
  }
  std::vector<int> counts{1};
  const int threads = args.threads > 0 ? args.threads : available_cpus();
  if (threads > 1) counts.push_back(threads);
  HtmlReport report(args.html, "millrace bench tokenizer");
  TextTable table({{"threads", true}, {"text", true}, {"tokens", true}, {"bytes a token", true}});
  for (const int count : counts) {
    config.threads = count;
    ASSIGN_OR_RETURN(const bench::TokenizerBenchResult found, bench::bench_tokenizer(config, context.stop));
    const double rate = static_cast<double>(found.tokens) / found.seconds;
    table.add({std::to_string(count), format_rate(found.bytes_per_s()), tokens_text(rate),
               fmt::format("{:.2f}", static_cast<double>(found.bytes) /
                                         static_cast<double>(std::max<int64_t>(1, found.tokens)))});
    const Json object{{"type", "bench_tokenizer"}, {"threads", count},       {"seconds", found.seconds},
                      {"bytes", found.bytes},      {"tokens", found.tokens}, {"bytes_per_s", found.bytes_per_s()},
                      {"tokens_per_s", rate}};
    context.out.print_json(object);
    report.add(object);
  }
  context.out.print_text(table.to_string());
  return report.write(context);
}

}  // namespace

void add_bench_loader(Verbs& verbs, CLI::App& group) {
  auto args = std::make_shared<BenchLoaderArgs>();
  CLI::App& app = verbs.add(
      group, "loader", "Measure the loader on shards, and how long a training would wait for it",
      {"millrace bench loader /fsx/shards --seq-len 2048 --batch-size 8",
       "millrace bench loader shards/{00000..00009}.tar --seq-len 2048 --batch-size 8 --train 50000",
       "millrace bench loader s3://bucket/shards --seq-len 4096 --batch-size 4 --cache /nvme/cache --json"},
      [args](Context& context) { return run_bench_loader(*args, context); },
      [args] {
        args->config.seconds = seconds_of(args->seconds);
        args->config.options.collate = usage_value("--collate", loader::parse_collate(args->collate));
        args->config.options.order.shuffle = true;
      });
  loader::LoaderOptions& options = args->config.options;
  add_shard_arguments(app, options.shards);
  const auto number = [&](const char* flag, auto& value, int64_t least, const char* text) {
    return app.add_option(flag, value, text)->check(CLI::Range(least, int64_t{1} << 30))->option_text("N");
  };
  number("--seq-len", options.seq_len, 1, "Tokens a row")->required();
  number("--batch-size", options.batch_size, 1, "Rows a batch of this rank")->required();
  number("--threads", options.threads, 0, "Threads (default: as mr.Loader)");
  number("--world-size", options.world_size, 1, "Ranks; this is rank 0 (default: 1)");
  add_choice_flag(
      app, "--collate", {"pack", "pad"}, [args](const std::string& word) { args->collate = word; },
      "How samples become rows (default: pack)");
  add_size_flag(app, "--memory", options.memory_bytes, "For read-ahead and batches (default: as mr.Loader)");
  app.add_option("--cache", options.cache, "Folder of the cache of the node")->option_text("DIR");
  app.add_option("--train", args->config.train_tokens_per_s, "Tokens a second that training takes on this rank")
      ->check(CLI::NonNegativeNumber)
      ->option_text("RATE");
  app.add_option("--seconds", args->seconds, "How long to measure, each of the two parts (default: 10s)")
      ->option_text("TIME");
  add_html_flag(app, args->html);
}

void add_bench_tokenizer(Verbs& verbs, CLI::App& group) {
  auto args = std::make_shared<BenchTokenizerArgs>();
  CLI::App& app = verbs.add(
      group, "tokenizer", "Measure a tokenizer on text of yours, with one thread and with many",
      {"millrace bench tokenizer tokenizer.json text.txt",
       "millrace bench tokenizer tokenizer.json a.txt b.txt --threads 16",
       "millrace bench tokenizer s3://bucket/tokenizer.json text.txt --seconds 2s --json"},
      [args](Context& context) { return run_bench_tokenizer(*args, context); },
      [args] { static_cast<void>(seconds_of(args->seconds)); });
  app.add_option("TOKENIZER", args->url, "The tokenizer.json or tiktoken.model: a path or a URL")
      ->required()
      ->option_text(" ");
  app.add_option("INPUT", args->inputs, "Plain text, at most 64 MiB each")->required()->option_text(" ");
  app.add_option("--threads", args->threads, "Threads of the second line (default: the processors of this process)")
      ->check(CLI::Range(0, 1024))
      ->option_text("N");
  app.add_option("--seconds", args->seconds, "How long to measure (default: 5s)")->option_text("TIME");
  add_html_flag(app, args->html);
}

}  // namespace millrace::cli
