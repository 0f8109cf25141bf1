// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace millrace::http {

// Percent-encodes every byte that is not a letter, a digit or one of -_.~ (RFC 3986, 2.3).
std::string uri_encode(std::string_view text, bool keep_slash);

// Decodes the text of a form (application/x-www-form-urlencoded): "a%2Fb+c" becomes "a/b c". A '%' without two digits
// stays.
std::string form_decode(std::string_view text);

}  // namespace millrace::http
