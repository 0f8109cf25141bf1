// SPDX-License-Identifier: Apache-2.0
#include "millrace/plan/eta.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace millrace::plan {

namespace {

Status check_eta(const EtaOptions& options) {
  if (!(options.steps > 0) || options.micro < 1 || options.gpus < 1 || options.accumulation < 1 ||
      options.model_parallel < 1) {
    return fail(ErrorCode::kInvalidArgument, "steps, micro batch, GPUs and accumulation are 1 or more");
  }
  if (options.gpus % options.model_parallel != 0) {
    return fail(ErrorCode::kInvalidArgument, "{} GPUs are not a multiple of the {} that hold one copy of the model",
                options.gpus, options.model_parallel);
  }
  if (options.sample_s == 0 && (options.parameters == 0 || options.tokens == 0 || !options.gpu)) {
    return fail(ErrorCode::kInvalidArgument,
                "how long does a sample take? give --sample-time, or --parameters, --tokens and --gpu");
  }
  if (options.measured_on && !options.gpu)
    return fail(ErrorCode::kInvalidArgument, "measured on another GPU: say on which one it will run (--gpu)");
  if (!(options.utilisation.low > 0) || options.utilisation.high > 1)
    return fail(ErrorCode::kInvalidArgument, "utilisation lies in (0, 1]");
  if (!(options.tolerance >= 0 && options.tolerance < 1))
    return fail(ErrorCode::kInvalidArgument, "a tolerance lies in [0, 1)");
  if (options.sample_bytes > 0 && options.read_bytes_per_s == 0)
    return fail(ErrorCode::kInvalidArgument, "bytes a sample need a rate of reading (--read-rate)");
  if (options.gradient_bytes > 0 && options.network_bytes_per_s == 0)
    return fail(ErrorCode::kInvalidArgument, "gradients need a rate of the network (--network)");
  if (options.checkpoint_bytes > 0 && options.write_bytes_per_s == 0 && options.checkpoint_stall_s == 0) {
    return fail(ErrorCode::kInvalidArgument,
                "checkpoints need a rate of writing (--write-rate), or what they cost (--checkpoint-stall)");
  }
  if ((options.checkpoint_bytes > 0 || options.checkpoint_stall_s > 0) && options.checkpoint_every_steps == 0) {
    return fail(ErrorCode::kInvalidArgument, "checkpoints need their distance in steps (--checkpoint-every)");
  }
  return {};
}

void add_gpu_terms(const Gpu& gpu, Why& why) {
  for (Term& term : terms_of(gpu)) why.terms.push_back(std::move(term));
}

Range sample_time(const EtaOptions& options, Why& why) {
  if (options.sample_s > 0) {
    const double shared = options.sample_s / static_cast<double>(options.model_parallel);
    const Range here{shared * (1 - options.tolerance), shared * (1 + options.tolerance)};
    if (options.model_parallel > 1) why.formulas.emplace_back("t_sample = measured / GPUs of a copy");
    why.terms.push_back({"measured t_sample", Range::point(options.sample_s), "s", kGiven});
    why.terms.push_back({"tolerance", Range::point(options.tolerance), "of the measurement, both ways",
                         options.tolerance == 0.1 ? "Millrace's own choice" : kGiven});
    if (!options.measured_on || options.measured_on->id == options.gpu->id) return here;
    why.formulas.emplace_back(
        "t_sample = measured x [min, max] of (TFLOPS ratio, bandwidth ratio): what bounds the model lies between");
    add_gpu_terms(*options.measured_on, why);
    add_gpu_terms(*options.gpu, why);
    why.notes.push_back(
        fmt::format("transferred from the {} by data sheets: measure 100 steps on the {} before a long run",
                    options.measured_on->name, options.gpu->name));
    return transferred_s(here, *options.measured_on, *options.gpu);
  }
  const double passes = options.recompute ? 8 : 6;
  const double flops = passes * options.parameters * options.tokens;
  const double copies = static_cast<double>(options.model_parallel);
  const double best = flops / (options.gpu->tflops.value * 1e12 * copies);
  why.formulas.push_back(
      fmt::format("t_sample = {:.0f} x parameters x tokens / (TFLOPS x utilisation x GPUs of a copy)", passes));
  why.terms.push_back({"parameters", Range::point(options.parameters), "", kGiven});
  why.terms.push_back({"tokens", Range::point(options.tokens), "a sample", kGiven});
  why.terms.push_back({"operations", Range::point(passes), "a parameter and token",
                       "2 forward, 4 backward, 2 more with recompute; Kaplan et al. 2020"});
  why.terms.push_back({"utilisation", options.utilisation, "of the peak",
                       options.utilisation == Range{0.3, 0.5}
                           ? "usual for tuned training of large models; small or badly fed ones are below"
                           : kGiven});
  add_gpu_terms(*options.gpu, why);
  return {best / options.utilisation.high, best / options.utilisation.low};
}

double checkpoint_cost_s(const EtaOptions& options) {
  if (options.checkpoint_stall_s > 0) return options.checkpoint_stall_s;
  return options.checkpoint_bytes > 0 ? options.checkpoint_bytes / options.write_bytes_per_s : 0;
}

// Each GPU exchanges the gradients of its part of the model.
double gradient_bytes_of_gpu(const EtaOptions& options) {
  return options.gradient_bytes / static_cast<double>(options.model_parallel);
}

void explain_eta(const EtaOptions& options, const EtaPlan& plan, Why& why) {
  why.formulas.emplace_back(
      "step = max(accumulation x micro x t_sample, t_read) + exposed sync + checkpoint / steps between");
  why.formulas.emplace_back("total = steps x step");
  const auto number = [](int64_t value) { return Range::point(static_cast<double>(value)); };
  why.terms.push_back({"steps", Range::point(plan.steps),
                       options.micro_steps ? "optimizer steps, from passes / accumulation" : "optimizer steps",
                       kGiven});
  why.terms.push_back({"micro", number(options.micro), "samples", kGiven});
  why.terms.push_back({"accumulation", number(options.accumulation), "passes", kGiven});
  why.terms.push_back({"gpus", number(options.gpus), "", kGiven});
  if (options.sample_bytes > 0) {
    why.formulas.emplace_back("t_read = samples a step x bytes a sample / rate; it runs beside computing");
    why.terms.push_back({"t_read", Range::point(plan.read_s), "s a step", "by the formula"});
    if (plan.exposed_read_s.high > 0)
      why.notes.push_back(
          "reading takes longer than computing: training waits for data; more nodes do not help, faster storage or a "
          "cache does");
  } else {
    why.notes.emplace_back("reading is not counted: give --sample-bytes and --read-rate");
  }
  if (options.gradient_bytes > 0) {
    why.formulas.emplace_back(
        "sync = 2 (n - 1) / n x gradient bytes / model parallel / network, n copies; hidden behind computing at best");
    why.terms.push_back({"sync", plan.sync_s, "s a step", "by the formula: a ring's all-reduce"});
  } else if (options.gpus > 1) {
    why.notes.emplace_back(
        "the gradients' exchange is not counted: give --gradient-bytes and --network, or a time measured on as many "
        "GPUs");
  }
  if (plan.checkpoint_s > 0)
    why.terms.push_back({"checkpoint", Range::point(checkpoint_cost_s(options)), "s each",
                         options.checkpoint_stall_s > 0 ? kGiven : "bytes / rate: training waits for it"});
  if (options.gpu && !options.gpu->bf16)
    why.notes.push_back(
        fmt::format("the {} has no bf16: a recipe in bf16 must change to fp16 with loss scaling", options.gpu->name));
}

}  // namespace

