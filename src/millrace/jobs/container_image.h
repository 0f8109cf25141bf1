// SPDX-License-Identifier: Apache-2.0
#pragma once

// Images of containers in registries: the names that pyxis takes (enroot's URLs), and whether a registry has one, asked
// without a login (OCI distribution specification 1.1, sections "Pulling manifests"; Docker Registry v2, "Token
// authentication").

#include <chrono>
#include <stop_token>
#include <string>
#include <string_view>

#include "millrace/base/status.h"

namespace millrace::jobs {

// [docker://][USER@][REGISTRY#]IMAGE[:TAG|@DIGEST]
struct ImageName {
  std::string user;        // whose login enroot takes; mostly empty
  std::string registry;    // with a port where one is named; "registry-1.docker.io" where none is
  std::string repository;  // "nvidia/pytorch", "library/ubuntu"
  std::string reference;   // the tag, "latest" where none is named; or "sha256:..."

  std::string text() const;  // "nvcr.io/nvidia/pytorch:24.10-py3"
};
// Errors: invalid_argument, saying what is wrong with it.
[[nodiscard]] Result<ImageName> parse_image_name(std::string_view text);

// `image` with its registry as pyxis reads it: "nvcr.io#nvidia/pytorch" of "nvcr.io/nvidia/pytorch". Another name, and
// a path, stays as it is.
std::string with_registry_mark(std::string_view image);

enum class ImageAnswer {
  kThere,
  kMissing,  // the registry shows the repository, and the tag or digest is not in it
  kHidden,   // private, or not there: the registry tells nobody without a login
};
struct RegistryOptions {
  std::chrono::milliseconds timeout{10'000};  // for the whole question
  std::string scheme = "https";               // "http" as enroot has it with ENROOT_ALLOW_HTTP=yes
  std::stop_token stop;
};
// Blocks. Errors: those of http::Client, unavailable (an answer that no registry gives).
[[nodiscard]] Result<ImageAnswer> ask_registry(const ImageName& image, const RegistryOptions& options);

}  // namespace millrace::jobs
