// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "millrace/base/text/units.h"
#include "millrace/cli/plan_flags.h"
#include "millrace/plan/catalogue.h"
#include "millrace/plan/instances.h"
#include "millrace/plan/pack.h"

namespace millrace::cli {

namespace {

// Slurm's RealMemory under ParallelCluster, when SchedulableMemory is not set.
constexpr double kSchedulable = 0.95;

struct PackArgs {
  PlanFlags flags;
  plan::PackOptions options;
  std::string instance, node;
  std::vector<std::string> jobs;
};

int64_t mib_of(const std::string& flag, const std::string& text) {
  return static_cast<int64_t>(parse_size(flag, text) / 1048576);
}

SpecKeys resource_keys(const std::string& flag, plan::Resources& to) {
  return {{"gpus", [&to, flag](const std::string& value) { to.gpus = parse_count(flag, value); }},
          {"cpus", [&to, flag](const std::string& value) { to.cpus = parse_count(flag, value); }},
          {"memory", [&to, flag](const std::string& value) { to.memory_mib = mib_of(flag, value); }},
          {"disk", [&to, flag](const std::string& value) {
             to.disk_mb = static_cast<int64_t>(parse_size(flag, value) / 1e6);
           }}};
}

void check_pack(PackArgs& args) {
  plan::PackOptions& options = args.options;
  if (args.instance.empty() == args.node.empty()) throw CLI::ValidationError("--node", "is required, or --instance");
  if (!args.instance.empty()) {
    const plan::Instance instance = usage_value("--instance", plan::find_gpu_instance(args.instance));
    options.node = {instance.gpus, instance.vcpus,
                    static_cast<int64_t>(kSchedulable * static_cast<double>(instance.memory_mib)),
                    1000 * instance.nvme_gb};
    if (options.gpu_type.empty()) options.gpu_type = instance.gpu_id;
  } else {
    apply_spec("--node", parse_spec("--node", args.node), resource_keys("--node", options.node));
  }
  options.jobs.clear();
  for (const std::string& text : args.jobs) {
    const Spec spec = parse_spec("--job", text);
    plan::PackJob job{.name = spec.name.empty() ? fmt::format("job{}", options.jobs.size() + 1) : spec.name};
    SpecKeys keys = resource_keys("--job", job.needs);
    keys["count"] = [&](const std::string& value) { job.count = parse_count("--job", value, 1); };
    apply_spec("--job", spec, keys);
    options.jobs.push_back(job);
  }
}

Json resources_json(const plan::Resources& resources) {
  return {{"gpus", resources.gpus},
          {"cpus", resources.cpus},
          {"memory_mib", resources.memory_mib},
          {"disk_mb", resources.disk_mb}};
}

void print_jobs(const plan::PackPlan& plan, Context& context) {
  TextTable table(
      {{"job"}, {"count", true}, {"gpus", true}, {"cpus", true}, {"memory MiB", true}, {"disk GB", true}, {"sbatch"}});
  for (size_t i = 0; i < plan.jobs.size(); ++i) {
    const plan::PackJob& job = plan.jobs[i];
    context.out.print_json({{"type", "plan_pack_job"},
                            {"job", job.name},
                            {"count", job.count},
                            {"needs", resources_json(job.needs)},
                            {"sbatch", plan.sbatch[i]}});
    table.add({job.name, format_count(job.count), format_count(job.needs.gpus), format_count(job.needs.cpus),
               format_count(job.needs.memory_mib), format_count(job.needs.disk_mb / 1000), plan.sbatch[i]});
  }
  context.out.print_text(table.to_string() + "\n");
}

void print_nodes(const plan::PackPlan& plan, Context& context) {
  TextTable table(
      {{"node", true}, {"jobs"}, {"free gpus", true}, {"cpus", true}, {"memory MiB", true}, {"disk GB", true}});
  for (size_t i = 0; i < plan.nodes.size(); ++i) {
    const plan::PackedNode& node = plan.nodes[i];
    std::vector<std::string> names;
    for (const size_t job : node.jobs) names.push_back(plan.jobs[job].name);
    context.out.print_json(
        {{"type", "plan_pack_node"}, {"node", i + 1}, {"jobs", names}, {"left", resources_json(node.left)}});
    table.add({format_count(static_cast<int64_t>(i) + 1), CLI::detail::join(names, " + "), format_count(node.left.gpus),
               format_count(node.left.cpus), format_count(node.left.memory_mib),
               format_count(node.left.disk_mb / 1000)});
  }
  context.out.print_text(table.to_string());
}

Status run_plan_pack(const PackArgs& args, Context& context) {
  ASSIGN_OR_RETURN(plan::PackPlan plan, plan::plan_pack(args.options));
  if (!args.instance.empty()) {
    for (plan::Term& term : plan.why.terms)
      term.source = std::string(plan::source_of("ec2").text) +
                    (term.name == "memory" ? ", 95 % of it as ParallelCluster's RealMemory" : "");
  }
  print_jobs(plan, context);
  print_nodes(plan, context);
  std::vector<std::string> waiting;
  for (const size_t job : plan.unplaced) waiting.push_back(plan.jobs[job].name);
  const std::string least = plan.proven ? "fewer would not do" : fmt::format("no fewer than {} would do", plan.fewest);
  context.out.print(
      {{"type", "plan_pack"},
       {"nodes", plan.nodes.size()},
       {"needed", plan.needed},
       {"fewest", plan.fewest},
       {"proven", plan.proven},
       {"waiting", waiting}},
      fmt::format("\n{} for all jobs; {}{}\n", counted(plan.needed, "node"), least,
                  waiting.empty() ? "" : "; until others end these wait: " + CLI::detail::join(waiting, ", ")));
  print_why(context, plan.why, args.flags);
  return {};
}

}  // namespace

void add_plan_pack(Verbs& verbs, CLI::App& plan) {
  auto args = std::make_shared<PackArgs>();
  CLI::App& app = verbs.add(
      plan, "pack", "Pack jobs onto shared nodes by GPU, CPU, memory and local disk, with their sbatch flags",
      {"millrace plan pack --instance p5e.48xlarge --job a:gpus=4 --job b:gpus=4",
       "millrace plan pack --instance p5e.48xlarge --job gpus=2 --job gpus=3,count=2",
       "millrace plan pack --node gpus=8,cpus=64,memory=500GiB --job eval:gpus=1,cpus=4,count=10 --nodes 1"},
      [args](Context& context) { return run_plan_pack(*args, context); }, [args] { check_pack(*args); });
  app.add_option("--instance", args->instance, "Type of the nodes, from the catalogue")->option_text("TYPE");
  app.add_option("--node", args->node, "Contents of a node; keys: gpus, cpus, memory, disk")
      ->option_text("gpus=8,cpus=N,memory=SIZE");
  app.add_option(
         "--job", args->jobs,
         "A job; keys: gpus, cpus, memory, disk, count; missing ones default to the GPUs' share; may be repeated")
      ->required()
      ->option_text("NAME:gpus=N");
  app.add_option("--nodes", args->options.nodes, "Available nodes (default: as many as needed)")
      ->check(CLI::Range(int64_t{1}, kMaxCount))
      ->option_text("N");
  app.add_option("--gpu-type", args->options.gpu_type,
                 "GPU type as gres.conf names it (default: the instance's; untyped)")
      ->option_text("TYPE");
  app.add_flag("--whole-nodes", args->options.whole_nodes, "Give each job whole nodes, as sbatch --exclusive does");
  add_explain_flag(app, args->flags);
}

}  // namespace millrace::cli
