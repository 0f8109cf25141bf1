// SPDX-License-Identifier: Apache-2.0
#include "millrace/storage/memory.h"

#include "millrace/storage/conformance.h"

namespace millrace {
namespace {

INSTANTIATE_TEST_SUITE_P(Memory, StorageConformance,
                         ::testing::Values(StorageCase{.name = "memory",
                                                       .make = [] { return make_memory_storage("test"); }}),
                         conformance_name);

}  // namespace
}  // namespace millrace
