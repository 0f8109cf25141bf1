// SPDX-License-Identifier: Apache-2.0
#include "millrace/storage/web/http_storage.h"

#include <algorithm>
#include <utility>

#include "millrace/base/metrics.h"
#include "millrace/base/thread/answer.h"
#include "millrace/storage/detail/backend.h"
#include "millrace/storage/detail/service_reader.h"

namespace millrace {
namespace {

using http::Response;

std::string version_of(const Response& response) {
  const std::string_view etag = response.header("etag");
  return std::string(etag.empty() ? response.header("last-modified") : etag);
}

tl::unexpected<Error> status_error(std::string_view name, const Response& response) {
  const int status = response.status;
  const ErrorCode code = status == 404 || status == 410                    ? ErrorCode::kNotFound
                         : status == 401 || status == 403 || status == 407 ? ErrorCode::kPermissionDenied
                         : status == 408 || status == 429 || status >= 500 ? ErrorCode::kUnavailable
                                                                           : ErrorCode::kUnsupported;
  return fail(code, "read {}: the server answered {}", name, status);
}

tl::unexpected<Error> no_ranges(std::string_view name) {
  return fail(ErrorCode::kUnsupported, "read {}: the server does not answer ranges", name);
}

struct HttpServer {
  explicit HttpServer(const HttpStorageOptions& options_) : options(options_), client(options_.client) {}

  const HttpStorageOptions options;
  http::Client client;
};

// The version to which a reader is pinned.
struct HttpObject {
  std::shared_ptr<HttpServer> server;
  std::string url;   // after redirects
  std::string name;  // as typed, without query
  int64_t size = 0;
  std::string version;
  std::chrono::sys_time<std::chrono::nanoseconds> modified{};
  std::stop_token stop;

  void add_conditions(http::Request& request) const {
    if (version.empty() || version.starts_with("W/")) return;  // a weak ETag never matches
    request.headers.push_back((version.starts_with('"') ? "If-Match: " : "If-Unmodified-Since: ") + version);
  }

  Status judge(const Response& response, int64_t offset, size_t bytes) const {
    const auto changed = [&] { return fail(ErrorCode::kCorruption, "read {}: changed while reading", name); };
    if (response.status == 412 || response.status == 416) return changed();
    if (response.status != 200 && response.status != 206) return status_error(name, response);
    const http::ContentRange range = response.content_range();
    if (range.total.value_or(size) != size) return changed();
    if (const std::string now = version_of(response); !now.empty() && !version.empty() && now != version) {
      return changed();
    }
    if (response.status == 200 && (offset != 0 || static_cast<int64_t>(bytes) != size)) return no_ranges(name);
    if (response.status == 206 && range.first.value_or(-1) != offset) {
      return fail(ErrorCode::kCorruption, "read {}: the server sent another range than [{}, {})", name, offset,
                  offset + static_cast<int64_t>(bytes));
    }
    if (response.received_bytes != static_cast<int64_t>(bytes)) {
      return fail(ErrorCode::kUnavailable, "read {}: {} of {} bytes arrived", name, response.received_bytes, bytes);
    }
    return {};
  }
};

class HttpRead final : public ReadInPieces {
 public:
  HttpRead(const HttpObject& object, const std::stop_token& stop, Clock::time_point deadline, ServiceReader::Done done)
      : ReadInPieces(stop, deadline, std::move(done)), object_(object) {}

 private:
  void begin_piece(Piece& piece) override { send(piece, {}); }

  void send(Piece& piece, Clock::time_point not_before) {
    web::count_try(++piece.tries);
    http::Request request{.url = object_.url, .out = piece.out, .not_before = not_before, .deadline = deadline_};
    request.headers.push_back(piece.range_header());
    object_.add_conditions(request);
    request.stop = stop_.get_token();
    object_.server->options.set_times(request);
    object_.server->client.start(std::move(request), [this, self = shared_from_this(),
                                                      &piece](const Result<Response>& answer) { take(piece, answer); });
  }

