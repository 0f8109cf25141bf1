// SPDX-License-Identifier: Apache-2.0
#pragma once

// Lets processes on several nodes meet through a shared folder, without MPI or sockets. Each process leaves a mark by
// a rename. Node 0 sees all marks and publishes the common start time, also by a rename. Not thread-safe; one meeting
// per process.

#include <chrono>
#include <nlohmann/json.hpp>
#include <stop_token>
#include <string>
#include <vector>

#include "millrace/base/status.h"

namespace millrace::bench {

class Meeting {
 public:
  // `lead`: time between the last arrival and the start. `patience`: how long to wait for the other nodes.
  Meeting(std::string folder, int node, int nodes, std::chrono::milliseconds lead, std::chrono::seconds patience)
      : folder_(std::move(folder)), node_(node), nodes_(nodes), lead_(lead), patience_(patience) {}

  int node() const { return node_; }
  int nodes() const { return nodes_; }

  // Waits for all nodes and returns the common start time, by the clock of node 0, in seconds since 1970. Errors:
  // timeout (names a node that did not come), cancelled, those of writing.
  [[nodiscard]] Result<double> agree(const std::string& name, const std::stop_token& stop);
  // Gives every node's value to node 0, and an empty list to the others. Returns when all nodes have come, so that
  // afterwards a node may remove files that another one has read. Errors: as for agree().
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

// Returns the time in seconds since 1970.
double wall_clock();

}  // namespace millrace::bench