Range transferred_s(Range seconds, const Gpu& from, const Gpu& to) {
  const double compute = from.tflops.value / to.tflops.value;
  const double bandwidth = from.bandwidth_gb_per_s.value / to.bandwidth_gb_per_s.value;
  return {seconds.low * std::min(compute, bandwidth), seconds.high * std::max(compute, bandwidth)};
}

Result<EtaPlan> plan_eta(const EtaOptions& options) {
  RETURN_IF_ERROR(check_eta(options));
  EtaPlan plan;
  plan.sample_s = sample_time(options, plan.why);
  plan.steps =
      options.micro_steps ? std::ceil(options.steps / static_cast<double>(options.accumulation)) : options.steps;
  const double copies = static_cast<double>(options.gpus) / static_cast<double>(options.model_parallel);
  const double passes = static_cast<double>(options.accumulation) * static_cast<double>(options.micro);
  const double samples = passes * copies;
  plan.compute_s = plan.sample_s * passes;
  if (options.sample_bytes > 0) plan.read_s = samples * options.sample_bytes / options.read_bytes_per_s;
  plan.exposed_read_s = {std::max(0.0, plan.read_s - plan.compute_s.high),
                         std::max(0.0, plan.read_s - plan.compute_s.low)};
  if (options.gradient_bytes > 0)
    plan.sync_s.high = 2 * (copies - 1) / copies * gradient_bytes_of_gpu(options) / options.network_bytes_per_s;
  if (options.checkpoint_every_steps > 0)
    plan.checkpoint_s = checkpoint_cost_s(options) / options.checkpoint_every_steps;
  plan.step_s = {std::max(plan.compute_s.low, plan.read_s) + plan.checkpoint_s,
                 std::max(plan.compute_s.high, plan.read_s) + plan.sync_s.high + plan.checkpoint_s};
  plan.total_s = plan.step_s * plan.steps;
  plan.samples_per_s = {samples / plan.step_s.high, samples / plan.step_s.low};
  plan.gpu_hours = plan.total_s * (static_cast<double>(options.gpus) / 3600);
  if (options.usd_per_gpu_hour) plan.usd = plan.gpu_hours * *options.usd_per_gpu_hour;
  explain_eta(options, plan, plan.why);
  return plan;
}

}  // namespace millrace::plan
