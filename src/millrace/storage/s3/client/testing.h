// SPDX-License-Identifier: Apache-2.0
#pragma once

// For the tests of this room: a server that gives rare answers on demand: answers that AWS documents, and faulty ones.

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "millrace/base/hash/crc32c.h"
#include "millrace/http/testing/test_server.h"
#include "millrace/storage/md5.h"
#include "millrace/storage/s3/client/digest.h"
#include "millrace/storage/s3/s3.h"

namespace millrace::s3 {

using http::ReceivedRequest;
using http::Reply;

inline Reply error_reply(int status, const std::string& code) {
  return {.status = status, .body = "<Error><Code>" + code + "</Code><Message>said so</Message></Error>"};
}

// A bucket with as much of S3 as the tests need. The answers of `bend` come first.
class ServiceTest : public ::testing::Test {
 protected:
  ServiceTest() {
    set("AWS_ACCESS_KEY_ID", "AKID");
    set("AWS_SECRET_ACCESS_KEY", "SeCrEt");
    server_.emplace([this](const ReceivedRequest& request) { return answer(request); });
  }

  ~ServiceTest() override {
    for (const auto& [name, value] : before_) {
      if (value)
        setenv(name.c_str(), value->c_str(), 1);
      else
        unsetenv(name.c_str());
    }
  }

  void set(const std::string& name, const std::string& value) {
    const char* there = std::getenv(name.c_str());
    before_[name] = there != nullptr ? std::optional<std::string>(there) : std::nullopt;
    setenv(name.c_str(), value.c_str(), 1);
  }

  std::shared_ptr<Storage> storage(int max_tries = 10, std::chrono::milliseconds timeout = std::chrono::minutes(2)) {
    S3Options options;
    options.endpoint_url = server_->url("");
    options.max_tries = max_tries;
    options.timeout = timeout;
    return open_s3_storage("bucket", options).value();
  }

  Reply answer(const ReceivedRequest& request) {
    MutexLock lock(mutex_);
    requests_.push_back(request);
    if (bend_) {
      if (auto bent = bend_(request)) return *bent;
    }
    const std::string path = request.target.substr(0, request.target.find('?'));
    if (request.method == "PUT") {
      const std::string_view said = request.header("x-amz-checksum-crc32c");
      if (!said.empty() && said != base64_crc32c(crc32c(as_bytes(request.body)))) return error_reply(400, "BadDigest");
      const auto md5 = md5_hex(as_bytes(request.body));
      if (request.target.find("partNumber=") == std::string::npos) objects_[path] = {request.body, md5};
      return {.headers = {"ETag: \"" + md5 + "\""}};
    }
    if (request.method == "POST" && request.target.find("uploads") != std::string::npos)
      return {.body = "<InitiateMultipartUploadResult><UploadId>up</UploadId></InitiateMultipartUploadResult>"};
    if (request.method == "POST") return complete(request.body);
    if (request.method == "DELETE") return {.status = 204};
    const auto found = objects_.find(path);
    if (found == objects_.end()) return error_reply(404, "NoSuchKey");
    Reply reply = serve_range(request, found->second.first);
    reply.headers.push_back("ETag: \"" + found->second.second + "\"");
    return reply;
  }

  // Computes the ETag as S3 does, from the ETags of the parts that the request names.
  static Reply complete(const std::string& body) {
    std::vector<std::string> etags;
    const std::string tag = "<ETag>\"";
    for (size_t at = body.find(tag); at != body.npos; at = body.find(tag, at + 1)) {
      etags.push_back(body.substr(at + tag.size(), 32));
    }
    return {.body = "<CompleteMultipartUploadResult><ETag>\"" + multipart_etag(etags) +
                    "\"</ETag></CompleteMultipartUploadResult>"};
  }

  // Answers the next `times` requests for which `match` is true with `reply`.
  void bend(int times, std::function<bool(const ReceivedRequest&)> match, Reply reply) {
    MutexLock lock(mutex_);
    bend_ = [=, left = times](const ReceivedRequest& request) mutable -> std::optional<Reply> {
      if (left == 0 || !match(request)) return std::nullopt;
      --left;
      return reply;
    };
  }
  static bool any(const ReceivedRequest&) { return true; }
  static bool is_get(const ReceivedRequest& request) { return request.method == "GET"; }
  static bool is_put(const ReceivedRequest& request) { return request.method == "PUT"; }
  static bool is_complete(const ReceivedRequest& request) {
    return request.method == "POST" && request.target.find("uploadId") != std::string::npos;
  }

  std::vector<ReceivedRequest> requests() {
    MutexLock lock(mutex_);
    return requests_;
  }

  std::map<std::string, std::optional<std::string>> before_;  // earlier values of environment variables
  Mutex mutex_;
  std::function<std::optional<Reply>(const ReceivedRequest&)> bend_ GUARDED_BY(mutex_);
  std::vector<ReceivedRequest> requests_ GUARDED_BY(mutex_);
  std::map<std::string, std::pair<std::string, std::string>> objects_ GUARDED_BY(mutex_);
  std::optional<http::TestServer> server_;
};

}  // namespace millrace::s3
