// SPDX-License-Identifier: Apache-2.0
// What a server, a proxy, a user's AWS files or a command line may say. The first byte chooses a parser, the others are
// its input. An HTTP answer reads the same however its bytes are cut.
#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "invariants.h"
#include "millrace/aws/detail/providers.h"
#include "millrace/aws/profile_file.h"
#include "millrace/http/detail/response_parser.h"
#include "millrace/http/http.h"
#include "millrace/storage/s3/client/responses.h"
#include "millrace/storage/url.h"

namespace {

using namespace millrace;
using tokenizer::require;

struct Answer {
  bool is_taken = false;
  int status = 0;
  std::string body;
  bool operator==(const Answer&) const = default;
};

// Reads `bytes` in pieces of `piece_bytes` into a body that grows, or into the caller's memory.
Answer read_answer(std::string_view bytes, size_t piece_bytes, bool into_memory) {
  std::string memory(into_memory ? 100 : 0, '.');
  http::Request request;
  request.url = "http://host/";
  request.out = std::as_writable_bytes(std::span(memory));
  request.body_limit_bytes = 1 << 12;
  http::Exchange exchange(request, nullptr);
  http::ResponseParser reader(exchange);
  while (!bytes.empty() && !reader.done()) {
    size_t size = std::min(bytes.size(), piece_bytes);
    if (const auto room = reader.room(); !room.empty()) {
      size = std::min(size, room.size());
      std::memcpy(room.data(), bytes.data(), size);
      reader.took_into_room(size);
    } else if (!reader.take(bytes.substr(0, size))) {
      require(exchange.failure().has_value(), "a refusal has a reason");
      return {};
    }
    bytes.remove_prefix(size);
  }
  if (!reader.done() && !reader.take_end()) return {};
  const http::Response response = exchange.take_response();
  static_cast<void>(response.content_range());
  static_cast<void>(response.retry_after());
  static_cast<void>(http::parse_time(response.header("date")));
  static_cast<void>(s3::parse_object("key", response));
  static_cast<void>(s3::checksum_of(response));
  return {true, response.status, response.body + memory.substr(0, static_cast<size_t>(response.received_bytes))};
}

bool http_answer(std::string_view bytes) {
  for (const bool into_memory : {false, true}) {
    const Answer whole = read_answer(bytes, bytes.size(), into_memory);
    for (const size_t piece_bytes : {1, 7}) {
      require(read_answer(bytes, piece_bytes, into_memory) == whole, "the cuts change nothing");
    }
    if (!into_memory && !whole.is_taken) return false;
  }
  return true;
}

bool xml(std::string_view body) {
  const auto error = s3::parse_error(body);
  const auto page = s3::parse_list(body);
  if (page) {
    for (const ObjectInfo& object : page->objects) require(object.size >= 0, "no object has a size below 0");
  }
  const bool is_buckets = s3::parse_buckets(body).has_value(), is_uploads = s3::parse_uploads(body).has_value();
  const auto parts = s3::parse_parts(body);
  if (parts) {
    for (const s3::ListedPart& part : parts->parts) require(part.size >= 0, "no part has a size below 0");
  }
  static_cast<void>(s3::parse_removed(body));
  return page || is_buckets || is_uploads || parts || s3::parse_upload_id(body) || s3::parse_etag(body) ||
         !error.code.empty();
}

bool aws_profiles(std::string_view text) {
  const auto sections = aws::parse_profile_file(text, "config");
  if (!sections) return false;
  for (const auto& [name, section] : *sections) {
    static_cast<void>(aws::check_region(section.get("region")));
    static_cast<void>(aws::dns_suffix(section.get("region")));
    static_cast<void>(aws::parse_time(section.get("expiration")));
  }
  return true;
}

bool braces(std::string_view pattern) {
  constexpr size_t kLimit = 1000;
  const auto names = expand_braces(pattern, kLimit);
  require(!names || names->size() <= kLimit, "no more names than the limit");
  return names.has_value();
}

bool url(std::string_view text) {
  static_cast<void>(url_to_show("https://" + std::string(text)));
  static_cast<void>(url_to_show(text));
  // One bucket and one host: each that is opened is kept.
  for (const char* begin : {"", "s3://bucket/", "http://host/", "mem://memory/", "file:"}) {
    if (*begin == 0 && text.find("://") != text.npos) continue;
    const auto location = open_url(begin + std::string(text));
    if (!location) continue;
    static_cast<void>(location->child("name"));
    static_cast<void>(location->object_key());
  }
  static_cast<void>(http::parse_time(text));
  return is_utf8(text);
}

constexpr std::array kParsers = {&http_answer, &xml, &aws_profiles, &braces, &url};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return -1;
  // SAFETY: characters may alias any object.
  const std::string_view input(reinterpret_cast<const char*>(data) + 1, size - 1);
  return kParsers[data[0] % kParsers.size()](input) ? 0 : -1;
}
