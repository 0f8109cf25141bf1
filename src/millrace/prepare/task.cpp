// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>

#include "millrace/base/text/units.h"
#include "millrace/formats/manifest.h"
#include "millrace/prepare/detail/folder.h"
#include "millrace/prepare/prepare.h"

namespace millrace::prepare {

namespace {

// nullopt when the variable is unset.
Result<std::optional<int64_t>> slurm_number(const char* name) {
  const char* text = std::getenv(name);
  if (text == nullptr) return std::optional<int64_t>();
  const std::optional<int64_t> value = parse_whole(text);
  if (!value) return fail(ErrorCode::kInvalidArgument, "{}=\"{}\": not a whole number", name, text);
  return value;
}

}  // namespace

Result<Task> parse_task(std::string_view text) {
  const size_t slash = text.find('/');
  if (slash != std::string_view::npos) {
    const auto index = parse_whole(text.substr(0, slash));
    const auto count = parse_whole(text.substr(slash + 1));
    if (index && count && *index >= 0 && *index < *count) return Task{*index, *count};
  }
  return fail(ErrorCode::kInvalidArgument, "task \"{}\": expected I/N with 0 <= I < N, such as 0/10", text);
}

namespace {

struct SlurmArray {
  int64_t id = 0, first = 0, last = 0, step = 1;
  int64_t tasks = 0;  // that it has

  // Its numbers are first, first + step, ... last.
  bool counts_through() const { return (last - first) / step + 1 == tasks; }
  Task task() const { return {(id - first) / step, tasks}; }
};

// nullopt when there is no array.
Result<std::optional<SlurmArray>> slurm_array() {
  ASSIGN_OR_RETURN(const auto id, slurm_number("SLURM_ARRAY_TASK_ID"));
  if (!id) return std::optional<SlurmArray>();
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
  return std::optional(SlurmArray{*id, *first, *last, step, tasks.value_or((*last - *first) / step + 1)});
}

// The number of tasks that a folder was begun with.
Result<std::optional<int64_t>> tasks_of_folder(const Location& folder) {
  ASSIGN_OR_RETURN(const auto json, read_if_there(folder, formats::kConfigName));
  if (!json) return std::optional<int64_t>();
  ASSIGN_OR_RETURN(const auto config, formats::parse_shard_config(*json, folder.child(formats::kConfigName).url));
  return std::optional(config.tasks);
}

// The number of one of `tasks` in an array of fewer. Arrays count from 0 or from 1, and this one does not say which: of
// the two tasks that it may mean the first that is not finished.
Result<Task> task_of_rerun(const SlurmArray& array, const Location& folder, int64_t tasks) {
  for (const int64_t index : {array.id, array.id - 1}) {
    if (index < 0 || index >= tasks) continue;
    const auto record = folder.storage->stat(folder.child(formats::part_name(index, tasks)).key);
    if (!record && record.error().code() == ErrorCode::kNotFound) return Task{index, tasks};
    if (!record) return tl::unexpected(record.error());
  }
  if (array.id < tasks) return Task{array.id, tasks};  // finished: it is checked again
  if (array.id == tasks) return Task{array.id - 1, tasks};
  return fail(ErrorCode::kInvalidArgument,
              "SLURM_ARRAY_TASK_ID={}, and {} was begun with {} tasks; name the task by hand (I/N)", array.id,
              folder.url, tasks);
}

}  // namespace

Result<std::optional<Task>> task_from_slurm(const std::string& output) {
  ASSIGN_OR_RETURN(const std::optional<SlurmArray> array, slurm_array());
  if (!array) return std::optional<Task>();
  ASSIGN_OR_RETURN(const Location folder, open_url(output));
  ASSIGN_OR_RETURN(const std::optional<int64_t> tasks, tasks_of_folder(folder));
  if (tasks && array->tasks < *tasks)
    return task_of_rerun(*array, folder, *tasks).map([](Task t) { return std::optional(t); });
  if (!array->counts_through()) {
    return fail(
        ErrorCode::kInvalidArgument,
        "the Slurm array has {} tasks, not all of {} to {} by {}: a list of numbers can be counted through only in a "
        "folder that all tasks have begun; use --array=0-{} or name the task by hand (I/N)",
        array->tasks, array->first, array->last, array->step, array->tasks - 1);
  }
  if (!tasks && array->tasks == 1 && array->id > 1) {
    return fail(ErrorCode::kInvalidArgument,
                "SLURM_ARRAY_TASK_ID={} is the whole array, and nothing in {} says of how many tasks it is one; name "
                "the task by hand (I/N)",
                array->id, folder.url);
  }
  return std::optional(array->task());
}

}  // namespace millrace::prepare
