// SPDX-License-Identifier: Apache-2.0
#include "millrace/cli/plan_flags.h"

namespace millrace::cli {

void add_plan(Verbs& verbs) {
  CLI::App& plan = verbs.add_group("plan", "Estimate memory, time, space and cost of a run before paying for it");
  add_plan_gpus(verbs, plan);
  add_plan_batch(verbs, plan);
  add_plan_effective_batch(verbs, plan);
  add_plan_eta(verbs, plan);
  add_plan_nodes(verbs, plan);
  add_plan_pack(verbs, plan);
  add_plan_checkpoint(verbs, plan);
  add_plan_advise(verbs, plan);
}

}  // namespace millrace::cli
