// SPDX-License-Identifier: Apache-2.0
#include "millrace/aws/requests.h"

#include <algorithm>
#include <span>

#include "millrace/base/text/utf8.h"

namespace millrace::aws {
namespace {

constexpr size_t kMaxQuoted = 400;  // characters: some five lines of a terminal

}  // namespace

std::string add_signed_headers(const Credentials& credentials, const SignInput& input, http::Request& request) {
  Signed proof = sign(credentials, input);
  for (const std::span<const Field> fields : {input.headers, std::span<const Field>(proof.headers)}) {
    for (const auto& [name, value] : fields) request.headers.push_back(name + ": " + value);
  }
  return std::move(proof.query);
}

// STS and SQS say ExpiredTokenException too, some of them behind a prefix.
bool is_expired_token(std::string_view code) {
  return code.find("ExpiredToken") != code.npos || code == "TokenRefreshRequired";
}

std::string quotable(std::string_view text, std::initializer_list<std::string_view> secrets) {
  std::string out(text);
  for (const std::string_view secret : secrets) {
    if (secret.empty()) continue;
    for (size_t at = out.find(secret); at != std::string::npos; at = out.find(secret, at + 3)) {
      out.replace(at, secret.size(), "***");
    }
  }
  std::ranges::replace_if(out, [](char c) { return static_cast<unsigned char>(c) < 32 || c == 127; }, ' ');
  out.erase(0, std::min(out.find_first_not_of(' '), out.size()));
  out.erase(out.find_last_not_of(' ') + 1);
  const bool cut = out.size() > kMaxQuoted;
  if (cut) out.resize(kMaxQuoted);
  std::string readable;
  append_utf8_replaced(out, readable);
  return cut ? readable + "..." : readable;
}

}  // namespace millrace::aws
