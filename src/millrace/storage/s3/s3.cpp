// SPDX-License-Identifier: Apache-2.0
#include "millrace/storage/s3/s3.h"

#include <algorithm>

#include "millrace/storage/detail/backend.h"
#include "millrace/storage/page_token.h"
#include "millrace/storage/s3/client/bucket.h"
#include "millrace/storage/s3/client/digest.h"
#include "millrace/storage/s3/client/responses.h"
#include "millrace/storage/s3/client/settings.h"
#include "millrace/storage/submit.h"

namespace millrace {
namespace s3 {

Result<Answer> Bucket::fetch(Request asked, std::string_view what) const {
  ASSIGN_OR_RETURN(Answer answer, with_context(service->fetch(std::move(asked)), what));
  if (!is_success(answer.response)) return tl::unexpected(error_of(answer.response, what));
  return answer;
}

Result<ObjectInfo> Bucket::head(const std::string& key) const {
  const std::string what = "look at " + url(key);
  ASSIGN_OR_RETURN(const Answer answer, with_context(service->fetch(request(http::Method::kHead, key)), what));
  if (answer.response.status == 404) return fail(ErrorCode::kNotFound, "{}: no such object", url(key));
  if (!is_success(answer.response)) return tl::unexpected(error_of(answer.response, what));
  return parse_object(key, answer.response);
}

Result<ObjectTags> Bucket::tags(const std::string& key) const {
  const std::string what = "read the tags of " + url(key);
  ASSIGN_OR_RETURN(const Answer answer,
                   with_context(service->fetch(request(http::Method::kGet, key, {{"tagging", ""}})), what));
  if (is_success(answer.response)) return with_context(parse_tags(answer.response.body), what);
  Error error = error_of(answer.response, what);
  const bool has_none = error.code() == ErrorCode::kUnsupported || answer.response.status == 405 ||
                        parse_error(answer.response.body).code == "NoSuchTagSet";
  if (has_none) return ObjectTags();  // some servers know no tags
  return tl::unexpected(std::move(error));
}

Result<std::optional<ContentChecksum>> Bucket::checksum(const ObjectInfo& object) const {
  if (!check_reads) return std::nullopt;
  Request asked = request(http::Method::kHead, object.key);
  asked.headers.emplace_back(kChecksumMode, "ENABLED");
  const std::string what = "look at " + url(object.key);
  ASSIGN_OR_RETURN(const Answer answer, fetch(std::move(asked), what));
  if (bare_etag(answer.response.header("etag")) == object.version) return checksum_of(answer.response);
  return fail(ErrorCode::kCorruption, "{}: its version is {}, not {}", what, answer.response.header("etag"),
              object.version);
}

namespace {

constexpr int64_t kMostKeys = 1000;  // of a page, and of one DeleteObjects

// S3's rules for new buckets; the server reports the rarer ones.
bool is_bucket_name(std::string_view name) {
  return name.size() >= 3 && name.size() <= 63 && std::all_of(name.begin(), name.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '.' ||
                  c == '_';
         });
}

class S3Storage final : public Storage {
 public:
  explicit S3Storage(std::shared_ptr<Bucket> bucket) : bucket_(std::move(bucket)) {}

  std::string_view name() const override { return bucket_->name; }
  std::string identity() const override { return bucket_->service->bucket_url(bucket_->bucket); }
  Capabilities capabilities() const override {
    return {.conditional_write = true,
            .copy_range = true,
            .list_uploads = true,
            .durable = true,
            .resume = true,
            .sends_files = true,
            .file_checksums = bucket_->checksums,
            .headers = true};
  }
  const void* copier() const override { return bucket_->service.get(); }

  std::shared_ptr<Storage> with_stop(std::stop_token stop) const override {
    auto own = std::make_shared<Bucket>(*bucket_);
    own->stop = std::move(stop);
    return std::make_shared<S3Storage>(std::move(own));
  }
  [[nodiscard]] Result<std::shared_ptr<Storage>> without_limits() const override {
    S3Options options = bucket_->service->options();
    options.requests_per_second = options.bytes_per_second = 0;
    return open_s3_storage(bucket_->bucket, options);
  }

  [[nodiscard]] Result<std::unique_ptr<RandomReader>> open_read(std::string_view key,
                                                                const OpenOptions& options) override {
    RETURN_IF_ERROR(check_object_key(key));
    if (options.known_size && !options.expected_version.empty()) {
      return std::make_unique<S3Reader>(*bucket_, std::string(key), *options.known_size, options.expected_version);
    }
    ASSIGN_OR_RETURN(ObjectInfo info, bucket_->head(std::string(key)));
    if (!options.expected_version.empty() && options.expected_version != info.version) {
      return fail(ErrorCode::kCorruption, "open {}: its version is {}, not {}", bucket_->url(key), info.version,
                  options.expected_version);
    }
    return std::make_unique<S3Reader>(*bucket_, std::string(key), info.size, std::move(info.version));
  }
  [[nodiscard]] Result<std::unique_ptr<Writer>> open_write(std::string_view key, const WriteOptions& options) override {
    return open_s3_writer(bucket_, key, options);
  }
  [[nodiscard]] Result<std::unique_ptr<Writer>> resume_write(const ObjectInfo& upload,
                                                             const WriteOptions& options) override {
    return resume_s3_writer(bucket_, upload, options);
  }

