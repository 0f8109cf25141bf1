// SPDX-License-Identifier: Apache-2.0
// The size of a checkpoint by the planner, where the script tells the model.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "millrace/base/text/ascii.h"
#include "millrace/jobs/preflight_parts.h"
#include "millrace/plan/checkpoints.h"

namespace millrace::jobs {

namespace {

namespace fs = std::filesystem;

// "8B", "0.5b", "350M"; 0 for anything else.
double parameters_of_part(std::string_view part) {
  if (part.size() < 2 || !is_digit(part[0])) return 0;
  const int unit = std::tolower(static_cast<unsigned char>(part.back()));
  if (unit != 'b' && unit != 'm') return 0;
  double count = 0;
  const char* end = part.data() + part.size() - 1;
  const auto [at, error] = std::from_chars(part.data(), end, count);
  if (error != std::errc() || at != end) return 0;
  return count * (unit == 'b' ? 1e9 : 1e6);
}

nlohmann::json json_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
}

// Parameters of a model whose weights lie in a folder as safetensors, as Transformers writes them; 0: unknown.
double parameters_in_folder(const fs::path& folder) {
  double bytes = 0;
  std::error_code error;
  for (fs::directory_iterator each(folder, error), end; !error && each != end; each.increment(error)) {
    std::error_code unread;
    if (each->path().extension() == ".safetensors") bytes += static_cast<double>(each->file_size(unread));
  }
  const nlohmann::json config = json_file(folder / "config.json");
  if (!config.is_object()) return 0;
  const auto type = config.contains("dtype") ? config["dtype"] : config.value("torch_dtype", nlohmann::json());
  const bool half = type == "bfloat16" || type == "float16";
  return bytes / (half ? 2 : 4);
}

struct Model {
  double parameters = 0;
  std::string name;  // "" where --parameters gave it
};

Model model_of(const Preflight& check) {
  if (check.request.parameters > 0) return {check.request.parameters, ""};
  constexpr std::string_view kNames[] = {"--model",
                                         "--model-name",
                                         "--model_name",
                                         "--model-name-or-path",
                                         "--model_name_or_path",
                                         "--model-id",
                                         "--model_id",
                                         "--model-path",
                                         "--model_path",
                                         "--base-model",
                                         "--base_model",
                                         "--base-model-path",
                                         "--base_model_path",
                                         "--pretrained-model-name-or-path",
                                         "--pretrained_model_name_or_path"};
  for (const NamedValue& value : values_of(check.words, kNames)) {
    const double in_folder = parameters_in_folder(below_work_dir(check, value.text));
    const double parameters = in_folder > 0 ? in_folder : parameters_in_name(value.text);
    if (parameters > 0) return {parameters, value.text};
  }
  return {};
}

}  // namespace

double parameters_in_name(std::string_view name) {
  for (size_t at = 0; at < name.size();) {
    const size_t end = std::min(name.find_first_of("-_/ :", at), name.size());
    if (const double parameters = parameters_of_part(name.substr(at, end - at)); parameters > 0) return parameters;
    at = end + 1;
  }
  return 0;
}

std::optional<PlannedCheckpoint> planned_checkpoint(const Preflight& check) {
  const Model model = model_of(check);
  if (model.parameters <= 0) return {};
  const auto plan = plan::plan_checkpoints({.parameters = model.parameters});
  if (!plan) return {};
  const double billions = model.parameters / 1e9;
  return PlannedCheckpoint{
      .bytes = std::llround(plan->bytes),
      .given = model.name.empty(),
      .basis = fmt::format("planned for {:.3g}B parameters{}, {:g} bytes each with the optimizer's state; "
                           "--checkpoint-size gives another",
                           billions, model.name.empty() ? "" : " of " + model.name, plan->bytes / model.parameters)};
}

}  // namespace millrace::jobs
