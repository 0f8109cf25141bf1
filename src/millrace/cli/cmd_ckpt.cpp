// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "millrace/base/text/units.h"
#include "millrace/checkpoint/checkpoint.h"
#include "millrace/cli/command.h"

namespace millrace::cli {

namespace {

struct CkptArgs {
  std::string root;
  std::vector<std::string> tiers;
  std::optional<int64_t> step;
  bool all = false;
};

Json commits_json(const std::vector<checkpoint::Ancestor>& commits) {
  Json list = Json::array();
  for (const auto& each : commits) list.push_back({{"attempt", each.attempt}, {"step", each.step}});
  return list;
}

Json step_json(const checkpoint::StepInfo& info) {
  const std::optional<Error>& damage = info.any_damage();
  Json object{{"type", "checkpoint"}, {"step", info.step}, {"ok", !damage}, {"left_behind", info.is_left}};
  if (damage) object["damage"] = damage->to_string();
  if (info.damage) return object;
  object["attempt"] = info.attempt;
  object["ranks"] = info.world_size;
  object["tensors"] = info.tensors;
  object["bytes"] = info.bytes;
  object["referred_bytes"] = info.referred_bytes;
  object["bases"] = commits_json(info.bases);
  object["committed"] = utc_text(info.committed);
  if (info.line) object["line"] = commits_json(*info.line);
  if (!info.metrics.empty()) object["metrics"] = info.metrics;
  if (info.writer)
    object["writer"] = {{"host", info.writer->host}, {"user", info.writer->user}, {"version", info.writer->version}};
  return object;
}

// "ann@node7"; manifests of earlier builds do not say.
std::string writer_text(const checkpoint::StepInfo& info) {
  if (info.damage) return "";
  return info.writer ? fmt::format("{}@{}", info.writer->user, info.writer->host) : "unknown";
}

std::string state_text(const checkpoint::StepInfo& info) {
  const std::string_view damaged = info.any_damage() ? "damaged" : "", left = info.is_left ? "left behind" : "";
  return fmt::format("{}{}{}", damaged, damaged.empty() || left.empty() ? "" : ", ", left);
}

tl::unexpected<Error> no_checkpoints(const std::string& root) {
  return fail(ErrorCode::kNotFound, "{}: no checkpoints there", root);
}

tl::unexpected<Error> no_step(const std::string& root, int64_t step) {
  return fail(ErrorCode::kNotFound, "{}: no checkpoint of step {}; `millrace ckpt ls` lists what is there", root, step);
}

// The tiers as given, nearest first, then the root.
Result<std::vector<Location>> places_of(const CkptArgs& args) {
  std::vector<Location> places;
  for (const std::string& tier : args.tiers) {
    ASSIGN_OR_RETURN(places.emplace_back(), open_url(tier));
  }
  ASSIGN_OR_RETURN(places.emplace_back(), open_url(args.root));
  return places;
}

// A step and where it is.
struct FoundStep {
  checkpoint::StepInfo info;      // of the nearest good copy
  std::vector<std::string> urls;  // the tiers that have it, with their damage
  Json tiers = Json::array();
};

// Which of them the newest line has is decided over all places together.
Result<std::map<int64_t, FoundStep>> find_steps(const std::vector<Location>& places) {
  std::map<int64_t, FoundStep> found;
  std::vector<checkpoint::StepInfo> all;
  std::vector<const Location*> of;
  for (const Location& place : places) {
    // A tier may be the disk of one node, which has the files of its own ranks only.
    ASSIGN_OR_RETURN(const auto steps, checkpoint::list_steps(place, {.check_sizes = true,
                                                                      .missing_is_damage = &place == &places.back()}));
    all.insert(all.end(), steps.begin(), steps.end());
    of.resize(all.size(), &place);
  }
  checkpoint::mark_left(all);
  for (size_t i = 0; i < all.size(); ++i) {
    const checkpoint::StepInfo& info = all[i];
    const std::string& url = of[i]->url;
    FoundStep& step = found[info.step];
    const bool is_damaged = info.any_damage().has_value();
    const bool is_better = (step.info.any_damage() && !is_damaged) || (step.info.is_left && !info.is_left);
    if (step.urls.empty() || is_better) step.info = info;
    step.urls.push_back(is_damaged ? url + " (damaged)" : url);
    step.tiers.push_back({{"url", url}, {"ok", !is_damaged}});
  }
  return found;
}

// The newest step of the newest line, damaged or not. REQUIRES: `found` has steps.
int64_t newest_of(const std::map<int64_t, FoundStep>& found) {
  for (auto each = found.rbegin(); each != found.rend(); ++each) {
    if (!each->second.info.is_left) return each->first;
  }
  return found.rbegin()->first;
}

Status run_ckpt_ls(const CkptArgs& args, Context& context) {
  ASSIGN_OR_RETURN(const auto places, places_of(args));
  ASSIGN_OR_RETURN(const auto steps, find_steps(places));
  if (steps.empty()) return no_checkpoints(args.root);
  const bool refers = std::ranges::any_of(steps, [](const auto& each) { return each.second.info.referred_bytes > 0; });
  std::vector<TextTable::Column> columns{{"step", true},
                                         {"attempt"},
                                         {"ranks", true},
                                         {"tensors", true},
                                         {"bytes", true},
                                         {"committed"},
                                         {"by"},
                                         {"state"},
                                         {args.tiers.empty() ? "" : "tiers"}};
  constexpr std::ptrdiff_t kReferred = 5;  // the column behind the bytes, where steps refer to others
  if (refers) columns.insert(columns.begin() + kReferred, TextTable::Column{"referred", true});
  TextTable table(columns);
  std::string damage;
  int64_t left = 0;
  for (const auto& [number, found] : steps) {
    const checkpoint::StepInfo& info = found.info;
    Json object = step_json(info);
    if (!args.tiers.empty()) object["tiers"] = found.tiers;
    context.out.print_json(object);
    const std::string step = fmt::format("{}", number);
    const std::string where = args.tiers.empty() ? "" : fmt::format("{}", fmt::join(found.urls, ", "));
    left += info.is_left ? 1 : 0;
    std::vector<std::string> cells{step, "", "", "", "", "", "", state_text(info), where};
    if (!info.damage)
      cells = {step,
               info.attempt,
               format_count(info.world_size),
               format_count(info.tensors),
               format_bytes(info.bytes),
               utc_text(info.committed),
               writer_text(info),
               state_text(info),
               where};
    if (refers) cells.insert(cells.begin() + kReferred, info.damage ? "" : format_bytes(info.referred_bytes));
    table.add(std::move(cells));
    if (info.any_damage()) damage += fmt::format("step {}: {}\n", step, printable(info.any_damage()->to_string()));
  }
  std::string note;
  if (left > 0)
    note =
        fmt::format("{} left behind by a run that went back, or that another run started over: no restore chooses {}\n",
                    counted(left, "step"), left == 1 ? "it" : "them");
  context.out.print_text(table.to_string() + damage + note);
  return {};
}

// The steps that `args` asks for: one, all, or the newest of the newest line. Errors: not_found.
Result<std::vector<checkpoint::StepInfo>> chosen_steps(const CkptArgs& args, const Location& root) {
  ASSIGN_OR_RETURN(auto steps, checkpoint::list_steps(root));
  if (steps.empty()) return no_checkpoints(args.root);
  if (args.all) return steps;
  if (!args.step) {
    const auto newest = std::find_if(steps.rbegin(), steps.rend(), [](const auto& info) { return !info.is_left; });
    return std::vector{newest == steps.rend() ? steps.back() : *newest};
  }
  const auto found =
      std::find_if(steps.begin(), steps.end(), [&](const auto& info) { return info.step == *args.step; });
  if (found != steps.end()) return std::vector{*found};
  return no_step(args.root, *args.step);
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
  ASSIGN_OR_RETURN(const auto places, places_of(args));
  ASSIGN_OR_RETURN(const auto found, find_steps(places));
  if (found.empty()) return no_checkpoints(args.root);
  const int64_t wanted = args.step.value_or(newest_of(found));
  if (!found.contains(wanted)) return no_step(args.root, wanted);
  ASSIGN_OR_RETURN(const auto checkpoint, checkpoint::Checkpoint::open(places, wanted));
  checkpoint::StepInfo info = checkpoint->info();
  info.is_left = found.at(wanted).info.is_left;
  info.file_damage = found.at(wanted).info.file_damage;
  const Json state = Json::parse(checkpoint->state(), nullptr, /*allow_exceptions=*/false);
  if (state.is_discarded()) {
    return fail(ErrorCode::kCorruption, "{}: the state of step {} is not JSON", args.root, info.step);
  }
  Json object = step_json(info);
  object["state"] = state;
  std::string where = fmt::format("written by {}{}\n", writer_text(info),
                                  info.writer ? fmt::format(", Millrace {}", info.writer->version) : "");
  if (info.file_damage) where += fmt::format("damaged: {}\n", printable(info.file_damage->to_string()));
  if (info.line && !info.line->empty())
    where += fmt::format("continues step {} of attempt {}\n", info.line->back().step, info.line->back().attempt);
  if (info.referred_bytes > 0) {
    std::vector<int64_t> bases;
    for (const auto& each : info.bases) bases.push_back(each.step);
    where += fmt::format("refers to {} in the files of step {}\n", format_bytes(info.referred_bytes),
                         fmt::join(bases, ", "));
  }
  if (info.is_left) where += "left behind by a later attempt: no restore chooses it\n";
  if (!args.tiers.empty()) {
    object["tiers"] = found.at(wanted).tiers;
    where += fmt::format("in {}\n", fmt::join(found.at(wanted).urls, ", "));
  }
  context.out.print(object, fmt::format("step {}, attempt {}, {}, {}, {}, committed {}\n{}\n", info.step, info.attempt,
                                        counted(info.world_size, "rank"), counted(info.tensors, "tensor"),
                                        format_bytes(info.bytes), utc_text(info.committed), where));
  print_tensors(*checkpoint, context.out);
  for (const auto& [name, value] : info.metrics) context.out.print_text(fmt::format("{} {}\n", name, value));
  context.out.print_text(fmt::format("\nstate {}\n", state.dump(2, ' ', false, Json::error_handler_t::replace)));
  return {};
}

// Damage becomes findings. Only a stop, or a storage that does not answer, is an error.
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
                     {"bytes", info.bytes},
                     {"referred_bytes", info.referred_bytes}},
                    fmt::format("step {}: {}\n", info.step,
                                damage == 0 ? fmt::format("{}, {}: no damage found", counted(info.tensors, "tensor"),
                                                          format_bytes(info.bytes + info.referred_bytes))
                                            : "damaged, " + counted(damage, "finding")));
  return {};
}

