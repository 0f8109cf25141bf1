// SPDX-License-Identifier: Apache-2.0
#include "millrace/aws/sigv4.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>

#include "millrace/base/text/ascii.h"
#include "millrace/base/text/strings.h"

namespace millrace::aws {
namespace {

using Digest = std::array<unsigned char, 32>;

const EVP_MD* sha256_algorithm() {
  // Kept, because looking it up costs as much as hashing a request. Never freed.
  static const EVP_MD* const fetched = EVP_MD_fetch(nullptr, "SHA256", nullptr);
  return fetched;
}

// OpenSSL fails here only when memory is short. The digest is then zeros, and the server refuses the request.
Digest sha256(std::string_view bytes) {
  Digest digest{};
  EVP_Digest(bytes.data(), bytes.size(), digest.data(), nullptr, sha256_algorithm(), nullptr);
  return digest;
}

// HMAC-SHA256 (RFC 2104) of many texts with one key, which is hashed once. OpenSSL's HMAC looks up the algorithm and
// hashes the key for each text.
class Hmac {
 public:
  explicit Hmac(std::string_view key) : inner_(start(key, 0x36)), outer_(start(key, 0x5c)) {}

  Digest operator()(std::string_view text) const {
    Digest digest{};
    const Context scratch(EVP_MD_CTX_new(), EVP_MD_CTX_free);
    EVP_MD_CTX_copy_ex(scratch.get(), inner_.get());
    EVP_DigestUpdate(scratch.get(), text.data(), text.size());
    EVP_DigestFinal_ex(scratch.get(), digest.data(), nullptr);
    EVP_MD_CTX_copy_ex(scratch.get(), outer_.get());
    EVP_DigestUpdate(scratch.get(), digest.data(), digest.size());
    EVP_DigestFinal_ex(scratch.get(), digest.data(), nullptr);
    return digest;
  }

 private:
  using Context = std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)>;

  static Context start(std::string_view key, unsigned char pad) {
    std::array<unsigned char, 64> block{};  // SHA-256's
    if (key.size() > block.size()) {
      std::ranges::copy(sha256(key), block.begin());
    } else {
      std::ranges::copy(key, block.begin());
    }
    for (unsigned char& byte : block) byte ^= pad;
    Context context(EVP_MD_CTX_new(), EVP_MD_CTX_free);
    EVP_DigestInit_ex(context.get(), sha256_algorithm(), nullptr);
    EVP_DigestUpdate(context.get(), block.data(), block.size());
    return context;
  }

