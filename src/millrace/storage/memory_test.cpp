// SPDX-License-Identifier: Apache-2.0
#include "millrace/storage/memory.h"

#include "millrace/storage/testing/conformance.h"
#include "millrace/storage/testing/parts_storage.h"

namespace millrace {
namespace {

INSTANTIATE_TEST_SUITE_P(Memory, StorageConformance,
                         ::testing::Values(StorageCase{.name = "memory",
                                                       .make = [] { return make_memory_storage("test"); }}),
                         conformance_name);

INSTANTIATE_TEST_SUITE_P(Parts, StorageConformance,
                         ::testing::Values(StorageCase{
                             .name = "parts",
                             .make = [] { return make_parts_storage(std::make_shared<PartsService>()); },
                             .rewrites_head = false}),
                         conformance_name);

}  // namespace
}  // namespace millrace
