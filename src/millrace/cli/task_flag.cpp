// SPDX-License-Identifier: Apache-2.0
#include "millrace/cli/task_flag.h"

#include <algorithm>
#include <cstdlib>
#include <limits>

#include "millrace/base/text/units.h"

namespace millrace::cli {

std::string first_variable(std::initializer_list<const char*> names) {
  for (const char* const name : names) {
    if (const char* const value = std::getenv(name); value != nullptr && *value != '\0') return value;
  }
  return "";
}

int64_t count_of_tasks(const std::string& text) {
  const bool array = text == "slurm" && !first_variable({"SLURM_ARRAY_TASK_COUNT"}).empty();
  const std::string index = text == "slurm" ? first_variable({array ? "SLURM_ARRAY_TASK_ID" : "SLURM_PROCID"})
                                            : text.substr(0, text.find('/'));
  const std::string count = text == "slurm" ? first_variable({array ? "SLURM_ARRAY_TASK_COUNT" : "SLURM_NTASKS"})
                                            : text.substr(std::min(text.find('/'), text.size() - 1) + 1);
  const auto which = parse_whole(index), many = parse_whole(count);
  if (which && many && *many >= 1 && *which >= 0 && (array || *which < *many)) return *many;
  throw CLI::ValidationError("--task", text == "slurm" ? "Slurm's variables are not set: give 3/10, counted from 0"
                                                       : "\"" + text + "\" is no task: 3/10 is one, counted from 0");
}

void share_budgets(const std::string& task, UrlOptions& options) {
  constexpr int64_t kMost = std::numeric_limits<int>::max();
  const int64_t tasks = count_of_tasks(task);
  if (first_variable({"MILLRACE_S3_SHARE"}).empty()) options.processes = static_cast<int>(std::min(tasks, kMost));
}

}  // namespace millrace::cli
