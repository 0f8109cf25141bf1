// SPDX-License-Identifier: Apache-2.0
#pragma once

// Reservations of nodes, as scontrol shows them. The parser is pure; all functions are thread-safe.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/status.h"
#include "millrace/slurm/slurm.h"

namespace millrace::slurm {

struct Reservation {
  std::string name;
  std::vector<std::string> nodes;
  std::optional<int64_t> start, end;  // UTC seconds since 1970
  std::string flags;                  // "MAINT,SPEC_NODES"
  std::string users, accounts;        // those that may use it; "": none
  bool active = false;

  bool is_maintenance() const { return flags.find("MAINT") != std::string::npos; }
};

// Parses `scontrol -o show reservation`: one reservation per line. Error: corruption, node names that cannot be
// expanded.
[[nodiscard]] Result<std::vector<Reservation>> parse_reservations(std::string_view text);
// Calls scontrol once. Errors: as for slurm_answer (commands.h).
[[nodiscard]] Result<std::vector<Reservation>> ask_reservations(const AskOptions& options);

}  // namespace millrace::slurm
