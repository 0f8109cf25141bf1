// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "millrace/storage/hub/detail/names.h"
#include "millrace/storage/hub/hub.h"

namespace millrace {
namespace hub {
namespace {

// Takes what comes before the next '/'; the '/' goes too.
std::string_view take_component(std::string_view& rest) {
  const size_t end = std::min(rest.find('/'), rest.size());
  const std::string_view component = rest.substr(0, end);
  rest.remove_prefix(std::min(end + 1, rest.size()));
  return component;
}

bool take_prefix(std::string_view& rest, std::string_view prefix) {
  if (!rest.starts_with(prefix)) return false;
  rest.remove_prefix(prefix.size());
  return true;
}

std::string with_slashes(std::string_view text) {
  std::string result;
  for (size_t i = 0; i < text.size(); ++i) {
    const std::string_view three = text.substr(i, 3);
    const bool is_slash = three == "%2F" || three == "%2f";
    result += is_slash ? '/' : text[i];
    if (is_slash) i += 2;
  }
  return result;
}

}  // namespace

// The Hub's rule: letters, digits, '-', '_' and '.'; at most 96.
bool is_name(std::string_view text) {
  return !text.empty() && text.size() <= 96 && text.find_first_not_of(".") != text.npos &&
         std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
                  c == '.';
         });
}

bool is_repo_id(std::string_view id) {
  const size_t slash = id.find('/');
  return slash != id.npos && is_name(id.substr(0, slash)) && is_name(id.substr(slash + 1));
}

// Git's rule forbids more; what it forbids is not found.
bool is_revision(std::string_view text) {
  return text.size() <= 255 &&
         std::all_of(text.begin(), text.end(), [](unsigned char c) { return c > ' ' && c < 0x7f; });
}

bool is_commit(std::string_view text) {
  return text.size() == 40 && text.find_first_not_of("0123456789abcdef") == text.npos;
}

}  // namespace hub

std::string_view HubRepo::kind_name() const {
  return kind == Kind::kDataset ? "dataset" : kind == Kind::kSpace ? "space" : "model";
}

std::string HubRepo::url() const {
  return fmt::format("hf://{}{}", kind == Kind::kDataset ? "datasets/" : kind == Kind::kSpace ? "spaces/" : "", id);
}

Result<HubUrl> parse_hub_url(std::string_view rest) {
  const std::string_view typed = rest;
  HubUrl url;
  if (hub::take_prefix(rest, "datasets/")) url.repo.kind = HubRepo::Kind::kDataset;
  if (hub::take_prefix(rest, "spaces/")) url.repo.kind = HubRepo::Kind::kSpace;
  const std::string_view org = hub::take_component(rest);
  std::string_view name = hub::take_component(rest);
  const size_t at = name.find('@');
  if (at != name.npos) {
    std::string revision(name.substr(at + 1));
    name = name.substr(0, at);
    if (revision == "refs") {
      for (int i = 0; i < 2; ++i) revision.append("/").append(hub::take_component(rest));
    }
    url.revision = hub::with_slashes(revision);
  }
  url.repo.id = fmt::format("{}/{}", org, name);
  while (rest.ends_with('/')) rest.remove_suffix(1);
  url.path = rest;
  if (!hub::is_repo_id(url.repo.id) || (at != name.npos && url.revision.empty() && typed.find('@') != typed.npos) ||
      !hub::is_revision(url.revision)) {
    return fail(ErrorCode::kInvalidArgument,
                "\"hf://{}\": a URL of the Hub is hf://[datasets/|spaces/]ORG/NAME[@REVISION][/PATH]", typed);
  }
  if (!url.path.empty()) RETURN_IF_ERROR(check_key(url.path));
  return url;
}

}  // namespace millrace
