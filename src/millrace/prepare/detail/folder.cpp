// SPDX-License-Identifier: Apache-2.0
#include "millrace/prepare/detail/folder.h"

#include "millrace/base/text/units.h"

namespace millrace::prepare {

Result<std::map<std::string, int64_t>> folder_files(const Location& folder, std::string_view head) {
  const std::string base = folder.child("").key;
  std::map<std::string, int64_t> files;
  RETURN_IF_ERROR(for_each_object(
      *folder.storage, base + std::string(head),
      [&](const ObjectInfo& object) -> Status {
        files.emplace(object.key.substr(base.size()), object.size);
        return {};
      },
      /*recursive=*/false));
  return files;
}

Result<std::optional<std::string>> read_if_there(const Location& folder, std::string_view name) {
  auto content = read_object(*folder.storage, folder.child(name).key);
  if (content) return std::optional<std::string>(std::move(*content));
  if (content.error().code() == ErrorCode::kNotFound) return std::optional<std::string>();
  return tl::unexpected(std::move(content).error());
}

Status write_if_different(const Location& folder, std::string_view name, std::string_view content) {
  ASSIGN_OR_RETURN(const std::optional<std::string> there, read_if_there(folder, name));
  if (there == content) return {};
  RETURN_IF_ERROR(write_object(*folder.storage, folder.child(name).key, content));
  return {};
}

Status check_space(const Location& folder, int64_t need_bytes) {
  return millrace::check_space(*folder.storage, folder.key, need_bytes, folder.url);
}

}  // namespace millrace::prepare
