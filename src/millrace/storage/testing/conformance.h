// SPDX-License-Identifier: Apache-2.0
#pragma once

// The rules of Storage as one suite, which each backend and wrapper runs in its own test program (link
// millrace_storage_testing):
//
//   INSTANTIATE_TEST_SUITE_P(Memory, StorageConformance, ::testing::Values(StorageCase{...}), conformance_name);
//
// The suite reads Capabilities and the case, and asks only for what the backend can do.

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "millrace/storage/storage.h"

namespace millrace {

struct StorageCase {
  std::string name;  // letters and digits
  // A requirement that this machine lacks: the case then skips. It exists anyway, because CTest lists names at build
  // time.
  std::string missing;
  std::function<std::shared_ptr<Storage>()> make;  // a fresh, empty storage; what lies below it goes with it
  bool shared_between_processes = false;           // a child's commits are seen here
  bool keeps_metadata = true;   // user metadata is stored and returned by stat; else writing it is unsupported
  bool unique_versions = true;  // no two commits of one key have the same version, even with equal content
  bool reads_replaced = true;   // a reader keeps its version after the object was replaced or removed
  bool rewrites_head = true;    // bytes of the first part may be written again before the commit
  bool loses_updates = false;   // a server that answers success to both of two if_version writes
  // Changes an object in place, behind the storage's back. Unset where that is impossible.
  std::function<void(Storage& storage, const std::string& key, std::string_view content)> overwrite_in_place;
};

class StorageConformance : public ::testing::TestWithParam<StorageCase> {
 protected:
  void SetUp() override;
  void put(const std::string& key, std::string_view content);
  std::string get(const std::string& key);

  std::shared_ptr<Storage> storage_;
  Capabilities can_;
};

std::string conformance_name(const ::testing::TestParamInfo<StorageCase>& info);

}  // namespace millrace
