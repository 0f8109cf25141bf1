// SPDX-License-Identifier: Apache-2.0
#include "millrace/checkpoint/records/failure.h"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "millrace/base/text/json_fields.h"
#include "millrace/base/text/json_writer.h"
#include "millrace/base/text/utf8.h"
#include "millrace/base/thread/sync.h"

namespace millrace::checkpoint {
namespace {

constexpr std::string_view kFormat = "millrace-checkpoint-failure";
constexpr int64_t kMostFailureBytes = 1 << 20;
constexpr size_t kMostMessage = 4096;

std::string text_of(std::string text) {
  if (text.size() > kMostMessage) text.resize(kMostMessage);
  while (!text.empty() && !is_utf8(text)) text.pop_back();  // a character that was cut; else what cannot be told
  return text;
}

ErrorCode code_of(std::string_view name) {
  for (int code = 0; code <= static_cast<int>(ErrorCode::kInternal); ++code) {
    if (error_code_name(static_cast<ErrorCode>(code)) == name) return static_cast<ErrorCode>(code);
  }
  return ErrorCode::kUnavailable;
}

}  // namespace

Status write_failure(const Location& attempt, const RankPlaces& places, int64_t rank, const Error& cause) {
  JsonWriter json;
  json.open('{');
  json.key("cause").text(text_of(cause.to_string()));
  json.key("code").text(error_code_name(cause.code()));
  json.key("format").text(kFormat);
  json.key("host").text(text_of(host_name()));
  json.key("rank").number(rank);
  json.key("version").number(1);
  json.key("world_size").number(places.world_size);
  json.close('}');
  const Location at = attempt.child(places.failure(rank));
  return write_object(*at.storage, at.key, json.take(), {.brief = true}, Durability::kVisible).map([](const auto&) {});
}

Result<std::optional<Error>> read_failure(const Location& attempt, const RankPlaces& places, int64_t rank) {
  const Location at = attempt.child(places.failure(rank));
  const auto text = read_object(*at.storage, at.key, kMostFailureBytes);
  if (!text && text.error().code() == ErrorCode::kNotFound) return std::nullopt;
  if (!text) return tl::unexpected(text.error());
  const auto document = JsonDocument::parse(*text);
  if (!document) return Error(ErrorCode::kUnavailable, fmt::format("rank {} failed; {} cannot be read", rank, at.url));
  JsonFields fields(*document);
  const std::string host = fields.text("host"), code = fields.text("code"), cause = fields.text("cause");
  return Error(code_of(code), fmt::format("rank {}{}{} failed: {}", rank, host.empty() ? "" : " on ", host, cause));
}

}  // namespace millrace::checkpoint
