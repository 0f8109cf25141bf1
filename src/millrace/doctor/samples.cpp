// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "millrace/base/text/strings.h"
#include "millrace/doctor/facts.h"

namespace millrace::doctor {

namespace {

constexpr int64_t kMostSamples = 5000;
constexpr double kMiB = 1 << 20;

// nvidia-smi's columns, by the name before the unit, and what they are in the monitor's units.
struct SmiColumn {
  std::string_view name, series;
  double factor;
};
constexpr SmiColumn kSmiColumns[] = {{"utilization.gpu", "millrace_gpu_busy_ratio", 0.01},
                                     {"memory.used", "millrace_gpu_memory_used_bytes", kMiB},
                                     {"memory.total", "millrace_gpu_memory_size_bytes", kMiB},
                                     {"temperature.gpu", "millrace_gpu_temperature_celsius", 1},
                                     {"power.draw", "millrace_gpu_power_watts", 1},
                                     {"clocks.current.sm", "millrace_gpu_sm_clock_hertz", 1e6},
                                     {"clocks.sm", "millrace_gpu_sm_clock_hertz", 1e6}};

// Cells may be quoted, with quotes doubled.
std::vector<std::string> cells_of(std::string_view line) {
  std::vector<std::string> cells(1);
  bool quoted = false;
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '"') {
      if (quoted && i + 1 < line.size() && line[i + 1] == '"') {
        cells.back() += line[++i];
      } else {
        quoted = !quoted;
      }
    } else if (line[i] == ',' && !quoted) {
      cells.emplace_back();
    } else {
      cells.back() += line[i];
    }
  }
  for (std::string& cell : cells) cell = std::string(trimmed(cell, " \r"));
  return cells;
}

// The number that a cell begins with: "37 %"; nullopt for "[N/A]".
std::optional<double> leading_number(const std::string& cell) {
  char* end = nullptr;
  const double value = std::strtod(cell.c_str(), &end);
  if (end == cell.c_str() || !std::isfinite(value)) return std::nullopt;
  return value;
}

// "2026/11/25 21:00:00.123", also with dashes: of UTC, as the monitor writes it, or of this machine's time zone, as
// nvidia-smi does.
std::optional<double> csv_time(std::string text, bool utc) {
  std::replace(text.begin(), text.end(), '-', '/');
  std::tm parts{};
  const char* rest = strptime(text.c_str(), "%Y/%m/%d %H:%M:%S", &parts);
  if (rest == nullptr) return std::nullopt;
  parts.tm_isdst = -1;
  const double seconds = static_cast<double>(utc ? timegm(&parts) : mktime(&parts));
  return seconds + (*rest == '.' ? std::strtod(rest, nullptr) : 0);
}

class SamplesReader {
 public:
  explicit SamplesReader(NodeSamples& samples) : samples_(samples) {}

  Status read(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) return tl::unexpected(errno_error(errno == 0 ? ENOENT : errno, "open " + path));
    std::string line;
    if (!std::getline(file, line)) return fail(ErrorCode::kInvalidArgument, "{} is empty", path);
    const bool is_csv = line.starts_with("timestamp");
    if (is_csv) read_header(cells_of(line));
    // Reads each n-th line of a long file. With several GPUs a sample has several lines, so only some GPUs are read
    // then.
    std::error_code error;
    const auto bytes = static_cast<int64_t>(std::filesystem::file_size(path, error));
    const int64_t lines =
        error ? 0 : bytes / std::max<int64_t>(1, static_cast<int64_t>(line.size()) / (is_csv ? 2 : 1));
    const int64_t stride = std::max<int64_t>(1, lines / (kMostSamples * (is_csv ? 16 : 1)));
    if (!is_csv) take_json(line);
    for (int64_t number = 1; std::getline(file, line); ++number) {
      if (file.eof() || number % stride != 0) continue;  // a last line without its end was being written
      is_csv ? take_row(line) : take_json(line);
    }
    return {};
  }

 private:
  void add(const std::string& key, double time, double value) {
    std::vector<Point>& points = samples_.series[key];
    // A node's value stands in the row of each of its GPUs.
    if (points.empty() || points.back().time < time) points.push_back({time, value});
  }

  void take_json(const std::string& line) {
    const auto object = nlohmann::json::parse(line, nullptr, false);
    if (!object.is_object() || object.value("type", "") != "monitor_sample") return;
    const auto time = object.find("time_ns");
    const auto values = object.find("values");
    if (time == object.end() || !time->is_number() || values == object.end() || !values->is_object()) return;
    if (samples_.host.empty()) samples_.host = object.value("host", "");
    for (const auto& [key, value] : values->items()) {
      if (value.is_number()) add(key, time->get<double>() * 1e-9, value.get<double>());
    }
  }

  void read_header(const std::vector<std::string>& names) {
    names_ = names;
    for (std::string& name : names_) {
      if (!name.starts_with("millrace_")) name = name.substr(0, name.find(" ["));
      by_monitor_ = by_monitor_ || name == "host" || name.starts_with("millrace_");
    }
  }

  void take_row(const std::string& line) {
    const std::vector<std::string> cells = cells_of(line);
    if (cells.size() != names_.size()) return;
    const auto time = csv_time(cells[0], by_monitor_);
    if (!time) return;
    std::string gpu;
    for (size_t i = 1; i < cells.size(); ++i) {
      if (names_[i] == "index") gpu = cells[i];
      if (names_[i] == "host" && samples_.host.empty()) samples_.host = cells[i];
    }
    for (size_t i = 1; i < cells.size(); ++i) {
      const auto value = leading_number(cells[i]);
      if (!value) continue;
      if (names_[i].starts_with("millrace_")) add(names_[i], *time, *value);
      for (const SmiColumn& column : kSmiColumns) {
        if (names_[i] == column.name && !gpu.empty()) {
          add(fmt::format("{}{{gpu=\"{}\"}}", column.series, gpu), *time, *value * column.factor);
        }
      }
    }
  }

  NodeSamples& samples_;
  std::vector<std::string> names_;
  bool by_monitor_ = false;
};

}  // namespace

double NodeSamples::begun() const {
  double first = 0;
  for (const auto& [key, points] : series) {
    if (!points.empty() && (first == 0 || points.front().time < first)) first = points.front().time;
  }
  return first;
}

double NodeSamples::ended() const {
  double last = 0;
  for (const auto& [key, points] : series) {
    if (!points.empty()) last = std::max(last, points.back().time);
  }
  return last;
}

bool is_samples_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string begin(64, '\0');
  file.read(begin.data(), static_cast<std::streamsize>(begin.size()));
  return begin.starts_with("timestamp,") || begin.starts_with("{\"type\":\"monitor_sample\"");
}

Result<NodeSamples> read_samples(const std::string& path) {
  NodeSamples samples;
  samples.file = path;
  RETURN_IF_ERROR(SamplesReader(samples).read(path));
  if (samples.series.empty()) {
    return fail(ErrorCode::kInvalidArgument, "{} holds no sample of `millrace monitor` or nvidia-smi", path);
  }
  if (samples.host.empty()) samples.host = std::filesystem::path(path).filename().string();
  return samples;
}

}  // namespace millrace::doctor
