// SPDX-License-Identifier: Apache-2.0
#include "millrace/sync/detail/attributes.h"

#include <unistd.h>

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

}  // namespace millrace::sync
