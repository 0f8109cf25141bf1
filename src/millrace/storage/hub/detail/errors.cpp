// SPDX-License-Identifier: Apache-2.0
#include "millrace/storage/hub/detail/api.h"

namespace millrace::hub {
namespace {

constexpr size_t kMostText = 200;  // of a server's message

// The server's own words in one line. A server may repeat what it was sent.
std::string server_message(const http::Response& response, const std::string& token) {
  std::string text(response.header("x-error-message"));
  for (size_t at = text.find(token); !token.empty() && at != text.npos; at = text.find(token)) {
    text.replace(at, token.size(), "(the token)");
  }
  if (text.size() > kMostText) text = text.substr(0, kMostText) + "...";
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < ' ' || static_cast<unsigned char>(c) >= 0x7f) c = '?';
  }
  return text.empty() ? "" : ": " + text;
}

std::string page_of(const RepoView& view) {
  return view.client.options().endpoint + "/" + view.repo.url().substr(5);
}

tl::unexpected<Error> no_repository(const RepoView& view) {
  const HubOptions& options = view.client.options();
  const std::string what =
      fmt::format("{}: {} has no {} of that name", view.name, options.endpoint, view.repo.kind_name());
  if (options.token.empty()) {
    return fail(ErrorCode::kNotFound, "{}, or it is private: HF_TOKEN, or a login, shows private ones", what);
  }
  return fail(ErrorCode::kNotFound, "{}, or the token of {} may not see it", what, options.token_from);
}

ErrorCode code_of(int status) {
  if (status == 404 || status == 410) return ErrorCode::kNotFound;
  if (status == 401 || status == 403 || status == 407) return ErrorCode::kPermissionDenied;
  return status == 408 || status == 429 || status >= 500 ? ErrorCode::kUnavailable : ErrorCode::kUnsupported;
}

}  // namespace

tl::unexpected<Error> error_of(const Answer& answer, const RepoView& view, std::string_view name) {
  const http::Response& response = answer.response;
  const HubOptions& options = view.client.options();
  const std::string_view code = response.header("x-error-code");
  const int status = response.status;
  const std::string words = server_message(response, options.token);
  if (!view.client.is_at_endpoint(answer.url)) {
    return fail(code_of(status), "read {}: {}, where the Hub keeps it, answered {}", name, web::origin_of(answer.url),
                status);
  }
  if (code == "GatedRepo") {
    return fail(ErrorCode::kPermissionDenied, "{}: access is given on request: ask for it at {}{}", name, page_of(view),
                options.token.empty() ? ", then set HF_TOKEN" : fmt::format(" as the user of {}", options.token_from));
  }
  if (status == 401 && !options.token.empty()) {
    return fail(ErrorCode::kPermissionDenied, "{}: the Hub refuses the token of {}{}", name, options.token_from, words);
  }
  if (code == "RepoNotFound" || status == 401) return no_repository(view);
  if (code == "RevisionNotFound") return fail(ErrorCode::kNotFound, "{}: it has no such revision", view.name);
  if (code == "EntryNotFound") return fail(ErrorCode::kNotFound, "{}: no such file", name);
  if (status == 429) {
    return fail(ErrorCode::kUnavailable, "{}: the Hub limits the rate of requests (429), and a later run may pass{}",
                name, options.token.empty() ? "; with HF_TOKEN it allows more" : "");
  }
  return fail(code_of(status), "{}: the Hub answered {}{}", name, status, words);
}

}  // namespace millrace::hub
