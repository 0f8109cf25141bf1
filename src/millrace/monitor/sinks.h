// SPDX-License-Identifier: Apache-2.0
#pragma once

// Where samples go. Each sample is one write() of whole lines, or a file that is renamed into place, so a killed
// monitor leaves readable files. Not thread-safe.

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "millrace/base/status.h"
#include "millrace/monitor/sample.h"

namespace millrace::monitor {

// Takes whole lines.
using WriteText = std::function<Status(std::string_view)>;

class Sink {
 public:
  virtual ~Sink() = default;
  // Errors: those of the write, with the file's name.
  [[nodiscard]] virtual Status write(const Sample& sample) = 0;
};

// CSV: one line a GPU, or one a sample on a node without GPUs. First the columns of `nvidia-smi --query-gpu`, then the
// host and the node's series as the first sample has them. A file with the same header is continued.
// Errors of write: already_exists (the file has other columns).
std::unique_ptr<Sink> csv_sink(const std::string& path);
std::unique_ptr<Sink> csv_sink(WriteText out);
// One JSON object a line, with all series. A file is continued.
std::unique_ptr<Sink> json_lines_sink(const std::string& path);
std::unique_ptr<Sink> json_lines_sink(WriteText out);
// Prometheus's text format for node_exporter's textfile collector, replaced at each sample.
std::unique_ptr<Sink> prometheus_sink(const std::string& path);

// TensorBoard's event file, a new one in this folder, which is made. Counters become rates: a tag is
// "disk/read_bytes_per_s/sda". The step is seconds since 1970.
std::unique_ptr<Sink> tensorboard_sink(const std::string& folder);
// Answers GET /metrics by HTTP with the newest sample, for Prometheus itself. `address`: "PORT" (of 127.0.0.1) or
// "HOST:PORT"; port 0: a free one. `bound` gets the address. Owns a thread. Errors: invalid_argument, those of bind.
[[nodiscard]] Result<std::unique_ptr<Sink>> listen_sink(const std::string& address, std::string& bound);

// The text that prometheus_sink writes.
std::string prometheus_text(const Sample& sample);

}  // namespace millrace::monitor
