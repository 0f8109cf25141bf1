// SPDX-License-Identifier: Apache-2.0
#include <charconv>
#include <cstdlib>

#include "millrace/prepare/prepare.h"

namespace millrace::prepare {

namespace {

std::optional<int64_t> whole_number(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// Nothing when the variable is unset.
Result<std::optional<int64_t>> slurm_number(const char* name) {
  const char* text = std::getenv(name);
  if (text == nullptr) return std::optional<int64_t>();
  const std::optional<int64_t> value = whole_number(text);
  if (!value) return fail(ErrorCode::kInvalidArgument, "{}=\"{}\": not a whole number", name, text);
  return value;
}

}  // namespace

Result<Task> parse_task(std::string_view text) {
  const size_t slash = text.find('/');
  if (slash != std::string_view::npos) {
    const auto index = whole_number(text.substr(0, slash));
    const auto count = whole_number(text.substr(slash + 1));
    if (index && count && *index >= 0 && *index < *count) return Task{*index, *count};
  }
  return fail(ErrorCode::kInvalidArgument, "task \"{}\": expected I/N with 0 <= I < N, such as 0/10", text);
}

Result<std::optional<Task>> task_from_slurm() {
  ASSIGN_OR_RETURN(const auto id, slurm_number("SLURM_ARRAY_TASK_ID"));
  if (!id) return std::optional<Task>();
  ASSIGN_OR_RETURN(const auto first, slurm_number("SLURM_ARRAY_TASK_MIN"));
  ASSIGN_OR_RETURN(const auto last, slurm_number("SLURM_ARRAY_TASK_MAX"));
  ASSIGN_OR_RETURN(const auto step_given, slurm_number("SLURM_ARRAY_TASK_STEP"));
  ASSIGN_OR_RETURN(const auto tasks, slurm_number("SLURM_ARRAY_TASK_COUNT"));
  const int64_t step = step_given.value_or(1);
  if (!first || !last || *first < 0 || step < 1 || *id < *first || *id > *last || (*id - *first) % step != 0 ||
      (*last - *first) % step != 0) {
    return fail(ErrorCode::kInvalidArgument,
                "SLURM_ARRAY_TASK_ID={} does not fit SLURM_ARRAY_TASK_MIN, _MAX and _STEP; name the task by hand (I/N)",
                *id);
  }
  const Task task{(*id - *first) / step, (*last - *first) / step + 1};
  if (tasks && *tasks != task.count) {
    return fail(
        ErrorCode::kInvalidArgument,
        "the Slurm array has {} tasks where {} to {} by {} are {}: a list of numbers cannot be counted through; "
        "use --array=0-{} or name the task by hand (I/N)",
        *tasks, *first, *last, step, task.count, *tasks - 1);
  }
  return std::optional<Task>(task);
}

}  // namespace millrace::prepare
