// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "millrace/base/text/units.h"
#include "millrace/checkpoint/compare.h"
#include "millrace/cli/command.h"

namespace millrace::cli {

namespace {

using checkpoint::TensorDifference;
using Kind = TensorDifference::Kind;

struct DiffArgs {
  std::string root, other;
  int64_t a = 0, b = 0;
  bool all = false;
};

std::string_view kind_name(Kind kind) {
  switch (kind) {
    case Kind::kEqual:
      return "equal";
    case Kind::kChanged:
      return "changed";
    case Kind::kOther:
      return "other";
    case Kind::kOnlyA:
      return "only_a";
    case Kind::kOnlyB:
      return "only_b";
  }
  return "";
}

std::string type_text(const checkpoint::StoredTensor& tensor) {
  return fmt::format("{} [{}]", formats::dtype_name(tensor.dtype), fmt::join(tensor.shape, ", "));
}

// JSON has no infinity and no NaN.
Json number_json(double value) {
  return std::isfinite(value) ? Json(value) : Json(fmt::format("{}", value));
}

Json difference_json(const TensorDifference& difference) {
  Json object{{"type", "tensor_diff"}, {"name", difference.name}, {"kind", kind_name(difference.kind)}};
  const auto add_side = [&](const std::string& side, const checkpoint::StoredTensor* tensor) {
    if (tensor == nullptr) return;
    object["dtype_" + side] = formats::dtype_name(tensor->dtype);
    object["shape_" + side] = tensor->shape;
  };
  add_side("a", difference.a);
  add_side("b", difference.b);
  if (difference.kind == Kind::kChanged) object["changed"] = difference.changed;
  if (difference.norms) {
    object["norm_a"] = number_json(difference.norms->a);
    object["norm_b"] = number_json(difference.norms->b);
    object["norm_difference"] = number_json(difference.norms->difference);
  }
  return object;
}

std::vector<std::string> row_of(const TensorDifference& difference) {
  const auto& [kind, name, a, b, changed, norms] = difference;
  std::string type = type_text(a != nullptr ? *a : *b);
  if (kind == Kind::kOther) type += " to " + type_text(*b);
  const auto norm = [&](double value) { return norms ? fmt::format("{:.6g}", value) : std::string(); };
  return {name,
          std::string(kind_name(kind)),
          type,
          kind == Kind::kChanged ? format_count(changed) : "",
          norm(norms ? norms->a : 0),
          norm(norms ? norms->b : 0),
          norm(norms ? norms->difference : 0)};
}

Status run_ckpt_diff(const DiffArgs& args, Context& context) {
  ASSIGN_OR_RETURN(const Location root, open_url(args.root));
  ASSIGN_OR_RETURN(const Location other, open_url(args.other.empty() ? args.root : args.other));
  ASSIGN_OR_RETURN(const auto a, checkpoint::Checkpoint::open(root, args.a));
  ASSIGN_OR_RETURN(const auto b, checkpoint::Checkpoint::open(other, args.b));
  TextTable table(
      {{"tensor"}, {"kind"}, {"type"}, {"changed", true}, {"norm a", true}, {"norm b", true}, {"norm b-a", true}});
  std::map<Kind, int64_t> counts;
  {
    Progress progress;
    const auto view = context.out.watch(progress, "ckpt diff");
    const auto found = [&](const TensorDifference& difference) {
      ++counts[difference.kind];
      if (difference.kind == Kind::kEqual && !args.all) return;
      context.out.print_json(difference_json(difference));
      table.add(row_of(difference));
    };
    RETURN_IF_ERROR(checkpoint::compare_checkpoints(*a, *b, {}, found, context.stop, &progress));
  }
  if (!table.empty()) context.out.print_text(table.to_string() + "\n");
  const bool same_state = a->state() == b->state();
  const int64_t equal = counts[Kind::kEqual];
  int64_t all = 0;
  for (const auto& [kind, count] : counts) all += count;
  for (int64_t i = equal; i < all; ++i) context.out.count_finding();
  if (!same_state) context.out.count_finding();
  context.out.print(
      {{"type", "ckpt_diff"},
       {"a", args.a},
       {"b", args.b},
       {"equal", equal},
       {"changed", counts[Kind::kChanged]},
       {"other", counts[Kind::kOther]},
       {"only_a", counts[Kind::kOnlyA]},
       {"only_b", counts[Kind::kOnlyB]},
       {"same_state", same_state}},
      fmt::format("steps {} and {}: {} equal, {} changed, {} of another dtype or shape, {} only in {}, "
                  "{} only in {}; {} state\n",
                  args.a, args.b, equal, counts[Kind::kChanged], counts[Kind::kOther], counts[Kind::kOnlyA], args.a,
                  counts[Kind::kOnlyB], args.b, same_state ? "the same" : "another"));
  return {};
}

}  // namespace

void add_ckpt_diff(Verbs& verbs, CLI::App& ckpt) {
  auto args = std::make_shared<DiffArgs>();
  CLI::App& app = verbs.add(
      ckpt, "diff", "Compare two steps: names, shapes, elements, norms",
      {"millrace ckpt diff run1/checkpoints 1000 2000", "millrace ckpt diff run1/checkpoints 1000 2000 --all --json",
       "millrace ckpt diff run1/checkpoints 1000 1000 --with s3://b/run1"},
      [args](Context& context) { return run_ckpt_diff(*args, context); });
  const auto step = CLI::Range(int64_t{0}, kMaxCount);
  app.add_option("ROOT", args->root, "Folder of checkpoints")->required()->option_text(" ");
  app.add_option("A", args->a, "A step")->required()->check(step)->option_text(" ");
  app.add_option("B", args->b, "Another step")->required()->check(step)->option_text(" ");
  app.add_option("--with", args->other, "Folder of checkpoints that has step B (default: ROOT)")->option_text("URL");
  app.add_flag("--all", args->all, "Show equal tensors too");
}

}  // namespace millrace::cli