Status run_ckpt_verify(const CkptArgs& args, Context& context) {
  ASSIGN_OR_RETURN(const Location root, open_url(args.root));
  ASSIGN_OR_RETURN(const auto steps, chosen_steps(args, root));
  int64_t bytes = 0;
  for (const checkpoint::StepInfo& info : steps) bytes += info.bytes + info.referred_bytes;
  Progress progress;
  progress.set_totals(bytes, 0);
  const auto view = context.out.watch(progress, "verify");
  for (const checkpoint::StepInfo& info : steps) RETURN_IF_ERROR(verify_step(root, info, context, progress));
  return {};
}

CLI::Option* add_step_flag(CLI::App& app, CkptArgs& args) {
  return app.add_option("--step", args.step, "The step (default: the newest of the newest line)")
      ->check(CLI::Range(int64_t{0}, kMaxCount))
      ->option_text("N");
}

void add_root(CLI::App& app, CkptArgs& args) {
  app.add_option("ROOT", args.root, "Folder of checkpoints")->required()->option_text(" ");
}
void add_tiers(CLI::App& app, CkptArgs& args) {
  app.add_option("--tier", args.tiers, "A nearer tier of the same run; several, nearest first")
      ->allow_extra_args(false)
      ->option_text("URL");
}

}  // namespace

