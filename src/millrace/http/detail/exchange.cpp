// SPDX-License-Identifier: Apache-2.0
#include "millrace/http/detail/exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "millrace/base/text/strings.h"
#include "millrace/http/numbers.h"

namespace millrace::http {
namespace {

constexpr int64_t kHeadLimitBytes = 1 << 20;  // of all heads; far above S3's, which stay below 16 KiB
constexpr int kMostHeads = 16;                // interim answers (1xx) and the final one

size_t scheme_size(std::string_view url) {
  const std::string start = lower_case(url.substr(0, 8));
  return start.starts_with("http://") ? 7 : start == "https://" ? 8 : 0;
}

bool has_body(Method method) {
  return method == Method::kPut || method == Method::kPost;
}

bool has_header(const Request& request, std::string_view name) {
  return std::ranges::any_of(request.headers, [name](std::string_view header) {
    return header.size() > name.size() && header[name.size()] == ':' &&
           equal_ignoring_case(header.substr(0, name.size()), name);
  });
}

}  // namespace

std::string without_secrets(std::string_view url) {
  url = url.substr(0, url.find_first_of("?#"));
  const size_t colon = url.find("://"), scheme = colon == url.npos ? 0 : colon + 3;
  const std::string_view authority = url.substr(scheme, url.find('/', scheme) - scheme);
  const size_t user = authority.rfind('@');
  return fmt::format("{}{}", url.substr(0, scheme), url.substr(user == authority.npos ? scheme : scheme + user + 1));
}

std::string describe(Method method, std::string_view url) {
  return fmt::format("{} {}", method_name(method), without_secrets(url));
}

Status check_request(const Request& request) {
  const std::string_view url = request.url;
  const size_t scheme = scheme_size(url);
  const std::string_view authority = url.substr(scheme, url.find_first_of("/?#", scheme) - scheme);
  const auto refuse = [&](std::string_view text) -> Status {
    return fail(ErrorCode::kInvalidArgument, "{}: {}", describe(request.method, url), text);
  };
  if (scheme == 0 || authority.empty()) return refuse("no http or https URL");
  if (authority.find('@') != authority.npos) return refuse("a user name in the URL");
  if (std::any_of(url.begin(), url.end(), [](char c) { return static_cast<unsigned char>(c) <= ' '; })) {
    return refuse("a space or control character in the URL");
  }
  for (const std::string& header : request.headers) {
    if (header.find_first_of(std::string_view("\r\n\0", 3)) != header.npos || header.find(':') == header.npos) {
      return refuse("a header without ':', or with a line end in it");
    }
  }
  return {};
}

std::string_view origin_of(std::string_view url) {
  return url.substr(0, url.find_first_of("/?#", scheme_size(url)));
}

std::string head_of(const Request& request, std::string_view user_agent) {
  const std::string_view origin = origin_of(request.url);
  std::string_view target = std::string_view(request.url).substr(origin.size());
  target = target.substr(0, target.find('#'));
  const size_t scheme = scheme_size(origin);
  std::string_view host = origin.substr(scheme);
  const std::string_view own_port = scheme == 7 ? ":80" : ":443";
  if (host.ends_with(own_port)) host.remove_suffix(own_port.size());
  std::string head;
  head.reserve(1024);
  const auto add = [&head](auto... pieces) { (head.append(pieces), ...); };
  add(method_name(request.method), target.starts_with('/') ? " " : " /", target, " HTTP/1.1\r\n");
  if (!has_header(request, "host")) add("Host: ", host, "\r\n");
  add("User-Agent: ", user_agent, "\r\n");
  if (!has_header(request, "accept")) add("Accept: */*\r\n");
  for (const std::string& header : request.headers) add(header, "\r\n");
  if (has_body(request.method)) add("Content-Length: ", fmt::format_int(body_bytes(request)).c_str(), "\r\n");
  add("\r\n");
  return head;
}

int64_t body_bytes(const Request& request) {
  if (!has_body(request.method)) return 0;
  return request.file != nullptr ? request.file->size() : std::ssize(request.body);
}

void Exchange::watch_stop(std::function<void()> wake) {
  if (request_.stop.stop_possible()) stop_callback_.emplace(request_.stop, std::move(wake));
}

bool Exchange::give_up(ErrorCode code, std::string_view text) {
  failure_ = error(code, text);
  return false;
}

bool Exchange::take_status(std::string_view line) {
  response_.headers.clear();
  response_.headers.reserve(16);
  taken_bytes_ += std::ssize(line);
  if (++heads_ > kMostHeads)
    return give_up(ErrorCode::kUnsupported, fmt::format("more than {} interim answers", kMostHeads - 1));
  // "HTTP/1.1 200 OK"
  const bool is_http = line.starts_with("HTTP/1.") && line.size() >= 12 && line[8] == ' ';
  response_.status = is_http ? whole_number<int>(line.substr(9, 3)).value_or(-1) : -1;
  const bool is_status = response_.status >= 100 && response_.status < 600 && (line.size() == 12 || line[12] == ' ');
  // Another protocol is not damage.
  const ErrorCode code = line.starts_with("HTTP/1.") ? ErrorCode::kUnavailable : ErrorCode::kUnsupported;
  return is_status || give_up(code, "the answer is not HTTP/1.1");
}

bool Exchange::take_header(std::string_view line) {
  taken_bytes_ += std::ssize(line);
  if (taken_bytes_ > kHeadLimitBytes) {
    return give_up(ErrorCode::kResourceExhausted, fmt::format("headers of more than {} bytes", kHeadLimitBytes));
  }
  if ((line.starts_with(' ') || line.starts_with('\t')) && !response_.headers.empty()) {
    response_.headers.back().second.append(" ").append(trimmed(line));
    return true;
  }
  const size_t colon = line.find(':');
  if (colon != line.npos)
    response_.headers.emplace_back(lower_case(trimmed(line.substr(0, colon))), trimmed(line.substr(colon + 1)));
  return true;
}

bool Exchange::begin_body(int64_t announced_bytes) {
  announced_bytes_ = announced_bytes;
  const bool good = response_.status == 200 || response_.status == 206;
  into_out_ = good && !request_.out.empty();
  if (into_out_) {
    if (announced_bytes_ <= std::ssize(request_.out)) return true;
    return give_up(ErrorCode::kCorruption,
                   fmt::format("answered {} bytes where {} were wanted", announced_bytes_, request_.out.size()));
  }
  if (announced_bytes_ > request_.body_limit_bytes) {
    return give_up(ErrorCode::kResourceExhausted, fmt::format("a body of {} bytes, more than the {} allowed",
                                                              announced_bytes_, request_.body_limit_bytes));
  }
  if (announced_bytes_ > 0) response_.body.reserve(static_cast<size_t>(announced_bytes_));
  return true;
}

bool Exchange::take_body(std::string_view bytes) {
  if (into_out_) {
    const auto into = room();
    if (bytes.size() > into.size()) {
      return give_up(ErrorCode::kCorruption,
                     fmt::format("more than the {} bytes that were wanted came", request_.out.size()));
    }
    if (!bytes.empty()) std::memcpy(into.data(), bytes.data(), bytes.size());
    took_into_room(bytes.size());
    return true;
  }
  if (std::ssize(bytes) > request_.body_limit_bytes - body_bytes_) {
    return give_up(ErrorCode::kResourceExhausted,
                   fmt::format("a body of more than the {} bytes allowed", request_.body_limit_bytes));
  }
  response_.body.append(bytes);
  took_into_room(bytes.size());
  return true;
}

std::span<std::byte> Exchange::room() const {
  return into_out_ ? request_.out.subspan(static_cast<size_t>(body_bytes_)) : std::span<std::byte>();
}

void Exchange::took_into_room(size_t size) {
  body_bytes_ += static_cast<int64_t>(size);
  taken_bytes_ += static_cast<int64_t>(size);
}

void Exchange::count_sent(int64_t bytes) {
  if (request_.file == nullptr || request_.file_progress == nullptr) return;
  request_.file_progress->add(bytes - std::exchange(counted_bytes_, bytes), 0);
}

std::string Exchange::progress() const {
  if (announced_bytes_ < 0) return fmt::format("{} bytes", body_bytes_);
  return fmt::format("{} of {} bytes", body_bytes_, announced_bytes_);
}

Error Exchange::error(ErrorCode code, std::string_view text, int sys_errno) const {
  return Error(code, fmt::format("{}: {}", describe(request_.method, request_.url), text), sys_errno);
}

Response Exchange::take_response() {
  response_.received_bytes = into_out_ ? body_bytes_ : 0;
  return std::move(response_);
}

Client::Done Exchange::take_done() {
  stop_callback_.reset();  // before `done`, which may destroy the source of the token
  return std::move(done_);
}

}  // namespace millrace::http
