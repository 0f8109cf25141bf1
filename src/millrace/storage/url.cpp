// SPDX-License-Identifier: Apache-2.0
#include "millrace/storage/url.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <functional>
#include <map>
#include <utility>

#include "millrace/storage/hub/hub.h"
#include "millrace/storage/local/local.h"
#include "millrace/storage/memory.h"
#include "millrace/storage/s3/s3.h"
#include "millrace/storage/web/http_storage.h"

namespace millrace {
namespace {

thread_local std::stop_token stop_of_thread;  // see StopScope

// Opened storages are never destroyed: at exit, objects that their threads use may be gone already.
using ByName = std::map<std::string, std::shared_ptr<Storage>, std::less<>>;

// "s3" of "s3://bucket/key"; nullopt for a plain path.
std::string_view scheme_of(std::string_view url) {
  const std::string_view scheme = url.substr(0, std::min(url.find("://"), url.size()));
  const auto allowed = [](unsigned char c) { return std::isalnum(c) || c == '+' || c == '.' || c == '-'; };
  if (scheme.size() == url.size() || scheme.empty() || !std::isalpha(static_cast<unsigned char>(scheme[0]))) return {};
  return std::all_of(scheme.begin(), scheme.end(), allowed) ? scheme : std::string_view();
}

// The scheme of ours that a path begins with and means: "s3" of "s3:/bucket" and "s3:bucket/key", legal paths that
// nobody types on purpose. Empty for other paths.
std::string_view mistyped_scheme_of(std::string_view path) {
  for (const std::string_view scheme : {"s3", "hf", "http", "https", "file"}) {
    if (path.starts_with(scheme) && path.substr(scheme.size()).starts_with(':')) return scheme;
  }
  return {};
}

// The components of `path` joined by '/', with "", "." and ".." resolved by name; ".." of the root is the root.
// `before_parent` may change the components before a "..".
std::string normalised_key(std::string_view path, const std::function<void(std::string&)>& before_parent = {}) {
  std::string key;
  for (size_t begin = 0; begin < path.size();) {
    const size_t end = std::min(path.find('/', begin), path.size());
    const std::string_view component = path.substr(begin, end - begin);
    begin = end + 1;
    if (component == "..") {
      if (before_parent) before_parent(key);
      const size_t slash = key.rfind('/');
      key.resize(slash == key.npos ? 0 : slash);
    } else if (!component.empty() && component != ".") {
      if (!key.empty()) key += '/';
      key += component;
    }
  }
  return key;
}

// As the system resolves it: ".." of a symbolic link is the folder that holds what the link leads to.
Result<std::string> local_key(std::string_view path) {
  Status resolved;
  std::string key = normalised_key(path, [&](std::string& before) {
    std::error_code error;
    if (!std::filesystem::is_symlink("/" + before, error)) return;
    const std::string real = std::filesystem::canonical("/" + before, error).string();
    if (error) {
      resolved = tl::unexpected<Error>(errno_error(error.value(), fmt::format("resolve /{}/..", before)));
    } else {
      before = real.substr(1);
    }
  });
  if (!resolved) return tl::unexpected<Error>(std::move(resolved).error());
  return key;
}

Result<Location> open_path(std::string_view path, std::string_view url) {
  static const auto& files = *new Result<std::shared_ptr<Storage>>(local_direct_from_environment().and_then(
      [](LocalDirect direct) { return open_local_storage("/", {.direct = direct}); }));
  if (!files) return tl::unexpected<Error>(files.error());
  std::string absolute(path);
  if (!path.starts_with('/')) {
    std::error_code error;
    absolute = std::filesystem::current_path(error).string() + "/" + absolute;
    if (error) return tl::unexpected<Error>(errno_error(error.value(), "find the current directory"));
  }
  ASSIGN_OR_RETURN(std::string key, local_key(absolute));
  return Location{*files, std::move(key), std::string(url)};
}

Result<Location> open_memory(std::string_view rest, std::string_view url) {
  static Mutex mutex;
  static auto& storages = *new ByName;
  const size_t slash = std::min(rest.find('/'), rest.size());
  const std::string name(rest.substr(0, slash));
  if (name.empty()) return fail(ErrorCode::kInvalidArgument, "\"{}\": the name after mem:// is missing", url);
  MutexLock lock(mutex);
  auto& storage = storages[name];
  if (!storage) storage = make_memory_storage(name);
  return Location{storage, normalised_key(rest.substr(slash)), std::string(url)};
}

// The key as typed, without one '/' at its end. In S3, "." and ".." are no directories, and "a//" is not "a/".
Result<Location> open_s3(std::string_view rest, std::string_view url, const UrlOptions& asked) {
  static Mutex mutex;
  static auto& known = *new std::vector<std::pair<S3Options, ByName>>;
  ASSIGN_OR_RETURN(const S3Options options, S3Options::from(asked));
  const size_t slash = std::min(rest.find('/'), rest.size());
  const std::string bucket(rest.substr(0, slash));
  std::string key(rest.substr(std::min(slash + 1, rest.size())));
  const bool has_slash = key.ends_with('/');
  if (has_slash) key.pop_back();
  MutexLock lock(mutex);
  auto found = std::find_if(known.begin(), known.end(), [&](const auto& entry) { return entry.first == options; });
  if (found == known.end()) found = known.insert(known.end(), {options, {}});
  auto& storage = found->second[bucket];
  if (!storage) {
    auto opened = with_context(open_s3_storage(bucket, options), url);
    if (!opened) {
      found->second.erase(bucket);
      return tl::unexpected(std::move(opened).error());
    }
    storage = *std::move(opened);
  }
  return Location{storage, std::move(key), std::string(url), has_slash};
}

// `scheme` + "://" + `rest`; the path stays as typed.
Result<Location> open_http(std::string_view scheme, std::string_view rest, std::string_view url,
                           const UrlOptions& asked) {
  static Mutex mutex;
  static auto& storages = *new std::map<std::string, std::shared_ptr<HttpStorage>>;
  const size_t slash = std::min(rest.find('/'), rest.size());
  const std::string origin = std::string(scheme) + "://" + std::string(rest.substr(0, slash));
  ASSIGN_OR_RETURN(const HttpStorageOptions options, HttpStorageOptions::from(asked));
  const std::string name = fmt::format("{} {}", origin, options.timeout.count());
  MutexLock lock(mutex);
  auto& storage = storages[name];
  if (!storage) {
    auto opened = open_http_storage(origin, options);
    if (!opened) {
      storages.erase(name);
      return tl::unexpected(std::move(opened).error());
    }
    storage = *std::move(opened);
  }
  const std::string_view path = rest.substr(std::min(slash + 1, rest.size()));
  const std::string_view typed = path.substr(0, path.find('#'));
  const size_t mark = typed.find('?');
  Location location{storage, std::string(typed.substr(0, mark)), url_to_show(url)};
  if (mark != typed.npos) location.storage = storage->with_query(std::string(typed.substr(mark + 1)));
  return location;
}

// Repositories of one revision share what they know, above all the commit.
Result<Location> open_hub(std::string_view rest, std::string_view url, const UrlOptions& asked) {
  static Mutex mutex;
  static auto& storages = *new ByName;
  ASSIGN_OR_RETURN(HubUrl typed, parse_hub_url(rest));
  ASSIGN_OR_RETURN(const HubOptions options, HubOptions::from(asked));
  const std::string name = fmt::format("{} {} {} {}@{}", options.endpoint, options.token, options.timeout.count(),
                                       typed.repo.url(), typed.revision);
  MutexLock lock(mutex);
  auto& storage = storages[name];
  if (!storage) {
    auto opened = open_hub_storage(typed.repo, typed.revision, options);
    if (!opened) {
      storages.erase(name);
      return tl::unexpected(std::move(opened).error());
    }
    storage = *std::move(opened);
  }
  return Location{storage, std::move(typed.path), std::string(url)};
}

}  // namespace

Location Location::child(std::string_view name) const {
  const auto below = [&](const std::string& parent, bool is_joined) {
    return parent.empty() || is_joined ? parent + std::string(name) : parent + "/" + std::string(name);
  };
  // The key of "s3://bucket/a//" is "a/", a name; that of "https://host/a/" has its '/' already.
  return Location{storage, below(key, key.ends_with('/') && !has_slash), below(url, url.ends_with('/'))};
}

std::string Location::object_key() const {
  return has_slash && !key.empty() ? key + "/" : key;
}

Location Location::with_stop(const std::stop_token& stop) const {
  Location location = *this;
  if (auto own = stop.stop_possible() ? storage->with_stop(stop) : nullptr) location.storage = std::move(own);
  return location;
}

StopScope::StopScope(std::stop_token stop) : before_(std::exchange(stop_of_thread, std::move(stop))) {}
StopScope::~StopScope() {
  stop_of_thread = std::move(before_);
}

std::string url_to_show(std::string_view url) {
  const std::string_view scheme = scheme_of(url);
  return scheme == "http" || scheme == "https" ? http::without_secrets(url) : std::string(url);
}

Result<Location> open_url(std::string_view url) {
  return open_url(url, process_url_options());
}

Result<Location> open_url(std::string_view url, const UrlOptions& options) {
  if (url.empty()) return fail(ErrorCode::kInvalidArgument, "an empty path or URL");
  if (url.find('\0') != url.npos) return fail(ErrorCode::kInvalidArgument, "a path or URL with a NUL byte");
  const std::string_view scheme = scheme_of(url);
  if (scheme.empty()) {
    if (const std::string_view meant = mistyped_scheme_of(url); !meant.empty()) {
      return fail(ErrorCode::kInvalidArgument,
                  "\"{}\" is no URL: {}:// takes two slashes; if a file of that name is meant, type \"./{}\"", url,
                  meant, url);
    }
    return open_path(url, url);
  }
  const std::string_view rest = url.substr(scheme.size() + 3);
  if (scheme == "mem") return open_memory(rest, url);
  if (scheme == "s3" || scheme == "hf" || scheme == "http" || scheme == "https") {
    auto far = scheme == "s3"   ? open_s3(rest, url, options)
               : scheme == "hf" ? open_hub(rest, url, options)
                                : open_http(scheme, rest, url, options);
    return std::move(far).map([&](const Location& location) { return location.with_stop(stop_of_thread); });
  }
  if (scheme != "file") {
    return fail(ErrorCode::kUnsupported, "\"{}\": {}:// is not supported yet by this version", url, scheme);
  }
  const std::string_view path = rest.starts_with("localhost/") ? rest.substr(9) : rest;
  if (!path.starts_with('/')) {
    return fail(ErrorCode::kInvalidArgument, "\"{}\": a file URL is file:///absolute/path", url);
  }
  return open_path(path, url);
}

}  // namespace millrace
