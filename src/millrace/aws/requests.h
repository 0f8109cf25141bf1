// SPDX-License-Identifier: Apache-2.0
#pragma once

// Shares helpers between requests to all services of AWS: headers that prove the sender, the detection of expired
// credentials, and quotes of service texts in messages. Functions are thread-safe.

#include <initializer_list>
#include <string>
#include <string_view>

#include "millrace/aws/sigv4.h"
#include "millrace/http/http.h"

namespace millrace::aws {

// Signs `input` and adds its headers and those of the signature to `request`. Returns the query to send
// (Signed::query).
std::string add_signed_headers(const Credentials& credentials, const SignInput& input, http::Request& request);

// Whether a service refuses a request with this code because its credentials have expired. The caller then tells the
// provider (CredentialsProvider::refused), and sends the request once more.
bool is_expired_token(std::string_view code);

// Prepares foreign text for a message: one short line, with each of `secrets` blacked out.
std::string quotable(std::string_view text, std::initializer_list<std::string_view> secrets = {});

}  // namespace millrace::aws
