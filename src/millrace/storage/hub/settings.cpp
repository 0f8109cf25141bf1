// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdlib>

#include "millrace/base/io/file_text.h"
#include "millrace/base/text/environment.h"
#include "millrace/base/text/strings.h"
#include "millrace/storage/hub/hub.h"

namespace millrace {
namespace {

// As huggingface_hub reads its switches.
bool is_on(const char* name) {
  const std::string text = upper_case(environment_variable(name));
  return text == "1" || text == "ON" || text == "YES" || text == "TRUE";
}

std::string expanded(const std::string& path) {
  return path == "~" || path.starts_with("~/") ? environment_variable("HOME") + path.substr(1) : path;
}

std::string token_path() {
  if (const std::string path = environment_variable("HF_TOKEN_PATH"); !path.empty()) return expanded(path);
  if (const std::string home = environment_variable("HF_HOME"); !home.empty()) return expanded(home) + "/token";
  std::string cache = expanded(environment_variable("XDG_CACHE_HOME"));
  if (cache.empty()) cache = environment_variable("HOME") + "/.cache";
  return cache + "/huggingface/token";
}

void find_token(HubOptions& options) {
  for (const char* const name : {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"}) {
    options.token = trimmed(environment_variable(name));
    options.token_from = name;
    if (!options.token.empty()) return;
  }
  options.token_from = token_path();
  options.token = trimmed(read_text(options.token_from).value_or(""));
}

}  // namespace

Result<HubOptions> HubOptions::from(const UrlOptions& asked) {
  HubOptions options;
  if (is_on("HF_HUB_OFFLINE")) {
    return fail(ErrorCode::kUnsupported, "HF_HUB_OFFLINE is set, so the Hub is not asked: unset it to read hf://");
  }
  RETURN_IF_ERROR(options.set_timeout(asked));
  options.client.connect_timeout = std::min(options.client.connect_timeout, options.timeout);
  if (const std::string endpoint(trimmed(environment_variable("HF_ENDPOINT"))); !endpoint.empty())
    options.endpoint = endpoint;
  while (options.endpoint.ends_with('/')) options.endpoint.pop_back();
  if (is_on("HF_HUB_DISABLE_IMPLICIT_TOKEN")) return options;
  find_token(options);
  // It becomes part of a header.
  const bool fits =
      std::all_of(options.token.begin(), options.token.end(), [](unsigned char c) { return c > ' ' && c < 0x7f; });
  if (fits) return options;
  return fail(ErrorCode::kInvalidArgument, "the token of {} has a space or another character that no token has",
              options.token_from);
}

}  // namespace millrace
