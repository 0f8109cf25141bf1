// SPDX-License-Identifier: Apache-2.0
#include "millrace/monitor/sinks.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "millrace/formats/tfevents.h"
#include "millrace/monitor/text.h"

namespace millrace::monitor {

namespace {

class Descriptor {
 public:
  Descriptor() = default;
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)), path_(std::move(other.path_)) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Status open_file(const std::string& path, int flags) {
    path_ = path;
    fd_ = open(path.c_str(), flags | O_CREAT | O_CLOEXEC, 0666);
    if (fd_ < 0) return tl::unexpected(errno_error(errno, "open " + path_));
    return {};
  }
  Status write_all(std::string_view text) const {
    while (!text.empty()) {
      const ssize_t wrote = write(fd_, text.data(), text.size());
      if (wrote < 0 && errno == EINTR) continue;
      if (wrote < 0) return tl::unexpected(errno_error(errno, "write " + path_));
      text.remove_prefix(static_cast<size_t>(wrote));
    }
    return {};
  }
  int64_t size() const { return lseek(fd_, 0, SEEK_END); }
  // Up to `size` bytes from `at`; fewer at the end, none of what cannot be read (a pipe).
  std::string read_at(int64_t at, size_t size) const {
    std::string text(size, '\0');
    text.resize(static_cast<size_t>(std::max<ssize_t>(pread(fd_, text.data(), size, at), 0)));
    return text;
  }

 private:
  int fd_ = -1;
  std::string path_;
};

// A file that grows by lines, or another place for them.
class Lines {
 public:
  explicit Lines(std::string path) : path_(std::move(path)) {}
  explicit Lines(WriteText out) : out_(std::move(out)) {}
  bool is_begun() const { return is_begun_; }

  // Writes `header`, or goes on behind the lines of a file that begins with it. Errors: already_exists (another file).
  Status begin(const std::string& header) {
    is_begun_ = true;
    if (out_) return write(header);
    RETURN_IF_ERROR(file_.open_file(path_, O_RDWR | O_APPEND));
    const int64_t size = file_.size();
    if (size <= 0) return write(header);
    if (file_.read_at(0, header.size()) != header) {
      is_begun_ = false;
      return fail(ErrorCode::kAlreadyExists, "{} exists and has other columns; name another file", path_);
    }
    // A full disk may have torn the last line.
    return file_.read_at(size - 1, 1) == "\n" ? Status() : write("\n");
  }
  Status write(std::string_view text) { return out_ ? out_(text) : file_.write_all(text); }

 private:
  std::string path_;
  WriteText out_;
  Descriptor file_;
  bool is_begun_ = false;
};

std::string csv_cell(const std::string& text) {
  if (text.find_first_of(",\"\n") == std::string::npos) return text;
  std::string out = "\"";
  for (const char c : text) out += c == '"' ? std::string("\"\"") : std::string(1, c);
  return out + "\"";
}

std::string time_text(int64_t time_ns) {
  const time_t seconds = time_ns / 1'000'000'000;
  return fmt::format("{:%Y/%m/%d %H:%M:%S}.{:03}", fmt::gmtime(seconds), time_ns / 1'000'000 % 1000);
}

// nvidia-smi's names and units of the columns that scripts read, and the factor from ours.
struct GpuColumn {
  const char *header, *series;
  double factor;
};
constexpr double kMiB = 1.0 / (1 << 20);
constexpr GpuColumn kGpuColumns[] = {{"utilization.gpu [%]", "millrace_gpu_busy_ratio", 100},
                                     {"memory.used [MiB]", "millrace_gpu_memory_used_bytes", kMiB},
                                     {"memory.total [MiB]", "millrace_gpu_memory_size_bytes", kMiB},
                                     {"temperature.gpu", "millrace_gpu_temperature_celsius", 1},
                                     {"power.draw [W]", "millrace_gpu_power_watts", 1},
                                     {"clocks.current.sm [MHz]", "millrace_gpu_sm_clock_hertz", 1e-6}};