  void take(Piece& piece, const Result<Response>& answer) {
    Status status = answer ? object_.judge(*answer, piece.offset, piece.out.size()) : tl::unexpected(answer.error());
    if (answer) process_metrics().add(Metric::kReceivedBytes, answer->received_bytes);
    if (!status && may_pass(status.error()) && !stop_.stop_requested()) {
      const auto again = next_try(object_.server->options, piece.tries, begun_, answer);
      if (again && *again < deadline_) return send(piece, *again);
    }
    end(std::move(status));
  }

  const HttpObject& object_;
  const Clock::time_point begun_ = Clock::now();
};

class HttpReader final : public ServiceReader {
 public:
  explicit HttpReader(const std::shared_ptr<const HttpObject>& object)
      : ServiceReader(
            object->size,
            [object](int64_t offset, std::span<std::byte> out, const std::stop_token& stop, Clock::time_point deadline,
                     Done done) {
              std::make_shared<HttpRead>(*object, stop, deadline, std::move(done))->start(offset, out);
            },
            object->stop),
        object_(object) {}
  std::string_view name() const override { return object_->name; }
  std::string_view version() const override { return object_->version; }

  [[nodiscard]] Status read_at(int64_t offset, std::span<std::byte> out) const override {
    return wait_for_answer<Status>(
        [&](auto done) { static_cast<void>(start_read(offset, out, {}, Clock::time_point::max(), done)); });
  }

 private:
  const std::shared_ptr<const HttpObject> object_;
};

class HttpOrigin final : public HttpStorage {
 public:
  HttpOrigin(std::string origin, const HttpStorageOptions& options)
      : origin_(std::move(origin)), server_(std::make_shared<HttpServer>(options)) {}
  HttpOrigin(const HttpOrigin& other, std::string query, std::stop_token stop)
      : origin_(other.origin_), query_(std::move(query)), server_(other.server_), stop_(std::move(stop)) {}
  std::shared_ptr<Storage> with_stop(std::stop_token stop) const override {
    return std::make_shared<HttpOrigin>(*this, query_, std::move(stop));
  }
  std::shared_ptr<Storage> with_query(std::string query) const override {
    return std::make_shared<HttpOrigin>(*this, std::move(query), stop_);
  }

  std::string_view name() const override { return origin_; }
  Capabilities capabilities() const override { return {}; }

  [[nodiscard]] Result<std::unique_ptr<RandomReader>> open_read(std::string_view key,
                                                                const OpenOptions& options) override {
    ASSIGN_OR_RETURN(HttpObject object, named(key));
    if (options.known_size && !options.expected_version.empty()) {
      object.size = *options.known_size;
      object.version = options.expected_version;
      return std::make_unique<HttpReader>(std::make_shared<const HttpObject>(std::move(object)));
    }
    RETURN_IF_ERROR(look_up(object));
    if (!options.expected_version.empty() && options.expected_version != object.version) {
      return fail(ErrorCode::kCorruption, "open {}: version {}, not {} as expected", object.name, object.version,
                  options.expected_version);
    }
    return std::make_unique<HttpReader>(std::make_shared<const HttpObject>(std::move(object)));
  }

  [[nodiscard]] Result<ObjectInfo> stat(std::string_view key) override {
    ASSIGN_OR_RETURN(HttpObject object, named(key));
    RETURN_IF_ERROR(look_up(object));
    return ObjectInfo{.key = std::string(key), .size = object.size, .version = object.version};
  }

  void submit(std::span<const Operation> operations, CompletionQueue& queue) override {
    submit_reads(operations, queue, origin_);
  }

  [[nodiscard]] Result<std::unique_ptr<Writer>> open_write(std::string_view, const WriteOptions&) override {
    return read_only("write");
  }
  [[nodiscard]] Result<ListPage> list(std::string_view, const ListOptions&) override { return read_only("list"); }
  [[nodiscard]] Status remove(std::span<const std::string>) override { return read_only("remove"); }
  [[nodiscard]] Result<std::vector<ObjectInfo>> list_uploads(std::string_view) override { return read_only("list"); }
  [[nodiscard]] Status abort_uploads(std::span<const ObjectInfo>) override { return read_only("remove"); }
  [[nodiscard]] Status make_durable(std::span<const std::string>) override { return read_only("write"); }
  [[nodiscard]] Result<FreeSpace> free_space(std::string_view) override { return read_only("write"); }

