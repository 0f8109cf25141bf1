// SPDX-License-Identifier: Apache-2.0
#include "millrace/link/detail/linked_files.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <cerrno>
#include <optional>
#include <vector>

namespace millrace::link {

std::string whole_path(const LinkConfig& config, std::string_view path) {
  return fmt::format("{}/{}", config.directory, path);
}

Error file_error(std::string_view what, const std::string& path) {
  return errno_error(errno, fmt::format("{} {}", what, path));
}

Status for_each_file(LinkState& state, const std::string& below, const std::function<Status(const LinkFile&)>& visit) {
  constexpr size_t kPage = 4096;
  std::string after, prefix;
  if (!below.empty()) {
    ASSIGN_OR_RETURN(const std::optional<LinkFile> itself, state.find(below));
    if (itself) RETURN_IF_ERROR(visit(*itself));
    after = prefix = below + "/";
  }
  while (true) {
    ASSIGN_OR_RETURN(const std::vector<LinkFile> files, state.page(after, prefix, kPage));
    if (files.empty()) return {};
    for (const LinkFile& file : files) RETURN_IF_ERROR(visit(file));
    after = files.back().path;
  }
}

Status check_there(const LinkConfig& config, const std::string& below) {
  struct stat info{};
  if (below.empty() || ::lstat(whole_path(config, below).c_str(), &info) == 0) return {};
  return tl::unexpected<Error>(file_error("look at", whole_path(config, below)));
}

}  // namespace millrace::link
