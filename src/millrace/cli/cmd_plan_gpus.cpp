// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "millrace/base/text/units.h"
#include "millrace/cli/plan_partitions.h"
#include "millrace/plan/catalogue.h"
#include "millrace/plan/instances.h"

namespace millrace::cli {

namespace {

struct GpusArgs {
  PlanFlags flags;
  PartitionFlags partitions;
  std::vector<std::string> names;
  std::vector<plan::Gpu> chosen;
  std::string by = "tflops";
  bool instances = false;
  bool mig = false;
};

const std::vector<std::string> kInstanceMeasures{"tflops-per-usd", "memory-per-usd"};

plan::Measure measure_of(const std::string& name) {
  if (name.starts_with("memory")) return plan::Measure::kMemory;
  return name == "bandwidth" ? plan::Measure::kBandwidth : plan::Measure::kTflops;
}

bool by_price(const GpusArgs& args) {
  return args.by.ends_with("-per-usd");
}

void check_gpus(GpusArgs& args) {
  check_partition_flags(args.partitions, false);
  args.chosen.clear();
  for (const std::string& name : args.names) args.chosen.push_back(usage_value("--gpu", plan::find_gpu(name)));
  if (args.chosen.empty()) args.chosen.assign(plan::gpus().begin(), plan::gpus().end());
  if (!args.mig) return;
  std::vector<plan::Gpu> slices;
  for (const plan::Gpu& gpu : args.chosen) {
    for (plan::Gpu& slice : plan::mig_slices(gpu)) slices.push_back(std::move(slice));
  }
  args.chosen.insert(args.chosen.end(), slices.begin(), slices.end());
}

void explain_convention(plan::Why& why) {
  why.formulas.emplace_back(
      "TFLOPS: dense 16-bit tensor operations with FP32 accumulation, bf16 (fp16 where there is none); no sparse and "
      "no shader figures");
  why.formulas.emplace_back("memory: MiB as a driver or the cloud counts them, before the context of 0.5 to 1 GiB");
}

Status run_gpus(const GpusArgs& args, Context& context) {
  TextTable table({{"gpu"}, {"memory MiB", true}, {"TFLOPS", true}, {"GB/s", true}, {"bf16"}, {"note"}});
  plan::Why why;
  explain_convention(why);
  for (const plan::Gpu& gpu : plan::ranked(args.chosen, measure_of(args.by))) {
    context.out.print_json({{"type", "plan_gpu"},
                            {"gpu", gpu.id},
                            {"name", gpu.name},
                            {"memory_mib", gpu.memory_mib.value},
                            {"tflops", gpu.tflops.value},
                            {"bandwidth_gb_per_s", gpu.bandwidth_gb_per_s.value},
                            {"compute_capability", gpu.compute_capability},
                            {"bf16", gpu.bf16},
                            {"note", gpu.note},
                            {"memory_source", gpu.memory_mib.source_text()},
                            {"tflops_source", gpu.tflops.source_text()},
                            {"bandwidth_source", gpu.bandwidth_gb_per_s.source_text()}});
    table.add({gpu.id, number_text(gpu.memory_mib.value), number_text(gpu.tflops.value),
               number_text(gpu.bandwidth_gb_per_s.value), gpu.bf16 ? "yes" : "no", gpu.note});
    if (args.flags.explain) {
      for (plan::Term& term : plan::terms_of(gpu)) why.terms.push_back(std::move(term));
    }
  }
  if (!args.flags.explain)
    why.notes.emplace_back("--explain and --json give the source, the date and the confidence of every figure");
  context.out.print_text(table.to_string());
  print_why(context, why, args.flags);
  return {};
}

struct InstanceRow {
  plan::Instance instance;
  plan::Gpu gpu;
  std::optional<plan::Price> price;

