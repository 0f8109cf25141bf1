// SPDX-License-Identifier: Apache-2.0
#include "millrace/cache/detail/file_system.h"

#include <array>
#include <utility>

namespace millrace::cache {

namespace {

// linux/magic.h, and the sources of those that are not part of Linux.
constexpr std::array<std::pair<uint64_t, std::string_view>, 13> kNetworkFileSystems = {{
    {0x6969, "NFS"},
    {0x0BD00BD0, "Lustre"},
    {0x65735546, "FUSE"},
    {0x517B, "SMB"},
    {0xFF534D42, "CIFS"},
    {0xFE534D42, "SMB2"},
    {0x00C36400, "Ceph"},
    {0x47504653, "GPFS"},
    {0x19830326, "BeeGFS"},
    {0x5346414F, "AFS"},
    {0x01021997, "9p"},
    {0x01161970, "GFS2"},
    {0x7461636F, "OCFS2"},
}};

}  // namespace

std::string_view network_file_system(uint64_t magic) {
  for (const auto& [number, name] : kNetworkFileSystems) {
    if (number == magic) return name;
  }
  return {};
}

}  // namespace millrace::cache
