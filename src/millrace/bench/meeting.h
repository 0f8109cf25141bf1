// SPDX-License-Identifier: Apache-2.0
#pragma once

// Processes of several nodes that meet through a folder which all of them see: no MPI, no sockets. Each one leaves a
// mark by a rename; the first one sees all marks and publishes, by a rename, the time at which all begin. Not
// thread-safe; one meeting a process.

#include <chrono>
#include <nlohmann/json.hpp>
#include <stop_token>
#include <string>
#include <vector>

#include "millrace/base/status.h"

namespace millrace::bench {

class Meeting {
 public:
  // `lead`: how far ahead of the last arrival the start lies. `patience`: how long to wait for the others.
  Meeting(std::string folder, int node, int nodes, std::chrono::milliseconds lead, std::chrono::seconds patience)
      : folder_(std::move(folder)), node_(node), nodes_(nodes), lead_(lead), patience_(patience) {}

  int node() const { return node_; }
  int nodes() const { return nodes_; }

  // Returns when all have come, with the common time to begin at, by the clock of node 0: seconds since 1970.
  // Errors: timeout (some node did not come; it is named), cancelled, those of writing.
  [[nodiscard]] Result<double> agree(const std::string& name, const std::stop_token& stop);
  // Gives every node's value to node 0, and an empty list to the others. Returns when all have come, so that a node may
  // then remove what another one read. Errors: as of agree().
  [[nodiscard]] Result<std::vector<nlohmann::ordered_json>> gather(const std::string& name,
                                                                   const nlohmann::ordered_json& value,
                                                                   const std::stop_token& stop);

 private:
  std::string place(const std::string& name, int node) const;
  [[nodiscard]] Status leave(const std::string& path, const std::string& text) const;
  [[nodiscard]] Result<std::string> await(const std::string& path, int node, const std::stop_token& stop) const;

  std::string folder_;
  int node_, nodes_;
  std::chrono::milliseconds lead_;
  std::chrono::seconds patience_;
};

// Seconds since 1970.
double wall_clock();

}  // namespace millrace::bench