bool is_gpu(const Value& value) {
  return !value.labels.empty() && std::strcmp(value.labels[0].first, "gpu") == 0;
}

// The series of single processes come and go, so that they are no columns.
bool is_process(const Value& value) {
  return !value.labels.empty() && std::strcmp(value.labels[0].first, "rank") == 0;
}

class CsvSink final : public Sink {
 public:
  explicit CsvSink(Lines lines) : lines_(std::move(lines)) {}

  Status write(const Sample& sample) override {
    if (!lines_.is_begun()) RETURN_IF_ERROR(begin(sample));
    std::map<std::string, double> node;
    std::map<int, std::map<std::string, double>> gpus;
    for (const Value& value : sample.values) {
      if (is_gpu(value)) {
        gpus[std::atoi(value.labels[0].second.c_str())][value.series->name] = value.value;
      } else {
        node[series_key(value)] = value.value;
      }
    }
    std::string text;
    for (const auto& [index, values] : gpus) text += row(sample, std::to_string(index), values, node);
    if (gpus.empty()) text = row(sample, "", {}, node);
    return lines_.write(text);
  }

 private:
  Status begin(const Sample& sample) {
    std::string header = "timestamp,index";
    for (const GpuColumn& column : kGpuColumns) header += fmt::format(",{}", column.header);
    header += ",host";
    for (const Value& value : sample.values) {
      if (is_gpu(value) || is_process(value)) continue;
      columns_.push_back(series_key(value));
      header += "," + csv_cell(columns_.back());
    }
    return lines_.begin(header + "\n");
  }

  std::string row(const Sample& sample, const std::string& index, const std::map<std::string, double>& gpu,
                  const std::map<std::string, double>& node) const {
    std::string line = time_text(sample.time_ns) + "," + index;
    const auto cell = [&](const std::map<std::string, double>& from, const std::string& name, double factor) {
      const auto at = from.find(name);
      line += at == from.end() ? "," : fmt::format(",{}", at->second * factor);
    };
    for (const GpuColumn& column : kGpuColumns) cell(gpu, column.series, column.factor);
    line += "," + csv_cell(sample.host);
    for (const std::string& column : columns_) cell(node, column, 1);
    return line + "\n";
  }

  Lines lines_;
  std::vector<std::string> columns_;
};

class JsonLinesSink final : public Sink {
 public:
  explicit JsonLinesSink(Lines lines) : lines_(std::move(lines)) {}

  Status write(const Sample& sample) override {
    if (!lines_.is_begun()) RETURN_IF_ERROR(lines_.begin(""));
    nlohmann::ordered_json values = nlohmann::ordered_json::object();
    for (const Value& value : sample.values) values[series_key(value)] = value.value;
    const nlohmann::ordered_json line = {
        {"type", "monitor_sample"}, {"time_ns", sample.time_ns}, {"host", sample.host}, {"values", std::move(values)}};
    return lines_.write(line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
  }

 private:
  Lines lines_;
};

class PrometheusSink final : public Sink {
 public:
  explicit PrometheusSink(std::string path) : path_(std::move(path)) {}

  Status write(const Sample& sample) override {
    const std::string beside = fmt::format("{}.{}.tmp", path_, getpid());  // the collector reads *.prom only
    {
      Descriptor file;
      RETURN_IF_ERROR(file.open_file(beside, O_WRONLY | O_TRUNC));
      if (Status wrote = file.write_all(prometheus_text(sample)); !wrote) {
        unlink(beside.c_str());
        return wrote;
      }
    }
    if (rename(beside.c_str(), path_.c_str()) == 0) return {};
    const int code = errno;
    unlink(beside.c_str());
    return tl::unexpected(errno_error(code, "rename to " + path_));
  }

 private:
  const std::string path_;
};

class TensorboardSink final : public Sink {
 public:
  explicit TensorboardSink(std::string folder) : folder_(std::move(folder)) {}