  Context inner_, outer_;
};

std::string_view view(const Digest& digest) {
  // SAFETY: bytes as characters.
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

void append_hex(std::string& out, const Digest& digest) {
  out += hex(view(digest));
}

// "20261121T120000Z"; its first eight characters are the day.
std::string amz_date(std::chrono::system_clock::time_point time) {
  const auto seconds = std::chrono::floor<std::chrono::seconds>(time);
  const auto day = std::chrono::floor<std::chrono::days>(seconds);
  const std::chrono::year_month_day date(day);
  const std::chrono::hh_mm_ss clock(seconds - day);
  return fmt::format("{:04}{:02}{:02}T{:02}{:02}{:02}Z", static_cast<int>(date.year()),
                     static_cast<unsigned>(date.month()), static_cast<unsigned>(date.day()), clock.hours().count(),
                     clock.minutes().count(), clock.seconds().count());
}

std::string canonical_query(std::span<const Field> query) {
  std::vector<Field> encoded;
  encoded.reserve(query.size());
  for (const Field& field : query) {
    encoded.emplace_back(uri_encode(field.first, false), uri_encode(field.second, false));
  }
  std::ranges::sort(encoded);
  std::string out;
  for (const Field& field : encoded) {
    if (!out.empty()) out += '&';
    out += field.first;
    out += '=';
    out += field.second;
  }
  return out;
}

// Trims the ends, and replaces each run of blanks inside by one space.
void append_header_value(std::string& out, std::string_view value) {
  const size_t begin = out.size();
  bool gap = false;
  for (const char c : value) {
    if (is_space(c)) {
      gap = true;
      continue;
    }
    if (gap && out.size() > begin) out += ' ';
    gap = false;
    out += c;
  }
}

struct CanonicalHeaders {
  std::string lines;  // "name:value\n" each
  std::string names;  // "a;b;c"
};

CanonicalHeaders canonical_headers(const SignInput& input, std::span<const Field> ours) {
  std::vector<std::pair<std::string, std::string_view>> all{{"host", input.host}};
  for (const auto& fields : {input.headers, ours}) {
    for (const Field& field : fields) all.emplace_back(lower_case(field.first), field.second);
  }
  // Values of one name keep their order.
  std::ranges::stable_sort(all, {}, [](const auto& each) -> const std::string& { return each.first; });
  CanonicalHeaders out;
  for (size_t i = 0; i < all.size(); ++i) {
    if (i > 0 && all[i].first == all[i - 1].first) {
      out.lines.back() = ',';
    } else {
      if (i > 0) out.names += ';';
      out.names += all[i].first;
      out.lines += all[i].first;
      out.lines += ':';
    }
    append_header_value(out.lines, all[i].second);
    out.lines += '\n';
  }
  return out;
}

// The key of a day takes four HMACs, so the last two are kept: a copy may go from one account to another.
struct DayKey {
  std::string secret, day, region, service;
  std::optional<Hmac> with_key;
};

const Hmac& day_key(std::string_view secret, std::string_view day, std::string_view region, std::string_view service) {
  thread_local std::array<DayKey, 2> kept;
  thread_local size_t oldest = 0;
  for (const DayKey& each : kept) {
    if (each.day == day && each.secret == secret && each.region == region && each.service == service) {
      return *each.with_key;
    }
  }
  const Digest of_day = Hmac(fmt::format("AWS4{}", secret))(day);
  const Digest of_region = Hmac(view(of_day))(region);
  const Digest of_service = Hmac(view(of_region))(service);
  const Digest key = Hmac(view(of_service))("aws4_request");
  DayKey& slot = kept[oldest];
  oldest = (oldest + 1) % kept.size();
  slot = {std::string(secret), std::string(day), std::string(region), std::string(service), Hmac(view(key))};
  return *slot.with_key;
}

}  // namespace

std::string host_header(std::string_view url) {
  const size_t scheme = url.find("://");
  if (scheme == std::string_view::npos) return {};
  std::string_view host = url.substr(scheme + 3);
  host = host.substr(0, host.find_first_of("/?#"));
  const std::string_view own_port = url.starts_with("https") ? ":443" : ":80";
  if (host.ends_with(own_port)) host.remove_suffix(own_port.size());
  return std::string(host);
}

std::string sha256_hex(std::string_view bytes) {
  std::string out;
  append_hex(out, sha256(bytes));
  return out;
}

Signed sign(const Credentials& credentials, const SignInput& input) {
  Signed out;
  out.query = canonical_query(input.query);
  if (credentials.anonymous()) return out;

  std::string date = amz_date(input.time);
  const std::string day = date.substr(0, 8);
  out.headers.reserve(4);
  out.headers.emplace_back("x-amz-date", std::move(date));
  if (input.service == "s3") out.headers.emplace_back("x-amz-content-sha256", input.payload_hash);
  if (!credentials.session_token.empty()) out.headers.emplace_back("x-amz-security-token", credentials.session_token);

  const CanonicalHeaders headers = canonical_headers(input, out.headers);
  std::string request;
  request.reserve(512);
  for (const std::string_view line : {input.method, input.path, std::string_view(out.query),
                                      std::string_view(headers.lines), std::string_view(headers.names)}) {
    request += line;
    request += '\n';
  }
  request += input.payload_hash;

  const std::string scope = fmt::format("{}/{}/{}/aws4_request", day, input.region, input.service);
  std::string to_sign = fmt::format("AWS4-HMAC-SHA256\n{}\n{}\n", out.headers.front().second, scope);
  append_hex(to_sign, sha256(request));

  std::string authorization = fmt::format(
      "AWS4-HMAC-SHA256 Credential={}/{}, SignedHeaders={}, Signature=", credentials.access_key, scope, headers.names);
  append_hex(authorization, day_key(credentials.secret_key, day, input.region, input.service)(to_sign));
  out.headers.emplace_back("Authorization", std::move(authorization));
  return out;
}

}  // namespace millrace::aws
