// SPDX-License-Identifier: Apache-2.0
#include "millrace/jobs/container_image.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace millrace::jobs {
namespace {

using testing::HasSubstr;

std::string parsed(std::string_view text) {
  const auto name = parse_image_name(text);
  if (!name) return name.error().to_string();
  return (name->user.empty() ? "" : name->user + " ") + name->text();
}

// As enroot's documentation of `enroot import` has them.
TEST(ImageName, IsReadAsEnrootReadsIt) {
  EXPECT_EQ(parsed("ubuntu"), "registry-1.docker.io/library/ubuntu:latest");
  EXPECT_EQ(parsed("ubuntu:22.04"), "registry-1.docker.io/library/ubuntu:22.04");
  EXPECT_EQ(parsed("docker://centos/python-38-centos7"), "registry-1.docker.io/centos/python-38-centos7:latest");
  EXPECT_EQ(parsed("nvcr.io#nvidia/pytorch:24.10-py3"), "nvcr.io/nvidia/pytorch:24.10-py3");
  EXPECT_EQ(parsed("docker://$oauthtoken@nvcr.io#nvidia/pytorch:24.10-py3"),
            "$oauthtoken nvcr.io/nvidia/pytorch:24.10-py3");
  EXPECT_EQ(parsed("me@private/image"), "me registry-1.docker.io/private/image:latest");
  EXPECT_EQ(parsed("localhost:5000#a/b/c:T_1.x"), "localhost:5000/a/b/c:T_1.x");
  const std::string digest = "sha256:" + std::string(64, '0');
  EXPECT_EQ(parsed("me@10.0.0.1:5000#a@" + digest), "me 10.0.0.1:5000/a@" + digest);
  EXPECT_EQ(parsed("a@" + digest), "registry-1.docker.io/library/a@" + digest);
}

TEST(ImageName, WhatNoRegistryHasIsRefused) {
  for (const std::string text : {"Ubuntu", "a//b", "/a", "a/", "a/../b", "a b", "a%2f", "a?x=1"}) {
    EXPECT_THAT(parsed(text), HasSubstr("is no image")) << text;
  }
  EXPECT_THAT(parsed(""), HasSubstr("the name of the image is empty"));
  EXPECT_THAT(parsed("a:"), HasSubstr("\"\" is no tag"));
  EXPECT_THAT(parsed("a:.x"), HasSubstr("is no tag"));
  EXPECT_THAT(parsed("a:" + std::string(129, 'x')), HasSubstr("is no tag"));
  EXPECT_THAT(parsed("r#a@sha256:00"), HasSubstr("\"sha256:00\" is no digest"));
  EXPECT_THAT(parsed("#a"), HasSubstr("\"\" is no registry"));
  EXPECT_THAT(parsed("no registry#a"), HasSubstr("is no registry"));
}

}  // namespace
}  // namespace millrace::jobs