  Status write(const Sample& sample) override {
    constexpr double kNanosecond = 1e-9;
    const double time = static_cast<double>(sample.time_ns) * kNanosecond;
    std::string text;
    if (!is_begun_) {
      std::error_code error;
      std::filesystem::create_directories(folder_, error);
      if (error) return tl::unexpected(errno_error(error.value(), "mkdir " + folder_));
      RETURN_IF_ERROR(file_.open_file(
          fmt::format("{}/events.out.tfevents.{}.{}.{}", folder_, sample.time_ns, sample.host, getpid()), O_WRONLY));
      is_begun_ = true;
      text = formats::event_file_header(time);
    }
    std::vector<std::pair<std::string, double>> values;
    std::map<std::string, double> counted;
    for (const Value& value : sample.values) {
      if (!value.series->is_counter) {
        values.emplace_back(tag(value), value.value);
        continue;
      }
      const std::string key = series_key(value);
      const auto before = counted_.find(key);
      counted[key] = value.value;
      if (before == counted_.end() || value.value < before->second || time <= time_) continue;  // it began again
      values.emplace_back(tag(value), (value.value - before->second) / (time - time_));
    }
    counted_ = std::move(counted);
    time_ = time;
    return file_.write_all(text + formats::scalars_event(values, time, static_cast<int64_t>(time)));
  }

 private:
  // millrace_disk_read_bytes_total{device="sda"} is disk/read_bytes_per_s/sda.
  static std::string tag(const Value& value) {
    std::string name = value.series->name;
    name = name.substr(name.find('_') + 1);
    if (const size_t group = name.find('_'); group != std::string::npos) name[group] = '/';
    if (value.series->is_counter) name = name.substr(0, name.rfind("_total")) + "_per_s";
    for (const auto& [label, text] : value.labels) name += "/" + text;
    return name;
  }

  const std::string folder_;
  Descriptor file_;
  bool is_begun_ = false;
  std::map<std::string, double> counted_;  // counters of the sample before
  double time_ = 0;
};

}  // namespace

std::string series_key(const Value& value) {
  std::string key = value.series->name;
  for (size_t i = 0; i < value.labels.size(); ++i) {
    key += fmt::format("{}{}=\"", i == 0 ? "{" : ",", value.labels[i].first);
    for (const char c : value.labels[i].second) {
      if (c == '\n') {
        key += "\\n";
        continue;
      }
      if (c == '"' || c == '\\') key += '\\';
      key += c;
    }
    key += '"';
  }
  return value.labels.empty() ? key : key + "}";
}

std::string prometheus_text(const Sample& sample) {
  std::map<std::string, std::string> texts;  // by name: all series of a name stand together
  std::set<std::string> seen;
  for (const Value& value : sample.values) {
    const std::string key = series_key(value);
    if (!seen.insert(key).second) continue;  // a file with a series twice is invalid
    std::string& text = texts[value.series->name];
    if (text.empty()) {
      text = fmt::format("# HELP {0} {1}\n# TYPE {0} {2}\n", value.series->name, value.series->help,
                         value.series->is_counter ? "counter" : "gauge");
    }
    text += fmt::format("{} {}\n", key, value.value);
  }
  std::string all;
  for (const auto& [name, text] : texts) all += text;
  return all;
}

std::unique_ptr<Sink> csv_sink(const std::string& path) {
  return std::make_unique<CsvSink>(Lines(path));
}
std::unique_ptr<Sink> csv_sink(WriteText out) {
  return std::make_unique<CsvSink>(Lines(std::move(out)));
}
std::unique_ptr<Sink> json_lines_sink(const std::string& path) {
  return std::make_unique<JsonLinesSink>(Lines(path));
}
std::unique_ptr<Sink> json_lines_sink(WriteText out) {
  return std::make_unique<JsonLinesSink>(Lines(std::move(out)));
}
std::unique_ptr<Sink> tensorboard_sink(const std::string& folder) {
  return std::make_unique<TensorboardSink>(folder);
}
std::unique_ptr<Sink> prometheus_sink(const std::string& path) {
  return std::make_unique<PrometheusSink>(path);
}

}  // namespace millrace::monitor
