// SPDX-License-Identifier: Apache-2.0
#include "millrace/jobs/container_image.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "millrace/base/text/json_members.h"
#include "millrace/base/text/strings.h"
#include "millrace/http/http.h"
#include "millrace/http/uri_encode.h"

namespace millrace::jobs {

namespace {

constexpr std::string_view kDockerHub = "registry-1.docker.io";  // enroot's default
constexpr int kOk = 200, kUnauthorized = 401, kForbidden = 403, kNotFound = 404;

bool all_of(std::string_view text, std::string_view others) {
  return !text.empty() && std::ranges::all_of(text, [&](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || others.find(c) != others.npos;
  });
}
constexpr std::string_view kCapitals = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";

bool is_registry(std::string_view text) {
  return all_of(text, ".-:ABCDEFGHIJKLMNOPQRSTUVWXYZ") && text.front() != '-' && text.front() != ':';
}
bool is_repository(std::string_view text) {
  return all_of(text, "._-/") && text.front() != '/' && text.back() != '/' && text.find("//") == text.npos &&
         text.find("..") == text.npos;
}
bool is_tag(std::string_view text) {
  constexpr size_t kLongest = 128;
  return text.size() <= kLongest && all_of(text, std::string("_.-").append(kCapitals)) && text.front() != '.' &&
         text.front() != '-';
}
bool is_digest(std::string_view text) {
  constexpr std::pair<std::string_view, size_t> kKinds[] = {{"sha256:", 64}, {"sha512:", 128}};
  return std::ranges::any_of(kKinds, [&](const auto& kind) {
    const auto& [name, digits] = kind;
    return text.starts_with(name) && text.size() == name.size() + digits &&
           text.find_first_not_of("0123456789abcdef", name.size()) == text.npos;
  });
}

// The parameters of `Bearer realm="...",service="..."` (RFC 9110, 11.2); empty for another scheme.
std::map<std::string, std::string> bearer_parameters(std::string_view challenge) {
  std::map<std::string, std::string> found;
  constexpr std::string_view kBearer = "bearer ";
  if (!equal_ignoring_case(challenge.substr(0, kBearer.size()), kBearer)) return found;
  challenge.remove_prefix(kBearer.size());
  while (!challenge.empty()) {
    const size_t equals = challenge.find("=\"");
    if (equals == challenge.npos) break;
    const size_t end = challenge.find('"', equals + 2);
    if (end == challenge.npos) break;
    std::string_view name = challenge.substr(0, equals);
    name.remove_prefix(std::min(name.find_first_not_of(", \t"), name.size()));
    found.emplace(name, challenge.substr(equals + 2, end - equals - 2));
    challenge.remove_prefix(end + 1);
  }
  return found;
}

class Registry {
 public:
  Registry(const ImageName& image, const RegistryOptions& options)
      : image_(image), options_(options), deadline_(Clock::now() + options.timeout) {}

  Result<ImageAnswer> ask() {
    ASSIGN_OR_RETURN(http::Response answer, look({}));
    if (answer.status == kUnauthorized) {
      ASSIGN_OR_RETURN(const std::string token, token_for(answer.header("www-authenticate")));
      if (token.empty()) return ImageAnswer::kHidden;
      ASSIGN_OR_RETURN(answer, look(token));
    }
    if (answer.status == kOk) return ImageAnswer::kThere;
    if (answer.status == kNotFound) return ImageAnswer::kMissing;
    if (answer.status == kUnauthorized || answer.status == kForbidden) return ImageAnswer::kHidden;
    return odd(answer.status);
  }

 private:
  tl::unexpected<Error> odd(int status) const {
    return fail(ErrorCode::kUnavailable, "{} answers with status {}", image_.registry, status);
  }

  Result<http::Response> look(const std::string& token) {
    std::vector<std::string> headers{
        "Accept: application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json, "
        "application/vnd.docker.distribution.manifest.list.v2+json, "
        "application/vnd.docker.distribution.manifest.v2+json"};
    if (!token.empty()) headers.push_back("Authorization: Bearer " + token);
    return client_.fetch({.method = http::Method::kHead,
                          .url = fmt::format("{}://{}/v2/{}/manifests/{}", options_.scheme, image_.registry,
                                             image_.repository, image_.reference),
                          .headers = std::move(headers),
                          .deadline = deadline_,
                          .stop = options_.stop});
  }

