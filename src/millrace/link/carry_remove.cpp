// SPDX-License-Identifier: Apache-2.0
// What one side removed goes from the other.
#include <sys/stat.h>

#include <cerrno>
#include <filesystem>

#include "millrace/link/detail/carry_work.h"
#include "millrace/sync/removal.h"

namespace millrace::link {

namespace {

using State = LinkFile::State;

}  // namespace

void Carrier::remove_here(const std::string& path) {
  remove(path, &Carrier::remove_file);
}

void Carrier::remove_there(const std::string& path) {
  remove(path, &Carrier::remove_object);
}

void Carrier::remove(const std::string& path, Status (Carrier::*what)(const LinkFile&)) {
  {
    const MutexLock lock(mutex_);
    ++at_work_;
  }
  const auto known = state_.find(path);
  Status removed = known ? Status() : tl::unexpected<Error>(known.error());
  if (removed && *known) removed = (this->*what)(**known);
  ended(std::make_shared<Work>(Work{.path = path}), removed);
}

Status Carrier::remove_file(const LinkFile& known) {
  const std::string key = here_.child(known.path).key;
  ASSIGN_OR_RETURN(const ObjectInfo now, here_.storage->stat(key));
  if (!sync::is_version(known.here, now)) return {};  // changed meanwhile: the next sweep decides
  if (known.state == State::kReleased) {
    RETURN_IF_ERROR(here_.storage->remove({&key, 1}));
  } else {
    RETURN_IF_ERROR(trash_.throw_file(known.path));
  }
  RETURN_IF_ERROR(state_.forget(known.path));
  tell("delete_here", known.path, "removed from the bucket", known.size);
  const MutexLock lock(mutex_);
  ++counts_.deleted_here;
  return {};
}

Status Carrier::remove_object(const LinkFile& known) {
  const std::string key = there_.child(known.path).key;
  ASSIGN_OR_RETURN(const ObjectInfo now, there_.storage->stat(key));
  if (known.there != now.version) return {};
  RETURN_IF_ERROR(trash_.keep_object(known.path, now));
  Status removed;
  sync::Removal removal(*there_.storage, false, [&](const auto&, int64_t, const Status& each) { removed = each; });
  removal.add(known.path, key, now.size);
  removal.flush();
  RETURN_IF_ERROR(removed);
  RETURN_IF_ERROR(state_.forget(known.path));
  tell("delete_there", known.path, "removed from the directory", known.size);
  const MutexLock lock(mutex_);
  ++counts_.deleted_there;
  return {};
}

}  // namespace millrace::link
