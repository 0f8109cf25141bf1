// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "millrace/base/text/units.h"
#include "millrace/cli/plan_flags.h"
#include "millrace/plan/eta.h"
#include "millrace/plan/instances.h"

namespace millrace::cli {

namespace {

struct EtaArgs {
  PlanFlags flags;
  plan::EtaOptions options;
  std::string gpu, measured_on;
  std::string instance, region, purchase;
  double usd_per_gpu_hour = -1;
};

void check_eta(EtaArgs& args) {
  if (!args.gpu.empty()) args.options.gpu = usage_value("--gpu", plan::find_gpu(args.gpu));
  if (!args.measured_on.empty())
    args.options.measured_on = usage_value("--measured-on", plan::find_gpu(args.measured_on));
  if (!args.instance.empty()) {
    const plan::Instance instance = usage_value("--instance", plan::find_gpu_instance(args.instance));
    if (!args.options.gpu) args.options.gpu = usage_value("--instance", plan::find_gpu(instance.gpu_id));
    if (args.options.network_bytes_per_s == 0) {
      args.options.network_bytes_per_s =
          static_cast<double>(instance.network_mbps) * 1e6 / 8 / static_cast<double>(instance.gpus);
    }
  }
}

// Sets the price of a GPU hour and its source.
Status add_price(const EtaArgs& args, plan::EtaOptions& options, plan::Why& why) {
  if (args.usd_per_gpu_hour >= 0) {
    options.usd_per_gpu_hour = args.usd_per_gpu_hour;
    why.terms.push_back({"price", plan::Range::point(args.usd_per_gpu_hour), "USD a GPU-hour", plan::kGiven});
  } else if (!args.instance.empty()) {
    ASSIGN_OR_RETURN(const plan::PriceBook book, price_book(args.flags));
    const auto price = plan::find_price(book, args.instance, args.region, args.purchase);
    if (!price) {
      why.notes.push_back(fmt::format("no cost: {} has no such price of {}", book.name(), args.instance));
      return {};
    }
    options.usd_per_gpu_hour = price->usd_per_gpu_hour();
    why.terms.push_back({"price", plan::Range::point(price->usd_per_gpu_hour()), "USD a GPU-hour",
                         fmt::format("{} {}: {} ({})", price->region, price->purchase, price->source, book.name())});
  }
  if (options.usd_per_gpu_hour) why.formulas.emplace_back("cost = GPU-hours x price");
  return {};
}

Status run_plan_eta(const EtaArgs& args, Context& context) {
  plan::EtaOptions options = args.options;
  plan::Why price;
  RETURN_IF_ERROR(add_price(args, options, price));
  ASSIGN_OR_RETURN(plan::EtaPlan plan, plan::plan_eta(options));
  plan.why.add(price);
  TextTable table({{"what"}, {"answer"}});
  table.add({options.model_parallel > 1 ? "a sample on the GPUs of a copy" : "a sample on one GPU",
             duration_range_text(plan.sample_s)});
  table.add({"computing, a step", duration_range_text(plan.compute_s)});
  if (options.sample_bytes > 0) table.add({"waiting for data, a step", duration_range_text(plan.exposed_read_s)});
  if (options.gradient_bytes > 0) table.add({"exchanging gradients, a step", duration_range_text(plan.sync_s)});
  if (plan.checkpoint_s > 0)
    table.add({"checkpoints, a step", duration_range_text(plan::Range::point(plan.checkpoint_s))});
  table.add({"a step", duration_range_text(plan.step_s)});
  table.add({"samples a second", range_text(plan.samples_per_s)});
  table.add({"optimizer steps", number_text(plan.steps)});
  table.add({"in all", duration_range_text(plan.total_s)});
  table.add({"GPU-hours", range_text(plan.gpu_hours)});
  if (plan.usd) table.add({"USD", range_text(*plan.usd)});
  context.out.print({{"type", "plan_eta"},
                     {"sample_s", range_json(plan.sample_s)},
                     {"compute_s", range_json(plan.compute_s)},
                     {"exposed_read_s", range_json(plan.exposed_read_s)},
                     {"sync_s", range_json(plan.sync_s)},
                     {"checkpoint_s", plan.checkpoint_s},
                     {"step_s", range_json(plan.step_s)},
                     {"steps", plan.steps},
                     {"total_s", range_json(plan.total_s)},
                     {"samples_per_s", range_json(plan.samples_per_s)},
                     {"gpu_hours", range_json(plan.gpu_hours)},
                     {"usd", plan.usd ? range_json(*plan.usd) : Json(nullptr)}},
                    table.to_string());
  print_why(context, plan.why, args.flags);
  return {};
}

void add_cost_flags(CLI::App& app, EtaArgs& args) {
  app.add_option("--instance", args.instance, "Type of the nodes, for GPU, network and price")->option_text("TYPE");
  app.add_option("--region", args.region, "AWS region for prices")->option_text("NAME");
  app.add_option("--purchase", args.purchase, "Purchase option: on-demand, capacity-block, ...")->option_text("KIND");
  app.add_option("--usd-per-gpu-hour", args.usd_per_gpu_hour, "Price of a GPU for an hour, instead of the price book's")
      ->check(CLI::Range(0.0, 1e6))
      ->option_text("USD");
  add_prices_flag(app, args.flags);
}

}  // namespace

void add_plan_eta(Verbs& verbs, CLI::App& plan) {
  auto args = std::make_shared<EtaArgs>();
  CLI::App& app = verbs.add(
      plan, "eta", "Estimate how long a run takes, as a range, and what it costs",
      {"millrace plan eta --steps 10000 --micro 10 --gpus 4 --accumulation 3 --sample-time 130ms --measured-on rtx4090 "
       "--gpu l40s",
       "millrace plan eta --steps 100000 --micro 2 --gpus 88 --parameters 7B --tokens 4096 --instance p5e.48xlarge",
       "millrace plan eta --steps 5000 --micro 8 --gpus 8 --sample-time 0.2s --sample-bytes 3MB --read-rate 2GB/s"},
      [args](Context& context) { return run_plan_eta(*args, context); }, [args] { check_eta(*args); });
  plan::EtaOptions& options = args->options;
  const auto add_count = [&](const char* flag, int64_t& value, const char* description) {
    return app.add_option(flag, value, description)->check(CLI::Range(int64_t{1}, kMaxCount))->option_text("N");
  };
  add_parsed_flag(app, "--steps", options.steps, "N", "Optimizer steps", parse_amount)->required();
  app.add_flag("--micro-steps", options.micro_steps, "--steps counts passes of one micro batch");
  add_count("--micro", options.micro, "Samples per GPU and pass (default: 1)");
  add_count("--gpus", options.gpus, "GPUs (default: 1)");
  add_count("--accumulation", options.accumulation, "Passes per optimizer step (default: 1)");
  add_count("--model-parallel", options.model_parallel, "GPUs that hold one copy of the model");
  add_parsed_flag(app, "--sample-time", options.sample_s, "TIME",
                  "Measured: forward and backward of one sample on one GPU", parse_seconds);
  app.add_option("--tolerance", options.tolerance, "Relative error of that measurement, both ways (default: 0.1)")
      ->check(CLI::Range(0.0, 0.99))
      ->option_text("SHARE");
  app.add_option("--measured-on", args->measured_on, "GPU of that measurement (default: that of --gpu)")
      ->option_text("NAME");
  app.add_option("--gpu", args->gpu, "The GPU that it will run on")->option_text("NAME");
  add_parsed_flag(app, "--parameters", options.parameters, "N",
                  "Parameters of the model, where there is no measurement", parse_parameters);
  add_parsed_flag(app, "--tokens", options.tokens, "N", "Tokens of one sample", parse_amount);
  add_parsed_flag(app, "--utilisation", options.utilisation, "LOW:HIGH",
                  "Range of the utilisation of the GPU's peak (default: 0.3:0.5)", parse_range);
  app.add_flag("--recompute", options.recompute, "Activations are recomputed in the backward pass");
  add_parsed_flag(app, "--sample-bytes", options.sample_bytes, "SIZE", "Bytes read for one sample", parse_size);
  add_parsed_flag(app, "--read-rate", options.read_bytes_per_s, "RATE", "Read bandwidth of all ranks together",
                  parse_rate);
  add_parsed_flag(app, "--gradient-bytes", options.gradient_bytes, "SIZE",
                  "Bytes of gradients of the whole model, exchanged each step; each GPU has 1/--model-parallel of them",
                  parse_size);
  add_parsed_flag(app, "--network", options.network_bytes_per_s, "RATE",
                  "Network bandwidth of one GPU (default: the instance's share)", parse_rate);
  add_parsed_flag(app, "--checkpoint-bytes", options.checkpoint_bytes, "SIZE", "Size of one checkpoint", parse_size);
  add_parsed_flag(app, "--write-rate", options.write_bytes_per_s, "RATE", "Write bandwidth of checkpoints", parse_rate);
  add_parsed_flag(app, "--checkpoint-stall", options.checkpoint_stall_s, "TIME",
                  "Time that one checkpoint stops training, instead of --write-rate", parse_seconds);
  add_parsed_flag(app, "--checkpoint-every", options.checkpoint_every_steps, "N",
                  "Optimizer steps between two checkpoints", parse_amount);
  add_cost_flags(app, *args);
  add_explain_flag(app, args->flags);
}

}  // namespace millrace::cli
