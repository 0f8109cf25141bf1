// SPDX-License-Identifier: Apache-2.0
#include "millrace/lerobot/partial_folder.h"

#include <fmt/format.h>

#include <filesystem>

namespace millrace::lerobot {
namespace {

namespace fs = std::filesystem;

constexpr const char* kStateFile = ".millrace-unfinished";

bool is_there(const std::string& path) {
  std::error_code error;
  return fs::exists(fs::symlink_status(path, error));
}

}  // namespace

Result<std::unique_ptr<PartialFolder>> PartialFolder::open(const std::string& target, const std::string& identity) {
  auto folder = std::make_unique<PartialFolder>();
  std::error_code error;
  folder->target_ = fs::absolute(target, error).lexically_normal().native();
  while (folder->target_.size() > 1 && folder->target_.ends_with('/')) folder->target_.pop_back();
  folder->partial_ = folder->target_ + ".partial";
  if (is_there(folder->target_)) {
    return fail(ErrorCode::kAlreadyExists, "{} is there already: name a new folder", target);
  }
  ASSIGN_OR_RETURN(folder->root_, open_url(folder->partial_));
  const Location state = folder->root_.child(kStateFile);
  const auto before = read_object(*state.storage, state.key);
  const bool is_empty = !fs::exists(folder->partial_, error) || fs::is_empty(folder->partial_, error);
  if (before ? *before != identity : !is_empty) {
    return fail(ErrorCode::kAlreadyExists, "{}: something else was begun there: remove that folder", folder->partial_);
  }
  folder->is_new_ = !before;
  if (!before) {
    const auto written = write_object(*state.storage, state.key, identity);
    if (!written) return tl::unexpected(written.error());
  }
  return folder;
}

Result<bool> PartialFolder::put(const std::string& path, const Make& make) {
  const Location place = root_.child(path);
  if (place.storage->stat(place.key)) return false;
  ASSIGN_OR_RETURN(const std::vector<std::byte> content, make());
  // Not durable yet: a sync for each file would take longer than the file. finish() makes up for it.
  const auto written = write_object(*place.storage, place.key, as_text(content), {}, Durability::kVisible);
  if (!written) return tl::unexpected(written.error());
  MutexLock lock(mutex_);
  written_.push_back(place.key);
  return true;
}

bool PartialFolder::has(const std::string& path) const {
  const Location place = root_.child(path);
  return place.storage->stat(place.key).has_value();
}

// The state file goes last: a run that is killed before the rename can still be continued.
Status PartialFolder::finish() {
  {
    MutexLock lock(mutex_);
    RETURN_IF_ERROR(root_.storage->make_durable(written_));
  }
  if (is_there(target_)) {
    return fail(ErrorCode::kAlreadyExists, "{} was created meanwhile: the dataset is in {}", target_, partial_);
  }
  std::error_code error;
  fs::rename(partial_, target_, error);
  if (!error) fs::remove(fs::path(target_) / kStateFile, error);
  if (error) return tl::unexpected(errno_error(error.value(), fmt::format("rename {} to {}", partial_, target_)));
  return {};
}

}  // namespace millrace::lerobot
