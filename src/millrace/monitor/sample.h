// SPDX-License-Identifier: Apache-2.0
#pragma once

// The values of one node at one time, with names, labels and units. Names follow Prometheus: base units (bytes,
// seconds), and `_total` for counters that grow since boot or since the driver started. Values; not synchronised.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace millrace::monitor {

// The description of a series, as a constant. `name` and `help` are literals.
struct Series {
  const char* name;
  const char* help;
  bool is_counter = false;
};

using Labels = std::vector<std::pair<const char*, std::string>>;

struct Value {
  const Series* series;
  Labels labels;
  double value;
};

struct Sample {
  int64_t time_ns = 0;  // since 1970
  std::string host;
  std::vector<Value> values;
  std::vector<std::string> missing;  // parts of the node that could not be read, each with the reason

  void add(const Series& series, double value, Labels labels = {}) {
    values.push_back({&series, std::move(labels), value});
  }
};

// Returns `name{label="value"}`, with Prometheus's escapes.
std::string series_key(const Value& value);

}  // namespace millrace::monitor