void add_ckpt(Verbs& verbs) {
  CLI::App& ckpt = verbs.add_group("ckpt", "List, show, verify, compare, convert, copy, prune and follow checkpoints");
  auto args = std::make_shared<CkptArgs>();
  CLI::App& ls = verbs.add(ckpt, "ls", "List the committed steps",
                           {"millrace ckpt ls run1/checkpoints", "millrace ckpt ls run1/checkpoints --json",
                            "millrace ckpt ls s3://b/run1 --tier /nvme/run1 --tier /fsx/run1"},
                           [args](Context& context) { return run_ckpt_ls(*args, context); });
  add_root(ls, *args);
  add_tiers(ls, *args);
  CLI::App& show = verbs.add(ckpt, "show", "Show the tensors and the state of one step",
                             {"millrace ckpt show run1/checkpoints", "millrace ckpt show run1/checkpoints --step 100",
                              "millrace ckpt show run1/checkpoints --json"},
                             [args](Context& context) { return run_ckpt_show(*args, context); });
  add_root(show, *args);
  add_tiers(show, *args);
  add_step_flag(show, *args);
  CLI::App& verify = verbs.add(ckpt, "verify", "Read a step whole and check every hash and the tiling",
                               {"millrace ckpt verify run1/checkpoints", "millrace ckpt verify run1/checkpoints --all",
                                "millrace ckpt verify run1/checkpoints --step 100 --json"},
                               [args](Context& context) { return run_ckpt_verify(*args, context); });
  add_root(verify, *args);
  CLI::Option* step = add_step_flag(verify, *args);
  verify.add_flag("--all", args->all, "Every committed step")->excludes(step);
  add_ckpt_diff(verbs, ckpt);
  add_ckpt_export(verbs, ckpt);
  add_ckpt_import(verbs, ckpt);
  add_ckpt_restore(verbs, ckpt);
  add_ckpt_prune(verbs, ckpt);
  add_ckpt_follow(verbs, ckpt);
  add_ckpt_last_good(verbs, ckpt);
  add_ckpt_advise(verbs, ckpt);
}

}  // namespace millrace::cli
