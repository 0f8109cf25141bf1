// SPDX-License-Identifier: Apache-2.0
#pragma once

// The outputs of samples. Each sample is one write() of whole lines, or a file that is renamed into place, so a killed
// monitor leaves readable files. Not thread-safe.

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "millrace/base/status.h"
#include "millrace/monitor/sample.h"

namespace millrace::monitor {

// Writes whole lines.
using WriteText = std::function<Status(std::string_view)>;

class Sink {
 public:
  virtual ~Sink() = default;
  // Writes a sample. Errors: those of the write, with the file's name.
  [[nodiscard]] virtual Status write(const Sample& sample) = 0;
};

// Writes CSV: one line per GPU, or one per sample on a node without GPUs. The columns are those of `nvidia-smi
// --query-gpu`, then the host, then the node's series of the first sample. Appends to a file with the same header.
// Errors of write(): already_exists (the file has other columns).
std::unique_ptr<Sink> csv_sink(const std::string& path);
std::unique_ptr<Sink> csv_sink(WriteText out);
// Writes one JSON object per line, with all series. Appends to an existing file.
std::unique_ptr<Sink> json_lines_sink(const std::string& path);
std::unique_ptr<Sink> json_lines_sink(WriteText out);
// Writes Prometheus's text format for node_exporter's textfile collector, and replaces the file at each sample.
std::unique_ptr<Sink> prometheus_sink(const std::string& path);

// Writes a new TensorBoard event file in this folder, which is created. Counters become rates: a tag is
// "disk/read_bytes_per_s/sda". The step is seconds since 1970.
std::unique_ptr<Sink> tensorboard_sink(const std::string& folder);
// Answers HTTP requests GET /metrics with the newest sample, for Prometheus itself. `address`: "PORT" (of 127.0.0.1)
// or "HOST:PORT"; port 0: a free one. Sets `bound` to the address in use. Owns a thread. Errors: invalid_argument,
// those of bind.
[[nodiscard]] Result<std::unique_ptr<Sink>> listen_sink(const std::string& address, std::string& bound);

// Returns the text that prometheus_sink writes.
std::string prometheus_text(const Sample& sample);

}  // namespace millrace::monitor
