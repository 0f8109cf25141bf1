// SPDX-License-Identifier: Apache-2.0
#include "millrace/slurm/reservations.h"

#include "millrace/base/text/strings.h"
#include "millrace/slurm/commands.h"
#include "millrace/slurm/queue.h"

namespace millrace::slurm {

namespace {

Result<Reservation> reservation_of(const std::map<std::string, std::string, std::less<>>& fields) {
  const auto field = [&](std::string_view name) -> std::string {
    const auto found = fields.find(name);
    return found == fields.end() || found->second == "(null)" ? "" : found->second;
  };
  Reservation found{.name = field("ReservationName"),
                    .nodes = {},
                    .start = parse_local_time(field("StartTime")),
                    .end = parse_local_time(field("EndTime")),
                    .flags = field("Flags"),
                    .users = field("Users"),
                    .accounts = field("Accounts"),
                    .active = field("State") == "ACTIVE"};
  ASSIGN_OR_RETURN(found.nodes, expand_hostlist(field("Nodes")));
  return found;
}

}  // namespace

Result<std::vector<Reservation>> parse_reservations(std::string_view text) {
  std::vector<Reservation> reservations;
  while (!text.empty()) {
    const auto fields = parse_record(take_line(text));
    if (!fields.contains("ReservationName")) continue;  // "No reservations in the system"
    ASSIGN_OR_RETURN(reservations.emplace_back(), reservation_of(fields));
  }
  return reservations;
}

Result<std::vector<Reservation>> ask_reservations(const AskOptions& options) {
  ASSIGN_OR_RETURN(const std::string text, slurm_answer({"scontrol", "-o", "show", "reservation"}, options));
  return parse_reservations(text);
}

}  // namespace millrace::slurm