  void submit(std::span<const Operation> operations, CompletionQueue& queue) override {
    submit_operations(bucket_->state->process.get().executor, operations, queue);
  }

  [[nodiscard]] Result<ObjectInfo> stat(std::string_view key) override {
    RETURN_IF_ERROR(check_object_key(key));
    return bucket_->head(std::string(key));
  }
  [[nodiscard]] Result<ObjectTags> tags(std::string_view key) override {
    RETURN_IF_ERROR(check_object_key(key));
    return bucket_->tags(std::string(key));
  }
  [[nodiscard]] Result<std::optional<ContentChecksum>> checksum(const ObjectInfo& object) override {
    return bucket_->checksum(object);
  }
  [[nodiscard]] Result<std::optional<PosixAttributes>> folder_attributes(std::string_view key) override {
    const auto marker = bucket_->head(std::string(key) + "/");
    if (!marker && marker.error().code() == ErrorCode::kNotFound) return std::nullopt;
    return marker.map([](const ObjectInfo& info) { return info.posix; });
  }
  [[nodiscard]] Status set_folder_attributes(std::string_view key, const PosixAttributes& attributes) override {
    return write_object(*this, std::string(key) + "/", "", {.brief = true, .posix = attributes})
        .map([](const ObjectInfo&) {});
  }
  [[nodiscard]] Result<ListPage> list(std::string_view prefix, const ListOptions& options) override;
  [[nodiscard]] Status remove(std::span<const std::string> keys) override;
  [[nodiscard]] Result<std::vector<ObjectInfo>> list_uploads(std::string_view prefix) override;
  [[nodiscard]] Status abort_uploads(std::span<const ObjectInfo> uploads) override;

  // S3 is durable when it answers a commit.
  [[nodiscard]] Status make_durable(std::span<const std::string> keys) override {
    for (const std::string& key : keys) {
      RETURN_IF_ERROR(check_object_key(key));
      RETURN_IF_ERROR(bucket_->head(key).map([](const ObjectInfo&) {}));
    }
    return {};
  }
  [[nodiscard]] Result<FreeSpace> free_space(std::string_view prefix) override {
    return fail(ErrorCode::kUnsupported, "{}: a bucket does not say how much more it takes", bucket_->url(prefix));
  }

 private:
  Status remove_batch(std::span<const std::string> keys);