  // A token for anonymous reading. Empty where the registry gives none.
  Result<std::string> token_for(std::string_view challenge) {
    const auto asked = bearer_parameters(challenge);
    const auto realm = asked.find("realm");
    if (realm == asked.end()) return std::string();  // Basic: a login
    // A token over http could be read by others; a registry of https has no reason to name such a place.
    if (options_.scheme == "https" && !realm->second.starts_with("https://")) {
      return fail(ErrorCode::kUnavailable, "{} names {} for its tokens, which is no https", image_.registry,
                  http::without_secrets(realm->second));
    }
    std::string url = realm->second + (realm->second.find('?') == std::string::npos ? '?' : '&');
    if (const auto service = asked.find("service"); service != asked.end()) {
      url += "service=" + http::uri_encode(service->second, false) + "&";
    }
    url += "scope=" + http::uri_encode(fmt::format("repository:{}:pull", image_.repository), false);
    ASSIGN_OR_RETURN(const http::Response answer,
                     client_.fetch({.url = std::move(url), .deadline = deadline_, .stop = options_.stop}));
    if (answer.status == kUnauthorized || answer.status == kForbidden) return std::string();
    if (answer.status != kOk) return odd(answer.status);
    const auto given = nlohmann::json::parse(answer.body, nullptr, false);
    for (const char* const name : {"token", "access_token"}) {
      if (auto token = text_at(given, name)) return *token;
    }
    return fail(ErrorCode::kUnavailable, "{} gives no token", http::without_secrets(realm->second));
  }

  const ImageName& image_;
  const RegistryOptions& options_;
  const Clock::time_point deadline_;
  http::Client client_;
};

}  // namespace

std::string ImageName::text() const {
  const bool is_digest = reference.find(':') != std::string::npos;
  return fmt::format("{}/{}{}{}", registry, repository, is_digest ? '@' : ':', reference);
}

Result<ImageName> parse_image_name(std::string_view text) {
  const std::string whole(text);
  const auto wrong = [&](std::string_view what, std::string_view part) {
    return fail(ErrorCode::kInvalidArgument, "{}: \"{}\" is no {}", whole, part, what);
  };
  if (text.empty()) return fail(ErrorCode::kInvalidArgument, "the name of the image is empty");
  constexpr std::string_view kScheme = "docker://";
  if (text.starts_with(kScheme)) text.remove_prefix(kScheme.size());
  ImageName name;
  const size_t hash = text.find('#');
  std::string_view before = hash == text.npos ? std::string_view() : text.substr(0, hash);
  if (hash != text.npos) text.remove_prefix(hash + 1);
  // USER@ stands before the registry, or before an image without one; a digest behind the image.
  std::string_view& holder = hash != std::string_view::npos ? before : text;
  const size_t at = holder.find('@');
  if (at != holder.npos && (hash != std::string_view::npos || !is_digest(holder.substr(at + 1)))) {
    name.user = holder.substr(0, at);
    holder.remove_prefix(at + 1);
  }
  name.registry = hash == std::string_view::npos ? kDockerHub : before;
  if (!is_registry(name.registry)) return wrong("registry", name.registry);
  size_t end = text.find('@');
  if (end != text.npos) {
    name.reference = text.substr(end + 1);
    if (!is_digest(name.reference)) return wrong("digest", name.reference);
  } else {
    end = text.find(':');
    name.reference = end == text.npos ? "latest" : text.substr(end + 1);
    if (!is_tag(name.reference)) return wrong("tag", name.reference);
  }
  name.repository = text.substr(0, end);
  if (!is_repository(name.repository)) return wrong("image", name.repository);
  if (name.registry == kDockerHub && name.repository.find('/') == std::string::npos) {
    name.repository.insert(0, "library/");
  }
  return name;
}

std::string with_registry_mark(std::string_view image) {
  std::string marked(image);
  const size_t scheme = image.find("://");
  const size_t begin = scheme == std::string_view::npos ? 0 : scheme + 3;
  const size_t slash = image.find('/', begin);
  if (slash == std::string_view::npos || slash == begin || image.find('#') != std::string_view::npos) return marked;
  const std::string_view host = image.substr(begin, slash - begin);
  if (host != "." && host != ".." && host.find_first_of(".:") != std::string_view::npos) marked[slash] = '#';
  return marked;
}

Result<ImageAnswer> ask_registry(const ImageName& image, const RegistryOptions& options) {
  return Registry(image, options).ask();
}

}  // namespace millrace::jobs
