// SPDX-License-Identifier: Apache-2.0
#pragma once

// AWS Signature Version 4 for S3 and STS: turns a request into the headers that prove its sender. Functions are
// thread-safe and take a few microseconds. Each thread keeps the signing keys of the current day. These functions log
// nothing.

#include <chrono>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "millrace/http/uri_encode.h"

namespace millrace::aws {

struct Credentials {
  std::string access_key;     // empty: anonymous, requests go unsigned
  std::string secret_key;     // secret
  std::string session_token;  // secret; empty for long-lived keys
  std::chrono::system_clock::time_point expires = std::chrono::system_clock::time_point::max();

  bool anonymous() const { return access_key.empty(); }
};

// The value of x-amz-content-sha256 for a body without a hash.
inline constexpr std::string_view kUnsignedPayload = "UNSIGNED-PAYLOAD";

using Field = std::pair<std::string, std::string>;  // name and value in a query or in headers

struct SignInput {
  std::string_view method;         // "GET"
  std::string_view host;           // as in the Host header: with the port unless it is the scheme's default
  std::string_view path;           // percent-encoded once, as it is sent; at least "/"
  std::span<const Field> query;    // raw
  std::span<const Field> headers;  // headers to sign besides the host and those of `Signed`; names in any case
  std::string_view payload_hash = kUnsignedPayload;  // or sha256_hex of the body
  std::chrono::system_clock::time_point time;
  std::string_view region;
  std::string_view service = "s3";  // other services get no x-amz-content-sha256
};

struct Signed {
  std::vector<Field> headers;  // send these in addition to those of SignInput
  std::string query;           // encoded and sorted; send it unchanged. Without "?"; empty when there is none
};

// Signs a request. Returns no headers when the credentials are anonymous.
Signed sign(const Credentials& credentials, const SignInput& input);

using http::uri_encode;

// Returns the Host header that an HTTP client sends for this URL: without the port if it is the scheme's default.
std::string host_header(std::string_view url);

// Returns 64 lower-case hexadecimal digits.
std::string sha256_hex(std::string_view bytes);

}  // namespace millrace::aws
