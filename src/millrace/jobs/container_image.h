// SPDX-License-Identifier: Apache-2.0
#pragma once

// Parses the names of container images that pyxis takes (enroot's URLs), and asks a registry without a login whether
// it has an image (OCI distribution specification 1.1, sections "Pulling manifests"; Docker Registry v2, "Token
// authentication").

#include <chrono>
#include <stop_token>
#include <string>
#include <string_view>

#include "millrace/base/status.h"

namespace millrace::jobs {

// The parts of [docker://][USER@][REGISTRY#]IMAGE[:TAG|@DIGEST].
struct ImageName {
  std::string user;        // user whose login enroot uses; mostly empty
  std::string registry;    // with its port, if named; "registry-1.docker.io" if no registry is named
  std::string repository;  // "nvidia/pytorch", "library/ubuntu"
  std::string reference;   // the tag ("latest" if none is named) or "sha256:..."

  std::string text() const;  // "nvcr.io/nvidia/pytorch:24.10-py3"
};
// Parses an image name. Errors: invalid_argument, naming the fault.
[[nodiscard]] Result<ImageName> parse_image_name(std::string_view text);

// Returns `image` with its registry in pyxis' notation: "nvcr.io#nvidia/pytorch" for "nvcr.io/nvidia/pytorch". Other
// names and paths stay as they are.
std::string with_registry_mark(std::string_view image);

enum class ImageAnswer {
  kThere,
  kMissing,  // the registry shows the repository, but it lacks the tag or digest
  kHidden,   // private or missing: the registry tells only users with a login
};
struct RegistryOptions {
  std::chrono::milliseconds timeout{10'000};  // for all requests together
  std::string scheme = "https";               // "http" as enroot has it with ENROOT_ALLOW_HTTP=yes
  std::stop_token stop;
};
// Asks the registry for an image. Blocks. Errors: those of http::Client, unavailable (an answer that no registry
// gives).
[[nodiscard]] Result<ImageAnswer> ask_registry(const ImageName& image, const RegistryOptions& options);

}  // namespace millrace::jobs
