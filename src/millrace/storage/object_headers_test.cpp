// SPDX-License-Identifier: Apache-2.0
#include "millrace/storage/object_headers.h"

#include <gtest/gtest.h>

namespace millrace {
namespace {

// tests/e2e/test_object_headers.py holds every ending against Python's mimetypes.
TEST(ObjectHeadersTest, TheTypeIsGuessedByTheEnding) {
  EXPECT_EQ(guess_content_type("run/config.json"), "application/json");
  EXPECT_EQ(guess_content_type("page.HTML"), "text/html");
  EXPECT_EQ(guess_content_type("data.tar.gz"), "application/x-tar");
  EXPECT_EQ(guess_content_type("data.tgz"), "application/x-tar");
  EXPECT_EQ(guess_content_type("x.txt.gz"), "text/plain");
  EXPECT_EQ(guess_content_type("a.d/b"), "");
  EXPECT_EQ(guess_content_type(".json"), "");
  EXPECT_EQ(guess_content_type("model.safetensors"), "");
  EXPECT_EQ(guess_content_type("ends.with.dot."), "");
  EXPECT_EQ(guess_content_type(""), "");
}

}  // namespace
}  // namespace millrace
