// SPDX-License-Identifier: Apache-2.0
#include "millrace/sync/detail/attributes.h"

#include <unistd.h>

#include "millrace/storage/local/stub_mode.h"

namespace millrace::sync {

bool same_attributes(const Storage& target, const std::optional<PosixAttributes>& wanted,
                     const std::optional<PosixAttributes>& found) {
  if (!wanted) return true;
  if (!found || wanted->modified != found->modified) return false;
  if (wanted->mode == 0) return true;  // it is not known, and neither is the owner
  const bool gives_owner = !target.capabilities().is_local() || ::geteuid() == 0;
  // What lends an owner's rights goes only with the owner.
  const uint32_t kept = gives_owner ? 07777 : 01777;
  if ((wanted->mode & kept) != (found->mode & kept)) return false;
  return !gives_owner || (wanted->owner == found->owner && wanted->group == found->group);
}

std::optional<PosixAttributes> attributes_of_content(const Storage& storage, const ObjectInfo& file) {
  constexpr uint32_t kPermissions = 07777;
  std::optional<PosixAttributes> attributes = file.posix;
  const bool may_be_stub = attributes && attributes->mode != 0 && (attributes->mode & kPermissions) == 0;
  if (!may_be_stub || file.size == 0 || !storage.capabilities().is_local()) return attributes;
  if (const auto mode = stub_mode(file)) attributes->mode |= *mode & kPermissions;
  return attributes;
}

}  // namespace millrace::sync
