// SPDX-License-Identifier: Apache-2.0
// Nodes that start at once on 500 shards, with and without the cache of the node and its turns. One JSON object a line;
// storm_plot.py draws them.
//
//   millrace_storm [NODES...]

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <cstdlib>

#include "storm.h"

int main(int argc, char** argv) {
  std::vector<int64_t> nodes = {8, 64, 512, 4096};
  if (argc > 1) nodes.clear();
  for (int i = 1; i < argc; ++i) nodes.push_back(std::atoll(argv[i]));
  for (const int64_t count : nodes) {
    for (const bool with_cache : {true, false}) {
      const auto outcome = millrace::storm::simulate({.nodes = count, .with_cache = with_cache});
      fmt::print(
          "{{\"nodes\": {}, \"with_cache\": {}, \"wanted\": {}, \"refused\": {}, \"lists\": {}, \"bytes\": {}, "
          "\"first_s\": {:.2f}, \"all_s\": {:.2f}, \"requests_a_second\": {}, \"bytes_a_second\": {}}}\n",
          count, with_cache, outcome.wanted, outcome.refused, outcome.lists, outcome.bytes, outcome.first_s,
          outcome.all_s, outcome.requests_a_second, outcome.bytes_a_second);
      std::fflush(stdout);
    }
  }
  return 0;
}