  const std::shared_ptr<Bucket> bucket_;
};

Result<ListPage> S3Storage::list(std::string_view prefix, const ListOptions& options) {
  RETURN_IF_ERROR(check_object_listing(prefix, options));
  Pairs query{{"list-type", "2"},
              {"encoding-type", "url"},
              {"max-keys", std::to_string(std::min(options.max_keys, kMostKeys))},
              {"prefix", std::string(prefix)}};
  if (!options.recursive) query.emplace_back("delimiter", "/");
  if (is_key_token(options.page_token)) {
    query.emplace_back("start-after", key_of_token(options.page_token));
  } else if (!options.page_token.empty()) {
    query.emplace_back("continuation-token", options.page_token);
  }
  const std::string what = "list " + bucket_->url(prefix);
  ASSIGN_OR_RETURN(const Answer answer,
                   bucket_->fetch(bucket_->request(http::Method::kGet, {}, std::move(query)), what));
  return with_context(parse_list(answer.response.body), what);
}

Status S3Storage::remove_batch(std::span<const std::string> keys) {
  if (keys.size() == 1) {
    const std::string what = "remove " + bucket_->url(keys[0]);
    const auto answer = bucket_->fetch(bucket_->request(http::Method::kDelete, keys[0]), what);
    if (!answer && answer.error().code() != ErrorCode::kNotFound) return tl::unexpected(answer.error());
    return {};
  }
  std::string body = "<Delete><Quiet>true</Quiet>";
  for (const std::string& key : keys) body += "<Object><Key>" + xml_escaped(key) + "</Key></Object>";
  body += "</Delete>";
  Request request = bucket_->request(http::Method::kPost, {}, {{"delete", ""}});
  request.body = as_bytes(body);
  request.headers.emplace_back("content-md5", base64_md5(request.body));
  request.headers.emplace_back("content-type", "application/xml");
  const std::string what = fmt::format("remove {} keys of {}", keys.size(), bucket_->name);
  ASSIGN_OR_RETURN(const Answer answer, bucket_->fetch(std::move(request), what));
  return with_context(parse_removed(answer.response.body), what);
}

Status S3Storage::remove(std::span<const std::string> keys) {
  Status first;
  const auto note = [&](Status status) {
    if (first && !status) first = std::move(status);
  };
  std::vector<std::string> batch;
  for (const std::string& key : keys) {
    if (auto valid = check_object_key(key); !valid) {
      note(std::move(valid));
      continue;
    }
    batch.push_back(key);
    if (std::ssize(batch) == kMostKeys) {
      note(remove_batch(batch));
      batch.clear();
    }
  }
  if (!batch.empty()) note(remove_batch(batch));
  return first;
}

Result<std::vector<ObjectInfo>> S3Storage::list_uploads(std::string_view prefix) {
  RETURN_IF_ERROR(check_object_listing(prefix, {}));
  const std::string what = "list uploads below " + bucket_->url(prefix);
  std::vector<ObjectInfo> uploads;
  Pairs next;
  do {
    Pairs query{{"uploads", ""}, {"encoding-type", "url"}, {"prefix", std::string(prefix)}};
    query.insert(query.end(), next.begin(), next.end());
    ASSIGN_OR_RETURN(const Answer answer,
                     bucket_->fetch(bucket_->request(http::Method::kGet, {}, std::move(query)), what));
    ASSIGN_OR_RETURN(UploadPage page, with_context(parse_uploads(answer.response.body), what));
    auto& process = bucket_->state->process.get();
    MutexLock lock(process.mutex);
    for (ObjectInfo& upload : page.uploads) {
      if (!process.uploads.contains(upload.version)) uploads.push_back(std::move(upload));
    }
    Pairs further;
    if (!page.next_key.empty()) further = {{"key-marker", page.next_key}, {"upload-id-marker", page.next_id}};
    if (!further.empty() && !next.empty() && page.next_key <= next[0].second && further[1] == next[1]) {
      return fail(ErrorCode::kUnavailable, "{}: the listing does not advance", what);
    }
    next = std::move(further);
  } while (!next.empty());
  return uploads;
}

Status S3Storage::abort_uploads(std::span<const ObjectInfo> uploads) {
  Status first;
  for (const ObjectInfo& upload : uploads) {
    const std::string what = fmt::format("abort the upload of {}", bucket_->url(upload.key));
    const auto answer =
        bucket_->fetch(bucket_->request(http::Method::kDelete, upload.key, {{"uploadId", upload.version}}), what);
    if (first && !answer && answer.error().code() != ErrorCode::kNotFound) first = tl::unexpected(answer.error());
  }
  return first;
}

Result<std::shared_ptr<Bucket>> make_bucket(const std::string& name, const S3Options& options) {
  if (!is_bucket_name(name)) {
    return fail(ErrorCode::kInvalidArgument, "\"{}\" is no name of a bucket: 3 to 63 letters, digits, '-', '.', '_'",
                name);
  }
  auto bucket = std::make_shared<Bucket>();
  ASSIGN_OR_RETURN(bucket->service, Service::find(options));
  bucket->bucket = name;
  bucket->name = "s3://" + name;
  bucket->checksums = options.checksums;
  bucket->check_reads = options.check_reads;
  bucket->etag_is_md5 = options.etag_is_md5;
  return bucket;
}

}  // namespace
}  // namespace s3

Result<std::shared_ptr<Storage>> open_s3_storage(const std::string& bucket, const S3Options& options) {
  ASSIGN_OR_RETURN(auto shared, s3::make_bucket(bucket, options));
  return std::make_shared<s3::S3Storage>(std::move(shared));
}

Result<std::vector<ObjectInfo>> list_s3_buckets(const S3Options& options) {
  ASSIGN_OR_RETURN(const auto service, s3::Service::find(options));
  std::vector<ObjectInfo> buckets;
  std::string token;
  do {
    s3::Request request;
    if (!token.empty()) request.query = {{"continuation-token", token}};
    ASSIGN_OR_RETURN(const s3::Answer answer, with_context(service->fetch(std::move(request)), "list buckets"));
    if (!s3::is_success(answer.response)) return tl::unexpected(s3::error_of(answer.response, "list buckets"));
    ASSIGN_OR_RETURN(ListPage page, s3::parse_buckets(answer.response.body));
    const bool advances = !page.objects.empty() && (buckets.empty() || buckets.back().key < page.objects.front().key);
    if (!page.next_page_token.empty() && !advances)
      return fail(ErrorCode::kUnavailable, "list buckets: it does not advance");
    std::move(page.objects.begin(), page.objects.end(), std::back_inserter(buckets));
    token = std::move(page.next_page_token);
  } while (!token.empty());
  return buckets;
}

Status make_s3_bucket(const std::string& bucket, const S3Options& options) {
  ASSIGN_OR_RETURN(const auto shared, s3::make_bucket(bucket, options));
  std::string body;
  if (options.endpoint_url.empty() && !options.region.empty() && options.region != "us-east-1") {
    body = fmt::format(
        "<CreateBucketConfiguration><LocationConstraint>{}</LocationConstraint>"
        "</CreateBucketConfiguration>",
        options.region);
  }
  s3::Request request = shared->request(http::Method::kPut);
  request.body = as_bytes(body);
  ASSIGN_OR_RETURN(const s3::Answer answer, shared->service->fetch(std::move(request)));
  if (s3::is_success(answer.response)) return {};
  if (s3::parse_error(answer.response.body).code == "BucketAlreadyOwnedByYou") return {};
  return tl::unexpected(s3::error_of(answer.response, "make " + shared->name));
}

}  // namespace millrace
