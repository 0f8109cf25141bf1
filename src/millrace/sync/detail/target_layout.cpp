// SPDX-License-Identifier: Apache-2.0
#include "millrace/sync/detail/target_layout.h"

#include <filesystem>

#include "millrace/base/log.h"

namespace millrace::sync {

Status lay_out_target(const Location& target, LustreLayout layout) {
  constexpr std::string_view kFiles = "file://";
  const std::string_view storage = target.storage->name();
  const auto does_nothing = [&] {
    log(LogLevel::kWarning, "{} does not lie on Lustre: the layout \"{}\" is not set", target.url,
        lustre_layout_name(layout));
    return Status();
  };
  if (!storage.starts_with(kFiles)) return does_nothing();
  const auto dir = std::filesystem::path(storage.substr(kFiles.size())) / target.key;
  std::error_code error;
  std::filesystem::create_directories(dir, error);
  if (error) return tl::unexpected<Error>(errno_error(error.value(), "make directory " + dir.string()));
  ASSIGN_OR_RETURN(const bool is_set, set_lustre_layout(dir.string(), layout));
  if (!is_set) return does_nothing();
  ASSIGN_OR_RETURN(const auto shown, show_lustre_layout(dir.string()));
  log(LogLevel::kInfo, "{}: {}", target.url, shown.value_or(""));
  return {};
}

}  // namespace millrace::sync
