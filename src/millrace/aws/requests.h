// SPDX-License-Identifier: Apache-2.0
#pragma once

// What requests to all services of AWS share: the headers that prove their sender, the refusal that asks for new
// credentials, and how messages quote what a service says. Functions are thread-safe.

#include <initializer_list>
#include <string>
#include <string_view>

#include "millrace/aws/sigv4.h"
#include "millrace/http/http.h"

namespace millrace::aws {

// Signs `input` and adds its headers and those of the signature to `request`. Gives the query to send (Signed::query).
std::string add_signed_headers(const Credentials& credentials, const SignInput& input, http::Request& request);

// Whether a service refuses a request with this code because its credentials have expired: tell the provider
// (CredentialsProvider::refused), and send the request once more.
bool is_expired_token(std::string_view code);

// Foreign text for a message: one line, short, with each of `secrets` blacked out.
std::string quotable(std::string_view text, std::initializer_list<std::string_view> secrets = {});

}  // namespace millrace::aws
