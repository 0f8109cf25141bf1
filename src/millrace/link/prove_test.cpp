// SPDX-License-Identifier: Apache-2.0
#include "millrace/link/prove.h"

#include <gtest/gtest.h>

#include "millrace/link/testing.h"

namespace millrace::link {
namespace {

TEST(Link, AChecksumProvesOneVersionOfAFile) {
  LinkBench link;
  const std::string content = test_bytes((2 << 20) + 17, 5);
  link.write("a", content);
  link.write("empty", "");
  const auto has = [&](const std::string& path, const ContentChecksum& told) {
    Storage& here = *link.here().storage;
    return *has_checksum(here, *here.stat(link.here().child(path).key), told, {});
  };
  for (const auto kind : {ContentChecksum::Kind::kCrc64Nvme, ContentChecksum::Kind::kCrc32c}) {
    const auto bytes = as_bytes(std::string_view(content));
    EXPECT_TRUE(has("a", ContentChecksum::of(kind, bytes)));
    EXPECT_FALSE(has("a", ContentChecksum::of(kind, bytes.first(bytes.size() - 1))));
    EXPECT_TRUE(has("empty", ContentChecksum::of(kind, {})));
    EXPECT_FALSE(has("empty", ContentChecksum::of(kind, bytes)));
  }
  ObjectInfo other = *link.here().storage->stat(link.here().child("a").key);
  link.write("a", content + "x");
  EXPECT_EQ(code_of(has_checksum(*link.here().storage, other, {}, {})), ErrorCode::kCorruption);
}

}  // namespace
}  // namespace millrace::link
