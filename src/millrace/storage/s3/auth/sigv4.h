// SPDX-License-Identifier: Apache-2.0
#pragma once

// AWS Signature Version 4, as S3 and STS ask for it: from a request to the headers that prove who sends it. Functions
// are thread-safe and take a few microseconds; the key of a day is kept per thread. Nothing here is logged.

#include <chrono>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace millrace::s3 {

struct Credentials {
  std::string access_key;     // empty: anonymous, requests go unsigned
  std::string secret_key;     // secret
  std::string session_token;  // secret; empty for long-lived keys
  std::chrono::system_clock::time_point expires = std::chrono::system_clock::time_point::max();

  bool anonymous() const { return access_key.empty(); }
};

// x-amz-content-sha256 of a body that is not hashed.
inline constexpr std::string_view kUnsignedPayload = "UNSIGNED-PAYLOAD";

using Field = std::pair<std::string, std::string>;  // of a query or of headers

struct SignInput {
  std::string_view method;         // "GET"
  std::string_view host;           // as in the Host header: with the port unless it is the scheme's own
  std::string_view path;           // percent-encoded once, as it is sent; "/" at least
  std::span<const Field> query;    // raw
  std::span<const Field> headers;  // what is signed beside the host and the headers of `Signed`; names in any case
  std::string_view payload_hash = kUnsignedPayload;  // or sha256_hex of the body
  std::chrono::system_clock::time_point time;
  std::string_view region;
  std::string_view service = "s3";  // another one gets no x-amz-content-sha256
};

struct Signed {
  std::vector<Field> headers;  // to be sent beside those of SignInput
  std::string query;           // encoded and sorted, to be sent as it is; without "?", and empty when there is none
};

// Without headers when the credentials are anonymous.
Signed sign(const Credentials& credentials, const SignInput& input);

// Percent-encoding of every byte that is not a letter, a digit or one of -_.~
std::string uri_encode(std::string_view text, bool keep_slash);

// The Host header that an HTTP client sends for this URL: without the port where it is the scheme's own.
std::string host_header(std::string_view url);

// 64 lower-case hexadecimal digits.
std::string sha256_hex(std::string_view bytes);

}  // namespace millrace::s3
