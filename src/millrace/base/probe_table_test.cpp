// SPDX-License-Identifier: Apache-2.0
#include "millrace/base/probe_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <random>
#include <string>

#include "millrace/base/simd.h"
#include "millrace/base/testing.h"

namespace millrace {
namespace {

struct Entry {
  uint64_t key;  // 0: empty
  uint64_t value;
  bool is_empty() const { return key == 0; }
};

// Hashes of few upper bits, so that entries collide and probing passes the table's end.
TEST(ProbeTable, FindsWhatAMapFinds) {
  SCOPED_TRACE("MILLRACE_TEST_SEED=" + std::to_string(test_seed()));
  std::mt19937_64 random(test_seed());
  for (const size_t entries : {0, 1, 2, 7, 1000}) {
    ProbeTable<Entry> table(entries);
    std::map<uint64_t, uint64_t> expected;
    const auto hash = [](uint64_t key) { return ~uint64_t{0} << 62 | key << 50; };
    const auto slot = [&](uint64_t key) -> Entry& {
      return table.find(hash(key), [&](const Entry& entry) { return entry.key == key; });
    };
    for (size_t i = 0; i < entries; ++i) {
      const uint64_t key = 1 + random() % 500;
      slot(key) = {key, i};
      expected[key] = i;
    }
    for (uint64_t key = 1; key <= 500; ++key) {
      const auto known = expected.find(key);
      ASSERT_EQ(slot(key).is_empty(), known == expected.end()) << key;
      if (known != expected.end()) {
        ASSERT_EQ(slot(key).value, known->second) << key;
      }
    }
  }
}

TEST(Simd, FormsThatRunComeInOrderAndThePlainOneAlwaysRuns) {
  const auto forms = runnable_forms<int>(
      {{SimdLevel::kAvx512Vbmi2, 4}, {SimdLevel::kAvx512, 3}, {SimdLevel::kAvx2, 2}, {SimdLevel::kNone, 0}});
  ASSERT_FALSE(forms.empty());
  EXPECT_EQ(forms.back(), 0);
  EXPECT_TRUE(std::ranges::is_sorted(forms, std::greater<>()));
  EXPECT_EQ(forms.size() > 1, has_simd(SimdLevel::kAvx2));
}

}  // namespace
}  // namespace millrace
