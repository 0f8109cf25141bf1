// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "millrace/base/units.h"
#include "millrace/checkpoint/checkpoint.h"
#include "millrace/cli/command.h"

namespace millrace::cli {

namespace {

struct CkptArgs {
  std::string root;
  std::optional<int64_t> step;
  bool all = false;
};

Json step_json(const checkpoint::StepInfo& info) {
  Json object{{"type", "checkpoint"}, {"step", info.step}, {"ok", !info.damage}};
  if (info.damage) {
    object["damage"] = info.damage->to_string();
    return object;
  }
  object["attempt"] = info.attempt;
  object["ranks"] = info.world_size;
  object["tensors"] = info.tensors;
  object["bytes"] = info.bytes;
  object["committed"] = utc_text(info.committed);
  return object;
}

tl::unexpected<Error> no_checkpoints(const std::string& root) {
  return fail(ErrorCode::kNotFound, "{}: no checkpoints there", root);
}

Status run_ckpt_ls(const CkptArgs& args, Context& context) {
  ASSIGN_OR_RETURN(const Location root, open_url(args.root));
  ASSIGN_OR_RETURN(const auto steps, checkpoint::list_steps(root));
  if (steps.empty()) return no_checkpoints(args.root);
  TextTable table({{"step", true}, {"attempt"}, {"ranks", true}, {"tensors", true}, {"bytes", true}, {"committed"}});
  std::string damage;
  for (const checkpoint::StepInfo& info : steps) {
    context.out.print_json(step_json(info));
    const std::string step = fmt::format("{}", info.step);
    if (info.damage) {
      table.add({step, "damaged", "", "", "", ""});
      damage += fmt::format("step {}: {}\n", step, printable(info.damage->to_string()));
    } else {
      table.add({step, info.attempt, format_count(info.world_size), format_count(info.tensors),
                 format_bytes(info.bytes), utc_text(info.committed)});
    }
  }
  context.out.print_text(table.to_string() + damage);
  return {};
}

// Steps that `args` names: one, all, or the newest. Errors: not_found.
Result<std::vector<checkpoint::StepInfo>> chosen_steps(const CkptArgs& args, const Location& root) {
  ASSIGN_OR_RETURN(auto steps, checkpoint::list_steps(root));
  if (steps.empty()) return no_checkpoints(args.root);
  if (args.all) return steps;
  if (!args.step) return std::vector{steps.back()};
  const auto found =
      std::find_if(steps.begin(), steps.end(), [&](const auto& info) { return info.step == *args.step; });
  if (found != steps.end()) return std::vector{*found};
  return fail(ErrorCode::kNotFound, "{}: no checkpoint of step {}; `millrace ckpt ls` lists what is there", args.root,
              *args.step);
}

void print_tensors(const checkpoint::Checkpoint& checkpoint, Output& out) {
  TextTable table({{"tensor"}, {"dtype"}, {"shape"}, {"bytes", true}});
  for (const checkpoint::StoredTensor& tensor : checkpoint.tensors()) {
    out.print_json({{"type", "tensor"},
                    {"name", tensor.name},
                    {"dtype", formats::dtype_name(tensor.dtype)},
                    {"shape", tensor.shape},
                    {"bytes", tensor.bytes}});
    table.add({tensor.name, std::string(formats::dtype_name(tensor.dtype)),
               fmt::format("[{}]", fmt::join(tensor.shape, ", ")), format_bytes(tensor.bytes)});
  }
  out.print_text(table.to_string());
}

Status run_ckpt_show(const CkptArgs& args, Context& context) {
  ASSIGN_OR_RETURN(const Location root, open_url(args.root));
  ASSIGN_OR_RETURN(const auto steps, chosen_steps(args, root));
  ASSIGN_OR_RETURN(const auto checkpoint, checkpoint::Checkpoint::open(root, steps.front().step));
  const checkpoint::StepInfo& info = checkpoint->info();
  const Json state = Json::parse(checkpoint->state(), nullptr, /*allow_exceptions=*/false);
  if (state.is_discarded()) {
    return fail(ErrorCode::kCorruption, "{}: the state of step {} is not JSON", args.root, info.step);
  }
  Json object = step_json(info);
  object["state"] = state;
  context.out.print(object, fmt::format("step {}, attempt {}, {}, {}, {}, committed {}\n\n", info.step, info.attempt,
                                        counted(info.world_size, "rank"), counted(info.tensors, "tensor"),
                                        format_bytes(info.bytes), utc_text(info.committed)));
  print_tensors(*checkpoint, context.out);
  context.out.print_text(fmt::format("\nstate {}\n", state.dump(2, ' ', false, Json::error_handler_t::replace)));
  return {};
}

// Damage becomes findings; only a stop or storage that does not answer is an error.
Status verify_step(const Location& root, const checkpoint::StepInfo& info, Context& context, Progress& progress) {
  int64_t damage = 0;
  const auto report = [&](const Error& error) {
    ++damage;
    context.out.finding(root.url, error);
  };
  Status status;
  if (info.damage) {
    report(*info.damage);
  } else if (const auto checkpoint = checkpoint::Checkpoint::open(root, info.step)) {
    status = (*checkpoint)->verify(0, context.stop, &progress, report);
  } else {
    status = tl::unexpected(checkpoint.error());
  }
  if (!status) {
    const ErrorCode code = status.error().code();
    const bool damaged = code == ErrorCode::kCorruption || code == ErrorCode::kNotFound ||
                         code == ErrorCode::kOutOfRange || code == ErrorCode::kUnsupported;
    if (!damaged) return status;
    if (damage == 0) report(status.error());
  }
  context.out.print({{"type", "verify"},
                     {"step", info.step},
                     {"ok", damage == 0},
                     {"findings", damage},
                     {"tensors", info.tensors},
                     {"bytes", info.bytes}},
                    fmt::format("step {}: {}\n", info.step,
                                damage == 0 ? fmt::format("{}, {}: no damage found", counted(info.tensors, "tensor"),
                                                          format_bytes(info.bytes))
                                            : "damaged, " + counted(damage, "finding")));
  return {};
}

Status run_ckpt_verify(const CkptArgs& args, Context& context) {
  ASSIGN_OR_RETURN(const Location root, open_url(args.root));
  ASSIGN_OR_RETURN(const auto steps, chosen_steps(args, root));
  int64_t bytes = 0;
  for (const checkpoint::StepInfo& info : steps) bytes += info.bytes;
  Progress progress;
  progress.set_totals(bytes, 0);
  const auto view = context.out.watch(progress, "verify");
  for (const checkpoint::StepInfo& info : steps) RETURN_IF_ERROR(verify_step(root, info, context, progress));
  return {};
}

CLI::Option* add_step_flag(CLI::App& app, CkptArgs& args) {
  return app.add_option("--step", args.step, "The step (default: the newest)")
      ->check(CLI::Range(int64_t{0}, kMaxCount))
      ->option_text("N");
}

void add_root(CLI::App& app, CkptArgs& args) {
  app.add_option("ROOT", args.root, "Folder of checkpoints")->required()->option_text(" ");
}

}  // namespace

void add_ckpt(Verbs& verbs) {
  CLI::App& ckpt = verbs.add_group("ckpt", "Look at checkpoints and verify them");
  auto args = std::make_shared<CkptArgs>();
  CLI::App& ls = verbs.add(ckpt, "ls", "List the committed steps",
                           {"millrace ckpt ls run1/checkpoints", "millrace ckpt ls run1/checkpoints --json",
                            "millrace ckpt ls file:///nvme/run1"},
                           [args](Context& context) { return run_ckpt_ls(*args, context); });
  add_root(ls, *args);
  CLI::App& show = verbs.add(ckpt, "show", "Show the tensors and the state of one step",
                             {"millrace ckpt show run1/checkpoints", "millrace ckpt show run1/checkpoints --step 100",
                              "millrace ckpt show run1/checkpoints --json"},
                             [args](Context& context) { return run_ckpt_show(*args, context); });
  add_root(show, *args);
  add_step_flag(show, *args);
  CLI::App& verify = verbs.add(ckpt, "verify", "Read a step whole and check every hash and the tiling",
                               {"millrace ckpt verify run1/checkpoints", "millrace ckpt verify run1/checkpoints --all",
                                "millrace ckpt verify run1/checkpoints --step 100 --json"},
                               [args](Context& context) { return run_ckpt_verify(*args, context); });
  add_root(verify, *args);
  CLI::Option* step = add_step_flag(verify, *args);
  verify.add_flag("--all", args->all, "Every committed step")->excludes(step);
}

}  // namespace millrace::cli
