// SPDX-License-Identifier: Apache-2.0
#include "millrace/storage/http/exchange.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <utility>

namespace millrace::http {
namespace {

constexpr int64_t kHeadLimitBytes = 1 << 20;  // S3's answers stay below 16 KiB

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == text.npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1);
}

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return result;
}

// -1 when it is no number.
template <class T>
T number_or_minus_one(std::string_view text) {
  T value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && value >= 0 ? value : -1;
}

size_t scheme_size(std::string_view url) {
  const std::string start = lower(url.substr(0, 8));
  return start.starts_with("http://") ? 7 : start == "https://" ? 8 : 0;
}

}  // namespace

std::string_view method_name(Method method) {
  switch (method) {
    case Method::kGet:
      return "GET";
    case Method::kHead:
      return "HEAD";
    case Method::kPut:
      return "PUT";
    case Method::kPost:
      return "POST";
    case Method::kDelete:
      return "DELETE";
  }
  return "?";
}

std::string describe(Method method, std::string_view url) {
  url = url.substr(0, url.find_first_of("?#"));
  std::string text = fmt::format("{} ", method_name(method));
  const size_t scheme = scheme_size(url);
  const std::string_view authority = url.substr(scheme, url.find('/', scheme) - scheme);
  const size_t user = authority.rfind('@');
  text += url.substr(0, scheme);
  text += url.substr(user == authority.npos ? scheme : scheme + user + 1);
  return text;
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
  if (std::any_of(url.begin(), url.end(), [](char c) { return c >= 0 && c <= ' '; })) {
    return refuse("a space or control character in the URL");
  }
  for (const std::string& header : request.headers) {
    if (header.find_first_of(std::string_view("\r\n\0", 3)) != header.npos || header.find(':') == header.npos) {
      return refuse("a header without ':', or with a line end in it");
    }
  }
  return {};
}

void Exchange::watch_stop(std::function<void()> wake) {
  if (request_.stop.stop_possible()) stop_callback_.emplace(request_.stop, std::move(wake));
}

bool Exchange::give_up(ErrorCode code, std::string_view text) {
  failure_ = error(code, text);
  return false;
}

bool Exchange::take_header(std::string_view line) {
  taken_bytes_ += static_cast<int64_t>(line.size());
  if (body_began_) return true;  // a trailer: it must not replace what the head said
  if (taken_bytes_ > kHeadLimitBytes) {
    return give_up(ErrorCode::kResourceExhausted, fmt::format("headers of more than {} bytes", kHeadLimitBytes));
  }
  if (line.starts_with("HTTP/")) {
    // What came before was an interim answer, such as 100 Continue.
    response_.headers.clear();
    response_.headers.reserve(16);
    announced_bytes_ = -1;
    head_ended_ = false;
    const size_t space = std::min(line.find(' '), line.size());
    response_.status = number_or_minus_one<int>(trimmed(line.substr(space)).substr(0, 3));
    return true;
  }
  if (head_ended_) return true;
  if (trimmed(line).empty()) {
    head_ended_ = true;
    return true;
  }
  if ((line[0] == ' ' || line[0] == '\t') && !response_.headers.empty()) {
    response_.headers.back().second.append(" ").append(trimmed(line));
    return true;
  }
  const size_t colon = line.find(':');
  if (colon == line.npos) return true;
  response_.headers.emplace_back(lower(trimmed(line.substr(0, colon))), trimmed(line.substr(colon + 1)));
  if (response_.headers.back().first == "content-length") {
    announced_bytes_ = number_or_minus_one<int64_t>(response_.headers.back().second);
  }
  return true;
}

bool Exchange::begin_body() {
  body_began_ = true;
  const bool good = response_.status == 200 || response_.status == 206;
  into_out_ = good && !request_.out.empty();
  if (into_out_) {
    if (announced_bytes_ <= static_cast<int64_t>(request_.out.size())) return true;
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
  if (!body_began_ && !begin_body()) return false;
  const auto size = static_cast<int64_t>(bytes.size());
  taken_bytes_ += size;
  if (into_out_) {
    const auto room = static_cast<int64_t>(request_.out.size()) - body_bytes_;
    if (size > room) {
      return give_up(ErrorCode::kCorruption,
                     fmt::format("more than the {} bytes that were wanted came", request_.out.size()));
    }
    std::memcpy(request_.out.data() + body_bytes_, bytes.data(), bytes.size());
  } else {
    if (size > request_.body_limit_bytes - body_bytes_) {
      return give_up(ErrorCode::kResourceExhausted,
                     fmt::format("a body of more than the {} bytes allowed", request_.body_limit_bytes));
    }
    response_.body.append(bytes);
  }
  body_bytes_ += size;
  return true;
}

size_t Exchange::give_body(std::span<char> into) {
  const size_t size = std::min(into.size(), request_.body.size() - given_);
  if (size > 0) std::memcpy(into.data(), request_.body.data() + given_, size);
  given_ += size;
  return size;
}

bool Exchange::rewind() {
  if (given_ == request_.body.size()) return false;
  given_ = 0;
  return true;
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
  stop_callback_.reset();  // before `done`: it may let the source of the token go
  return std::move(done_);
}

}  // namespace millrace::http
