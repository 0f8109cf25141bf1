// SPDX-License-Identifier: Apache-2.0
#include "millrace/slurm/steps.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "millrace/slurm/commands.h"
#include "millrace/slurm/fields.h"

namespace millrace::slurm {

namespace {

// "233272K", "1.5G", "12" in bytes; nullopt for "".
std::optional<int64_t> bytes_of(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc()) return {};
  constexpr std::string_view kUnits = "KMGTP";
  const size_t power = end < text.data() + text.size() ? kUnits.find(*end) : std::string_view::npos;
  for (size_t i = 0; power != std::string_view::npos && i <= power; ++i) value *= 1024;
  return static_cast<int64_t>(value);
}

Result<StepEnd> step_line(std::string_view line) {
  constexpr size_t kFields = 7;
  const auto fields = fields_of(line, kFields);
  if (fields.size() < kFields) {
    return fail(ErrorCode::kCorruption, "sacct's answer has {} fields for {} in: {}", fields.size(), kFields,
                line.substr(0, 200));
  }
  constexpr std::string_view kBy = " by ";
  const std::string_view state = fields[1];
  const size_t by = std::min(state.find(kBy), state.size());
  return StepEnd{.id = std::string(fields[0]),
                 .name = std::string(fields[6]),
                 .state = std::string(state.substr(0, by)),
                 .cancelled_by = by < state.size() ? whole_number(state.substr(by + kBy.size())) : std::nullopt,
                 .exit = std::string(fields[2]),
                 .most_memory_bytes = bytes_of(fields[3]),
                 .asked_memory = std::string(fields[4]),
                 .nodes = std::string(fields[5])};
}

}  // namespace

Result<std::vector<StepEnd>> parse_steps(std::string_view text) {
  std::vector<StepEnd> steps;
  RETURN_IF_ERROR(for_each_line(text, [&](std::string_view line) -> Status {
    ASSIGN_OR_RETURN(steps.emplace_back(), step_line(line));
    return {};
  }));
  return steps;
}

Result<std::vector<StepEnd>> ask_steps(const std::string& id, const AskOptions& options) {
  ASSIGN_OR_RETURN(const std::string text, accounting_answer({"-o", kStepFormat, "-j", id}, options));
  return parse_steps(text);
}

}  // namespace millrace::slurm
