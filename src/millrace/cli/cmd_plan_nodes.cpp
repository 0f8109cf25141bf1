// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "millrace/base/text/units.h"
#include "millrace/cli/plan_flags.h"
#include "millrace/plan/catalogue.h"
#include "millrace/plan/instances.h"
#include "millrace/plan/nodes.h"

namespace millrace::cli {

namespace {

struct NodesArgs {
  PlanFlags flags;
  plan::NodesOptions options;
  int64_t models = 0;
  int64_t gpus_per_node = 0;  // 0: the instance's, or the planner's default
  std::vector<std::string> wishes;
  std::string instance, region, purchase;
};

plan::ModelWish parse_wish(const std::string& text) {
  const std::string flag = "--model";
  const Spec spec = parse_spec(flag, text);
  if (spec.name.empty())
    throw CLI::ValidationError(flag, fmt::format("'{}' names no model; write for example big:weight=14,min=11", text));
  plan::ModelWish wish{.name = spec.name};
  apply_spec(flag, spec,
             {{"weight", [&](const std::string& value) { wish.weight = parse_amount(flag, value); }},
              {"min", [&](const std::string& value) { wish.min_nodes = parse_count(flag, value); }},
              {"max", [&](const std::string& value) { wish.max_nodes = parse_count(flag, value, 1); }},
              {"multiple", [&](const std::string& value) { wish.multiple = parse_count(flag, value, 1); }}});
  return wish;
}

void check_nodes(NodesArgs& args) {
  args.options.models.clear();
  for (const std::string& text : args.wishes) args.options.models.push_back(parse_wish(text));
  for (int64_t i = 1; i <= args.models; ++i) args.options.models.push_back({.name = fmt::format("model{}", i)});
  std::set<std::string> names;
  for (const plan::ModelWish& model : args.options.models) {
    if (!names.insert(model.name).second)
      throw CLI::ValidationError("--model", fmt::format("{} is there twice", model.name));
  }
  if (args.options.models.empty()) throw CLI::ValidationError("--models", "is required, or --model");
  if (args.gpus_per_node > 0) {
    args.options.gpus_per_node = args.gpus_per_node;
  } else if (!args.instance.empty()) {
    args.options.gpus_per_node = usage_value("--instance", plan::find_gpu_instance(args.instance)).gpus;
  }
}

// The price of a node hour; nullopt without an instance, or when the book lacks it.
Result<std::optional<plan::Price>> node_price(const NodesArgs& args, plan::Why& why) {
  if (args.instance.empty()) return std::nullopt;
  ASSIGN_OR_RETURN(const plan::PriceBook book, price_book(args.flags));
  const auto price = plan::find_price(book, args.instance, args.region, args.purchase);
  if (!price) {
    why.notes.push_back(fmt::format("no cost: {} has no such price of {}", book.name(), args.instance));
    return std::nullopt;
  }
  why.formulas.emplace_back("cost = nodes x price of a node");
  why.terms.push_back({"price", plan::Range::point(price->usd_per_hour), "USD an hour and node",
                       fmt::format("{} {}: {} ({})", price->region, price->purchase, price->source, book.name())});
  return price;
}

Json bool_or_null(const std::optional<bool>& value) {
  return value ? Json(*value) : Json(nullptr);
}

std::string yes_or_no(const std::optional<bool>& value) {
  return value ? (*value ? "yes" : "no") : "-";
}

Status run_plan_nodes(const NodesArgs& args, Context& context) {
  const plan::NodesOptions& options = args.options;
  ASSIGN_OR_RETURN(plan::NodesPlan plan, plan::plan_nodes(options));
  ASSIGN_OR_RETURN(const std::optional<plan::Price> price, node_price(args, plan.why));
  TextTable table({{"model"},
                   {"nodes", true},
                   {"gpus", true},
                   {"share", true},
                   {"batch divides"},
                   {"copies fit"},
                   {"USD an hour", true}});
  const auto cost = [&](int64_t nodes) {
    return price ? std::optional(static_cast<double>(nodes) * price->usd_per_hour) : std::nullopt;
  };
  int64_t total = 0;
  for (const plan::ModelNodes& model : plan.models) {
    total += model.nodes;
    const auto usd = cost(model.nodes);
    context.out.print_json({{"type", "plan_model"},
                            {"model", model.name},
                            {"nodes", model.nodes},
                            {"gpus", model.gpus},
                            {"share", model.share},
                            {"batch_divides", bool_or_null(model.batch_divides)},
                            {"copies_fit", bool_or_null(model.model_fits)},
                            {"usd_per_hour", usd ? Json(*usd) : Json(nullptr)}});
    table.add({model.name, format_count(model.nodes), format_count(model.gpus), fmt::format("{:.2f}", model.share),
               yes_or_no(model.batch_divides), yes_or_no(model.model_fits), usd ? number_text(*usd) : "-"});
  }
  const auto usd = cost(options.nodes);
  context.out.print_text(table.to_string());
  context.out.print({{"type", "plan_nodes"},
                     {"nodes", options.nodes},
                     {"gpus", options.nodes * options.gpus_per_node},
                     {"used", total},
                     {"spares", plan.spares},
                     {"idle", plan.idle},
                     {"usd_per_hour", usd ? Json(*usd) : Json(nullptr)}},
                    fmt::format("\n{} of {} nodes in use, {} spare, {} idle{}\n", total, options.nodes, plan.spares,
                                plan.idle, usd ? fmt::format("; {} USD an hour in all", number_text(*usd)) : ""));
  print_why(context, plan.why, args.flags);
  return {};
}

}  // namespace

void add_plan_nodes(Verbs& verbs, CLI::App& plan) {
  auto args = std::make_shared<NodesArgs>();
  CLI::App& app = verbs.add(
      plan, "nodes", "Divide a cluster's nodes among several models, by weight",
      {"millrace plan nodes --nodes 80 --models 7",
       "millrace plan nodes --nodes 80 --model a:weight=11 --model b:weight=14,min=12 --spares 2",
       "millrace plan nodes --nodes 80 --models 7 --instance p5e.48xlarge --global-batch 1024"},
      [args](Context& context) { return run_plan_nodes(*args, context); }, [args] { check_nodes(*args); });
  const auto add_count = [&](const char* flag, int64_t& value, const char* description) {
    return app.add_option(flag, value, description)->check(CLI::Range(int64_t{0}, kMaxCount))->option_text("N");
  };
  plan::NodesOptions& options = args->options;
  add_count("--nodes", options.nodes, "Available nodes")->required();
  add_count("--models", args->models, "Number of models of equal weight")->check(CLI::Range(int64_t{1}, int64_t{1000}));
  app.add_option("--model", args->wishes, "One model; keys: weight, min, max, multiple; may be repeated")
      ->option_text("NAME:weight=W,min=N");
  add_count("--spares", options.spares, "Nodes to keep free (default: 0)");
  add_count("--gpus-per-node", args->gpus_per_node, "GPUs of a node (default: the instance's, or 8)");
  add_count("--model-parallel", options.model_parallel, "GPUs that hold one copy: tensor x pipeline x context");
  add_count("--global-batch", options.global_batch, "Samples a step of each model");
  app.add_option("--instance", args->instance, "Type of the nodes, for their GPUs and price")->option_text("TYPE");
  app.add_option("--region", args->region, "AWS region for prices")->option_text("NAME");
  app.add_option("--purchase", args->purchase, "Purchase option: on-demand, capacity-block, ...")->option_text("KIND");
  add_prices_flag(app, args->flags);
  add_explain_flag(app, args->flags);
}

}  // namespace millrace::cli