  double value(plan::Measure by, bool per_usd) const {
    const double one = by == plan::Measure::kMemory      ? gpu.memory_mib.value
                       : by == plan::Measure::kBandwidth ? gpu.bandwidth_gb_per_s.value
                                                         : gpu.tflops.value;
    const double all = one * static_cast<double>(instance.gpus);
    return !per_usd ? all : price ? all / price->usd_per_hour : 0;
  }
};

Result<std::vector<InstanceRow>> instance_rows(const GpusArgs& args, const plan::PriceBook& book) {
  std::vector<InstanceRow> rows;
  for (const plan::Instance& instance : plan::instances()) {
    const bool wanted = std::any_of(args.chosen.begin(), args.chosen.end(),
                                    [&](const plan::Gpu& gpu) { return gpu.id == instance.gpu_id; });
    if (!wanted) continue;
    ASSIGN_OR_RETURN(plan::Gpu gpu, plan::find_gpu(instance.gpu_id));
    rows.push_back({instance, std::move(gpu), plan::find_price(book, instance.name)});
  }
  std::stable_sort(rows.begin(), rows.end(), [&](const InstanceRow& a, const InstanceRow& b) {
    return a.value(measure_of(args.by), by_price(args)) > b.value(measure_of(args.by), by_price(args));
  });
  return rows;
}

Status run_instances(const GpusArgs& args, Context& context) {
  ASSIGN_OR_RETURN(const plan::PriceBook book, price_book(args.flags));
  ASSIGN_OR_RETURN(const std::vector<InstanceRow> rows, instance_rows(args, book));
  TextTable table({{"instance"},
                   {"gpus", true},
                   {"gpu"},
                   {"TFLOPS", true},
                   {"GPU GiB", true},
                   {"vCPUs", true},
                   {"GiB", true},
                   {"NVMe GB", true},
                   {"Gbps", true},
                   {"EFA", true},
                   {"USD/h", true},
                   {"TFLOPS/USD", true}});
  plan::Why why;
  explain_convention(why);
  why.terms.push_back({"instances", plan::Range::point(static_cast<double>(rows.size())), "",
                       fmt::format("{} ({})", plan::source_of("ec2").text, plan::source_of("ec2").date)});
  for (const InstanceRow& row : rows) {
    const plan::Instance& each = row.instance;
    const double network_gbps = static_cast<double>(each.network_mbps) / 1000;
    const double tflops = row.value(plan::Measure::kTflops, false),
                 gpu_gib = row.value(plan::Measure::kMemory, false) / 1024;
    context.out.print_json({{"type", "plan_instance"},
                            {"instance", each.name},
                            {"gpu", each.gpu_id},
                            {"gpus", each.gpus},
                            {"tflops", tflops},
                            {"gpu_memory_gib", gpu_gib},
                            {"vcpus", each.vcpus},
                            {"memory_gib", each.memory_mib / 1024},
                            {"nvme_gb", each.nvme_gb},
                            {"network_gbps", network_gbps},
                            {"efa_interfaces", each.efa_interfaces},
                            {"usd_per_hour", row.price ? Json(row.price->usd_per_hour) : Json(nullptr)},
                            {"price_source", row.price ? Json(row.price->source) : Json(nullptr)}});
    table.add({std::string(each.name), format_count(each.gpus), std::string(each.gpu_id), number_text(tflops),
               number_text(gpu_gib), format_count(each.vcpus), format_count(each.memory_mib / 1024),
               format_count(each.nvme_gb), number_text(network_gbps), format_count(each.efa_interfaces),
               row.price ? number_text(row.price->usd_per_hour) : "-",
               row.price ? number_text(row.value(plan::Measure::kTflops, true)) : "-"});
    if (row.price)
      why.terms.push_back(
          {fmt::format("{} price", each.name), plan::Range::point(row.price->usd_per_hour), "USD an hour",
           fmt::format("{} {}: {} ({})", row.price->region, row.price->purchase, row.price->source, book.name())});
  }
  why.notes.emplace_back(
      "what has no price in the book has none here: --prices FILE brings yours; of several the lowest is shown");
  context.out.print_text(table.to_string());
  print_why(context, why, args.flags);
  return {};
}

Status run_existing(const GpusArgs& args, Context& context) {
  ASSIGN_OR_RETURN(KnownPartitions known, known_partitions(args.partitions, context.stop));
  struct Row {
    plan::Partition partition;
    std::optional<plan::Gpu> gpu;
  };
  std::vector<Row> rows;
  for (const plan::Partition& partition : known.partitions) {
    const auto gpu = plan::find_gpu(partition.gpu);
    rows.push_back({partition, gpu ? std::optional(*gpu) : std::nullopt});
  }
  const auto value = [&](const Row& row) {
    return row.gpu ? InstanceRow{{.gpus = row.partition.gpus()}, *row.gpu, {}}.value(measure_of(args.by), false) : 0;
  };
  std::stable_sort(rows.begin(), rows.end(), [&](const Row& a, const Row& b) { return value(a) > value(b); });
  TextTable table({{"partition"},
                   {"gpu"},
                   {"known as"},
                   {"nodes", true},
                   {"gpus", true},
                   {"free", true},
                   {"waiting", true},
                   {"limit"},
                   {"TFLOPS", true},
                   {"GiB a GPU", true}});
  for (const Row& row : rows) {
    const plan::Partition& each = row.partition;
    const double tflops = row.gpu ? row.gpu->tflops.value * static_cast<double>(each.gpus()) : 0;
    context.out.print_json({{"type", "plan_partition"},
                            {"partition", each.name},
                            {"gpu", each.gpu},
                            {"known_as", row.gpu ? Json(row.gpu->id) : Json(nullptr)},
                            {"nodes", each.nodes()},
                            {"gpus", each.gpus()},
                            {"gpus_per_node", each.gpus_per_node},
                            {"free_gpus", each.gpus_free()},
                            {"pending_jobs", each.pending_jobs},
                            {"max_time_s", each.max_time_s ? Json(*each.max_time_s) : Json(nullptr)},
                            {"preempted", each.preempted},
                            {"whole_nodes", each.whole_nodes},
                            {"tflops", row.gpu ? Json(tflops) : Json(nullptr)},
                            {"memory_mib", row.gpu ? Json(row.gpu->memory_mib.value) : Json(nullptr)}});
    table.add({each.name, each.gpu, row.gpu ? row.gpu->id : "-", format_count(each.nodes()), format_count(each.gpus()),
               format_count(each.gpus_free()), format_count(each.pending_jobs),
               each.max_time_s ? duration_range_text(plan::Range::point(*each.max_time_s)) : "none",
               row.gpu ? number_text(tflops) : "-", row.gpu ? number_text(row.gpu->memory_mib.value / 1024) : "-"});
    if (!row.gpu)
      known.why.notes.push_back(fmt::format("{}: the catalogue does not know '{}'; name it with --gpu-of {}=GPU",
                                            each.name, each.gpu, each.gpu_type.empty() ? each.name : each.gpu_type));
  }
  explain_convention(known.why);
  context.out.print_text(rows.empty() ? "no partition that is up has GPUs\n" : table.to_string());
  print_why(context, known.why, args.flags);
  return {};
}

Status run_plan_gpus(const GpusArgs& args, Context& context) {
  if (args.partitions.from_slurm || !args.partitions.file.empty()) return run_existing(args, context);
  return args.instances || by_price(args) ? run_instances(args, context) : run_gpus(args, context);
}

}  // namespace

void add_plan_gpus(Verbs& verbs, CLI::App& plan) {
  auto args = std::make_shared<GpusArgs>();
  CLI::App& app = verbs.add(
      plan, "gpus", "List GPUs and instances by memory, speed and price, or the GPUs of a Slurm cluster",
      {"millrace plan gpus --by memory", "millrace plan gpus --instances --by tflops-per-usd",
       "millrace plan gpus --gpu h100-nvl --mig --explain"},
      [args](Context& context) { return run_plan_gpus(*args, context); }, [args] { check_gpus(*args); });
  add_choice_flag(
      app, "--by", {"tflops", "memory", "bandwidth", kInstanceMeasures[0], kInstanceMeasures[1]},
      [args](const std::string& by) { args->by = by; }, "Order of the table (default: tflops)");
  app.add_option("--gpu", args->names, "Only this one; may be repeated")->option_text("NAME");
  app.add_flag("--mig", args->mig, "Show the slices of MIG too");
  app.add_flag("--instances", args->instances, "Cloud instances instead");
  add_partition_flags(app, args->partitions);
  add_prices_flag(app, args->flags);
  add_explain_flag(app, args->flags);
}

}  // namespace millrace::cli
