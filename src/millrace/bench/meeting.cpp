// SPDX-License-Identifier: Apache-2.0
#include "millrace/bench/meeting.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "millrace/base/io/file_text.h"
#include "millrace/base/thread/sync.h"

namespace millrace::bench {

double wall_clock() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string Meeting::place(const std::string& name, int node) const {
  return fmt::format("{}/{}.{}", folder_, name, node);
}

Status Meeting::leave(const std::string& path, const std::string& text) const {
  const std::string beside = path + ".tmp";
  std::ofstream file(beside, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  if (!file) return fail(ErrorCode::kPermissionDenied, "cannot write {}", beside);
  if (std::rename(beside.c_str(), path.c_str()) != 0) return tl::unexpected(errno_error(errno, "rename to " + path));
  return {};
}

Result<std::string> Meeting::await(const std::string& path, int node, const std::stop_token& stop) const {
  constexpr std::chrono::milliseconds kShortest{1}, kLongest{50};
  const Clock::time_point end = Clock::now() + patience_;
  for (auto pause = kShortest; Clock::now() < end; pause = std::min(pause * 2, kLongest)) {
    if (auto text = read_text(path)) return *std::move(text);
    if (!sleep_until(Clock::now() + pause, stop)) return fail(ErrorCode::kCancelled, "stopped while nodes meet");
  }
  return fail(ErrorCode::kTimeout, "node {} did not come within {} s; do all nodes see {}?", node, patience_.count(),
              folder_);
}

Result<double> Meeting::agree(const std::string& name, const std::stop_token& stop) {
  const std::string start = folder_ + "/" + name + ".start";
  if (node_ != 0) {
    RETURN_IF_ERROR(leave(place(name, node_), "here"));
    ASSIGN_OR_RETURN(const std::string text, await(start, 0, stop));
    return std::strtod(text.c_str(), nullptr);
  }
  for (int node = 1; node < nodes_; ++node) {
    RETURN_IF_ERROR(with_context(await(place(name, node), node, stop), name));
  }
  const double begin = wall_clock() + std::chrono::duration<double>(lead_).count();
  if (nodes_ > 1) RETURN_IF_ERROR(leave(start, fmt::format("{:.6f}", begin)));
  return begin;
}

Result<std::vector<nlohmann::ordered_json>> Meeting::gather(const std::string& name,
                                                            const nlohmann::ordered_json& value,
                                                            const std::stop_token& stop) {
  const std::string all = folder_ + "/" + name + ".all";
  std::vector<nlohmann::ordered_json> values;
  if (node_ != 0) {
    RETURN_IF_ERROR(leave(place(name, node_), value.dump()));
    if (const auto seen = await(all, 0, stop); !seen) return tl::unexpected<Error>(seen.error());
    return values;
  }
  values.push_back(value);
  for (int node = 1; node < nodes_; ++node) {
    ASSIGN_OR_RETURN(const std::string text, await(place(name, node), node, stop));
    values.push_back(nlohmann::ordered_json::parse(text, nullptr, false));
    if (values.back().is_discarded()) return fail(ErrorCode::kCorruption, "{} is damaged", place(name, node));
  }
  if (nodes_ > 1) RETURN_IF_ERROR(leave(all, "here"));
  return values;
}

}  // namespace millrace::bench
