// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "millrace/base/text/units.h"
#include "millrace/bench/checkpoint_bench.h"
#include "millrace/bench/workplace.h"
#include "millrace/cli/html_report.h"
#include "millrace/cli/plan_flags.h"
#include "millrace/plan/checkpoints.h"

namespace millrace::cli {

namespace {

struct BenchCheckpointArgs {
  bench::CheckpointBenchConfig config;
  std::string root, like, html;
  std::vector<std::string> tiers;
  double mtbf_s = 0, interval_s = 0;
  int64_t gpus = 0;
  PlanFlags flags;
};

// The tensors of the newest good step below `url`.
Result<std::vector<checkpoint::StoredTensor>> tensors_like(const std::string& url) {
  ASSIGN_OR_RETURN(const Location root, open_url(url));
  ASSIGN_OR_RETURN(const auto steps, checkpoint::list_steps(root));
  const checkpoint::StepInfo* const newest = checkpoint::newest_step(steps);
  if (newest == nullptr) return fail(ErrorCode::kNotFound, "{}: no checkpoints there", url);
  ASSIGN_OR_RETURN(const auto checkpoint, checkpoint::Checkpoint::open(root, newest->step));
  const auto tensors = checkpoint->tensors();
  return std::vector<checkpoint::StoredTensor>(tensors.begin(), tensors.end());
}

Status run_bench_checkpoint(BenchCheckpointArgs args, Context& context) {
  const StopScope scope(context.stop);
  args.config.folders = args.tiers;
  args.config.folders.push_back(args.root);
  for (const std::string& folder : args.config.folders)
    RETURN_IF_ERROR(bench::remove_left_folders(folder).map([](int) {}));
  if (!args.like.empty()) {
    ASSIGN_OR_RETURN(args.config.tensors, tensors_like(args.like));
  }
  ASSIGN_OR_RETURN(const bench::CheckpointBenchResult found, bench::bench_checkpoint(args.config, context.stop));
  const auto bytes = static_cast<double>(found.bytes);
  const double durable = *std::max_element(found.durable_s.begin(), found.durable_s.end());
  TextTable table({{"what"}, {"value"}});
  table.add(
      {"the state of this rank", fmt::format("{} in {}", format_bytes(found.bytes), counted(found.tensors, "tensor"))});
  table.add({"the first save stops training", format_duration(found.first_stop_s)});
  table.add({"the others stop training",
             fmt::format("{}; one memcpy takes {}", format_duration(found.stop_s), format_duration(found.copy_s))});
  Json tiers = Json::array();
  for (size_t i = 0; i < found.durable_s.size(); ++i) {
    tiers.push_back({{"folder", args.config.folders[i]}, {"durable_s", found.durable_s[i]}});
    table.add({"durable in " + args.config.folders[i],
               fmt::format("{}, {}", format_duration(found.durable_s[i]), format_rate(bytes / found.durable_s[i]))});
  }
  table.add(
      {"processor time of one save", fmt::format("{:.2f} s, {:.2f} s a GB", found.cpu_s, found.cpu_s / bytes * 1e9)});
  table.add({"a load takes", fmt::format("{}, {}", format_duration(found.load_s), format_rate(bytes / found.load_s))});
  // The verdict: how often to save, and what it costs.
  const double mtbf = args.mtbf_s;
  plan::CheckpointOptions options{
      .bytes = bytes, .stall_s = std::max(found.stop_s, 1e-6), .mtbf_s = mtbf, .gpus = args.gpus};
  if (mtbf <= 0 && args.gpus == 0) options.gpus = 8;
  ASSIGN_OR_RETURN(const plan::CheckpointPlan plan, plan::plan_checkpoints(options));
  // No more often than a save takes until it is durable: the next one would wait for it.
  const double best = std::max(plan.daly_s.value_or(durable), durable);
  const double interval = args.interval_s > 0 ? args.interval_s : best;
  const double waits = std::max(0.0, durable - interval);  // until the save before is done
  const double share = (found.stop_s + waits) / interval;
  std::string text = table.to_string();
  const auto duration = [](double seconds) { return duration_range_text(plan::Range::point(seconds)); };
  text += fmt::format("save every {} (Daly, a failure every {}{})\n", duration(best), duration(*plan.mtbf_s),
                      best > plan.daly_s.value_or(0) ? "; not before the one before is durable" : "");
  text += fmt::format("training that saves every {} would stand {:.2f} % of its time for checkpoints{}\n",
                      duration(interval), 100 * share,
                      waits > 0 ? ", because a save is not durable before the next one begins" : "");
  const Json object{{"type", "bench_checkpoint"},
                    {"bytes", found.bytes},
                    {"tensors", found.tensors},
                    {"first_stop_s", found.first_stop_s},
                    {"stop_s", found.stop_s},
                    {"copy_s", found.copy_s},
                    {"tiers", tiers},
                    {"cpu_s", found.cpu_s},
                    {"load_s", found.load_s},
                    {"mtbf_s", *plan.mtbf_s},
                    {"best_interval_s", best},
                    {"interval_s", interval},
                    {"stop_share", share}};
  context.out.print(object, text);
  print_why(context, plan.why, args.flags);
  HtmlReport report(args.html, "millrace bench checkpoint");
  report.add(object);
  return report.write(context);
}

}  // namespace

void add_bench_checkpoint(Verbs& verbs, CLI::App& group) {
  auto args = std::make_shared<BenchCheckpointArgs>();
  CLI::App& app =
      verbs.add(group, "checkpoint", "Measure saves and loads in folders of yours, and how often to save",
                {"millrace bench checkpoint /fsx/scratch --size 20GB",
                 "millrace bench checkpoint /fsx/scratch --tier /nvme/scratch --like /fsx/run1/checkpoints --gpus 512",
                 "millrace bench checkpoint /nvme/scratch --size 2GB --interval 10min --json"},
                [args](Context& context) { return run_bench_checkpoint(*args, context); });
  app.add_option("DIR", args->root, "Folder that exists; what the test makes in it is removed")
      ->required()
      ->option_text(" ");
  app.add_option("--tier", args->tiers, "A nearer folder that exists; several, nearest first")
      ->allow_extra_args(false)
      ->option_text("DIR");
  add_size_flag(app, "--size", args->config.bytes, "Size of this rank's state (default: 1GB)", 1);
  app.add_option("--like", args->like, "Instead: tensors as in the newest step of these checkpoints")
      ->option_text("ROOT");
  app.add_option("--rounds", args->config.rounds, "Saves behind the first one (3)")
      ->check(CLI::Range(1, 1000))
      ->option_text("N");
  app.add_option("--threads", args->config.threads, "Threads (default: as Checkpointer)")
      ->check(CLI::Range(0, 1024))
      ->option_text("N");
  app.add_flag("--reserve", args->config.reserve, "Take the snapshot's memory before the first save");
  add_parsed_flag(app, "--interval", args->interval_s, "TIME", "Time between saves (default: the best)", parse_seconds);
  add_parsed_flag(app, "--mtbf", args->mtbf_s, "TIME", "Mean time between failures of the whole job", parse_seconds);
  app.add_option("--gpus", args->gpus, "GPUs of the job, for a usual failure rate (8)")
      ->check(CLI::Range(int64_t{1}, kMaxCount))
      ->option_text("N");
  add_html_flag(app, args->html);
  add_explain_flag(app, args->flags);
}

}  // namespace millrace::cli
