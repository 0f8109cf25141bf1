// SPDX-License-Identifier: Apache-2.0
#include "millrace/cluster/config/instances.h"

#include <algorithm>
#include <array>

namespace millrace::cluster {

std::string_view maker_name(Maker maker) {
  constexpr std::array<std::string_view, 6> kNames = {"no", "NVIDIA", "AMD", "Habana", "AWS", "other"};
  return kNames[static_cast<size_t>(maker)];
}

const Instance* find_instance(std::string_view name) {
  const std::span<const Instance> all = instances();
  const auto found = std::lower_bound(all.begin(), all.end(), name,
                                      [](const Instance& instance, std::string_view n) { return instance.name < n; });
  return found == all.end() || found->name != name ? nullptr : &*found;
}

}  // namespace millrace::cluster