 private:
  tl::unexpected<Error> read_only(std::string_view what) const {
    return fail(ErrorCode::kUnsupported, "{} {}: plain HTTP can only be read, object by object", what, origin_);
  }

  Result<HttpObject> named(std::string_view key) const {
    RETURN_IF_ERROR(check_key(key));
    HttpObject object;
    object.server = server_;
    object.stop = stop_;
    object.name = origin_ + "/" + web::encoded(key);
    object.url = query_.empty() ? object.name : object.name + "?" + web::encoded(query_);
    return object;
  }

  // Gets size and version with a GET of the first byte. A HEAD would not say whether the server answers ranges, and a
  // URL that is signed for GET refuses it.
  Status look_up(HttpObject& object) const {
    for (int redirects = 0; redirects <= web::kMostRedirects; ++redirects) {
      ASSIGN_OR_RETURN(const Response response, ask(object));
      if (response.status / 100 != 3) return learn(object, response);
      RETURN_IF_ERROR(follow(object, response));
    }
    return fail(ErrorCode::kUnavailable, "read {}: more than {} redirects", object.name, web::kMostRedirects);
  }

  Result<Response> ask(const HttpObject& object) const {
    std::byte first{};
    const Clock::time_point begun = Clock::now();
    Clock::time_point not_before{};
    for (int tries = 1;; ++tries) {
      http::Request request{.url = object.url, .headers = {"Range: bytes=0-0"}, .out = {&first, 1}};
      request.not_before = not_before;
      request.stop = object.stop;
      server_->options.set_times(request);
      web::count_try(tries);
      Result<Response> answer = server_->client.fetch(std::move(request));
      const auto again = web::may_pass(answer) ? next_try(server_->options, tries, begun, answer) : std::nullopt;
      if (!again) {
        // More than the one byte that the request asked for.
        if (!answer && answer.error().code() == ErrorCode::kCorruption) return no_ranges(object.name);
        return answer;
      }
      not_before = *again;
    }
  }

  static Status learn(HttpObject& object, const Response& response) {
    const http::ContentRange range = response.content_range();
    if (response.status == 416 && range.total == 0) {
      object.size = 0;
    } else if (response.status == 206 && range.first == 0 && range.total) {
      object.size = *range.total;
    } else if (response.status == 200) {
      object.size = response.received_bytes;  // 0 or 1
    } else if (response.status == 206) {
      return fail(ErrorCode::kUnsupported, "read {}: the server does not tell its size", object.name);
    } else {
      return status_error(object.name, response);
    }
    object.version = version_of(response);
    return {};
  }

  static Status follow(HttpObject& object, const Response& response) {
    ASSIGN_OR_RETURN(object.url, web::redirect_target(object.url, response, object.name));
    return {};
  }

  const std::string origin_, query_;
  const std::shared_ptr<HttpServer> server_;
  const std::stop_token stop_;
};

}  // namespace

Result<HttpStorageOptions> HttpStorageOptions::from(const UrlOptions& asked) {
  HttpStorageOptions options;
  RETURN_IF_ERROR(options.set_timeout(asked));
  options.client.connect_timeout = std::min(options.client.connect_timeout, options.timeout);
  return options;
}

Result<std::shared_ptr<HttpStorage>> open_http_storage(std::string origin, const HttpStorageOptions& options) {
  RETURN_IF_ERROR(http::check_request({.url = origin}));
  if (origin.find_first_of("/?#", origin.find("://") + 3) != origin.npos) {
    return fail(ErrorCode::kInvalidArgument, "\"{}\": an origin is https://host or https://host:port", origin);
  }
  return std::make_shared<HttpOrigin>(std::move(origin), options);
}

}  // namespace millrace
