// SPDX-License-Identifier: Apache-2.0
#include "millrace/storage/http/easy.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

namespace millrace::http {
namespace {

// libcurl allocates both buffers anew for each transfer, so they are as long as the body needs, within these bounds.
constexpr size_t kBufferMinBytes = 16 << 10;
constexpr size_t kReceiveBufferMaxBytes = 512 << 10;
constexpr size_t kSendBufferMaxBytes = 512 << 10;
constexpr size_t kHeadRoomBytes = 4 << 10;  // a head before the body, so that both come with one read

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string find_ca_bundle() {
  if (std::string chosen = environment("SSL_CERT_FILE"); !chosen.empty()) return chosen;
  for (const char* path : {
           "/etc/ssl/certs/ca-certificates.crt",                 // Debian, Ubuntu, Arch
           "/etc/pki/tls/certs/ca-bundle.crt",                   // Fedora, RHEL, Amazon Linux
           "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",  // the same, newer
           "/etc/ssl/ca-bundle.pem",                             // SUSE
           "/etc/ssl/cert.pem",                                  // Alpine
           "/etc/pki/tls/cacert.pem",
       }) {
    if (::access(path, R_OK) == 0) return path;
  }
  return "";
}

// A header without a value: "Name:" would tell libcurl to leave the header out.
std::string as_curl_wants(const std::string& header) {
  const size_t colon = header.find(':');
  if (header.find_first_not_of(" \t", colon + 1) != header.npos) return header;
  return header.substr(0, colon) + ";";
}

long buffer_bytes(size_t body, size_t most) {
  return static_cast<long>(std::clamp(body + kHeadRoomBytes, kBufferMinBytes, most));
}

constexpr std::string_view kTrustHint =
    "a server whose certificate comes from an authority of its own needs a PEM file with that authority's certificate, "
    "named by AWS_CA_BUNDLE or SSL_CERT_FILE";

}  // namespace

EasySettings EasySettings::resolve(const ClientOptions& options) {
  EasySettings settings;
  settings.options = options;
  settings.ca_file = options.ca_file.empty() ? find_ca_bundle() : options.ca_file;
  // Without this libcurl looks through the environment for every request.
  for (const char* name : {"http_proxy", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"}) {
    settings.proxy_from_environment |= !environment(name).empty();
  }
  if (settings.options.user_agent.empty()) settings.options.user_agent = "millrace/" MILLRACE_VERSION;
  return settings;
}

Result<std::unique_ptr<Easy>> Easy::open(const Curl& curl, const EasySettings& settings) {
  std::unique_ptr<Easy> easy(new Easy(curl, settings));
  easy->handle_ = curl.easy_init();
  if (easy->handle_ == nullptr) return fail(ErrorCode::kResourceExhausted, "no memory for an HTTP request");
  easy->set_for_all();
  return easy;
}

Easy::~Easy() {
  if (handle_ != nullptr) curl_.easy_cleanup(handle_);
}

template <class T>
void Easy::set(CURLoption option, T value) {
  static_assert(std::is_pointer_v<T> || std::is_same_v<T, long>, "libcurl reads a pointer or a long");
  // An option that this libcurl does not know changes nothing.
  static_cast<void>(curl_.easy_setopt(handle_, option, value));
}

void Easy::set_for_all() {
  set(CURLOPT_PRIVATE, this);
  set(CURLOPT_ERRORBUFFER, error_text_.data());
  set(CURLOPT_NOSIGNAL, 1L);
  set(CURLOPT_HTTP_VERSION, long{CURL_HTTP_VERSION_1_1});
  set(CURLOPT_PROTOCOLS_STR, "http,https");
  set(CURLOPT_PATH_AS_IS, 1L);
  set(CURLOPT_DISALLOW_USERNAME_IN_URL, 1L);
  set(CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
  set(CURLOPT_TCP_KEEPALIVE, 1L);
  set(CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(settings_.options.connect_timeout.count()));
  // Each connection asks for the addresses again and begins with another: a service with many front ends is then used
  // through many. A numeric host needs no name server.
  set(CURLOPT_DNS_CACHE_TIMEOUT, 0L);
  set(CURLOPT_DNS_SHUFFLE_ADDRESSES, 1L);
  // A cancelled request must not wait for the name server's answer.
  set(CURLOPT_QUICK_EXIT, 1L);
  set(CURLOPT_USERAGENT, settings_.options.user_agent.c_str());
  if (!settings_.proxy_from_environment) set(CURLOPT_PROXY, "");
  set(CURLOPT_SSLVERSION, long{CURL_SSLVERSION_TLSv1_2});
  if (!settings_.ca_file.empty()) {
    set(CURLOPT_CAINFO, settings_.ca_file.c_str());
    set(CURLOPT_CAPATH, static_cast<char*>(nullptr));  // nothing else is trusted
  }
  set(CURLOPT_SHARE, settings_.share);
  set(CURLOPT_OPENSOCKETFUNCTION, settings_.open_socket);
  set(CURLOPT_OPENSOCKETDATA, settings_.loop);
  set(CURLOPT_CLOSESOCKETFUNCTION, settings_.close_socket);
  set(CURLOPT_CLOSESOCKETDATA, settings_.loop);
  set(CURLOPT_HEADERFUNCTION, &Easy::on_header);
  set(CURLOPT_HEADERDATA, this);
  set(CURLOPT_WRITEFUNCTION, &Easy::on_body);
  set(CURLOPT_WRITEDATA, this);
  set(CURLOPT_READFUNCTION, &Easy::on_send);
  set(CURLOPT_READDATA, this);
  set(CURLOPT_SEEKFUNCTION, &Easy::on_rewind);
  set(CURLOPT_SEEKDATA, this);
}

void Easy::prepare(Exchange& exchange) {
  exchange_ = &exchange;
  exchange.easy = this;
  error_text_[0] = '\0';
  const Request& request = exchange.request();
  set(CURLOPT_URL, request.url.c_str());
  if (settings_.proxy_from_environment) set(CURLOPT_PROXY, request.direct ? "" : static_cast<const char*>(nullptr));
  set_headers();
  set(CURLOPT_HTTPGET, 1L);  // takes back what the request before was
  set(CURLOPT_CUSTOMREQUEST, static_cast<const char*>(nullptr));
  set(CURLOPT_BUFFERSIZE, buffer_bytes(request.out.size(), kReceiveBufferMaxBytes));
  switch (request.method) {
    case Method::kGet:
      break;
    case Method::kHead:
      set(CURLOPT_NOBODY, 1L);
      break;
    case Method::kDelete:
      set(CURLOPT_CUSTOMREQUEST, "DELETE");
      break;
    case Method::kPost:
    case Method::kPut:
      set(CURLOPT_UPLOAD, 1L);
      set(CURLOPT_INFILESIZE_LARGE, static_cast<long>(request.body.size()));
      set(CURLOPT_UPLOAD_BUFFERSIZE, buffer_bytes(request.body.size(), kSendBufferMaxBytes));
      if (request.method == Method::kPost) set(CURLOPT_CUSTOMREQUEST, "POST");
      break;
  }
}

// The list is made of the request's own strings, which stay until the exchange ends.
void Easy::set_headers() {
  const std::vector<std::string>& given = exchange_->request().headers;
  header_texts_.clear();
  header_texts_.reserve(given.size() + 1);
  for (const std::string& header : given) header_texts_.push_back(as_curl_wants(header));
  header_texts_.emplace_back("Expect:");  // without a value: no "100-continue", which costs a round trip
  headers_.resize(header_texts_.size());
  for (size_t i = 0; i < headers_.size(); ++i) {
    headers_[i] = curl_slist{header_texts_[i].data(), i + 1 < headers_.size() ? &headers_[i + 1] : nullptr};
  }
  set(CURLOPT_HTTPHEADER, headers_.data());
}

int64_t Easy::moved_bytes() const {
  curl_off_t sent = 0;
  curl_.easy_getinfo(handle_, CURLINFO_SIZE_UPLOAD_T, &sent);
  return exchange_->taken_bytes() + sent;
}

Error Easy::error(CURLcode code) const {
  if (exchange_->failure()) return *exchange_->failure();
  long sys_errno = 0;
  curl_.easy_getinfo(handle_, CURLINFO_OS_ERRNO, &sys_errno);
  const std::string_view text = error_text_[0] != '\0' ? error_text_.data() : curl_.easy_strerror(code);
  const auto error = [&](ErrorCode error_code, std::string_view message) {
    return exchange_->error(error_code, message, static_cast<int>(sys_errno));
  };
  switch (code) {
    case CURLE_PEER_FAILED_VERIFICATION:
      return error(ErrorCode::kPermissionDenied,
                   fmt::format("the server's certificate is not trusted ({}); {}", text, kTrustHint));
    case CURLE_SSL_CACERT_BADFILE:
      return error(ErrorCode::kPermissionDenied, fmt::format("no certificates could be read from \"{}\" ({}); {}",
                                                             settings_.ca_file, text, kTrustHint));
    case CURLE_URL_MALFORMAT:
      return error(ErrorCode::kInvalidArgument, text);
    case CURLE_OUT_OF_MEMORY:
      return error(ErrorCode::kResourceExhausted, text);
    case CURLE_OPERATION_TIMEDOUT:  // the only timeout that libcurl is told of
      return error(ErrorCode::kUnavailable,
                   fmt::format("no connection within {} ms", settings_.options.connect_timeout.count()));
    case CURLE_PARTIAL_FILE:
      return error(ErrorCode::kUnavailable, fmt::format("the answer was cut after {}", exchange_->progress()));
    case CURLE_RECV_ERROR:
      return error(ErrorCode::kUnavailable, fmt::format("{} (after {})", text, exchange_->progress()));
    case CURLE_SEND_FAIL_REWIND:
      return error(ErrorCode::kUnavailable, "the connection was closed before an answer came");
    default:
      return error(ErrorCode::kUnavailable, text);
  }
}

Easy& Easy::of(const Curl& curl, CURL* handle) {
  char* self = nullptr;
  curl.easy_getinfo(handle, CURLINFO_PRIVATE, &self);
  // SAFETY: set_for_all() stored an Easy.
  return *reinterpret_cast<Easy*>(self);
}

size_t Easy::on_header(char* data, size_t size, size_t count, void* self) {
  return static_cast<Easy*>(self)->exchange_->take_header({data, size * count}) ? size * count : 0;
}

size_t Easy::on_body(char* data, size_t size, size_t count, void* self) {
  return static_cast<Easy*>(self)->exchange_->take_body({data, size * count}) ? size * count : 0;
}

size_t Easy::on_send(char* data, size_t size, size_t count, void* self) {
  return static_cast<Easy*>(self)->exchange_->give_body({data, size * count});
}

int Easy::on_rewind(void* self, curl_off_t offset, int origin) {
  if (offset != 0 || origin != SEEK_SET) return CURL_SEEKFUNC_CANTSEEK;
  return static_cast<Easy*>(self)->exchange_->rewind() ? CURL_SEEKFUNC_OK : CURL_SEEKFUNC_FAIL;
}

}  // namespace millrace::http
