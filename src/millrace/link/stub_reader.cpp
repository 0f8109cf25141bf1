// SPDX-License-Identifier: Apache-2.0
#include "millrace/link/stub_reader.h"

#include "millrace/link/config.h"
#include "millrace/link/state.h"
#include "millrace/link/stub.h"
#include "millrace/storage/local/local.h"
#include "millrace/storage/local/stub_mode.h"

namespace millrace::link {

Result<std::unique_ptr<RandomReader>> open_object(const std::string& url, const std::string& below,
                                                  const ObjectInfo& file, std::string version) {
  ASSIGN_OR_RETURN(const Location there, open_url(url));
  const std::string key = there.child(below).key;
  if (version.empty()) {
    const auto object = there.storage->stat(key);
    if (!object && object.error().code() == ErrorCode::kNotFound) {
      return fail(ErrorCode::kUnavailable, "{}/{} is gone", url, below);
    }
    if (!object) return tl::unexpected<Error>(object.error());
    const bool same_time = object->posix ? object->posix->modified == file.modified : object->modified == file.modified;
    if (object->size != file.size || !same_time) {
      return fail(ErrorCode::kUnavailable, "{}/{} has another size or time", url, below);
    }
    version = object->version;
  }
  auto reader = there.storage->open_read(key, {.expected_version = std::move(version)});
  if (reader || reader.error().code() != ErrorCode::kNotFound) return reader;
  return fail(ErrorCode::kUnavailable, "{}/{} is gone", url, below);
}

namespace {

Result<std::unique_ptr<RandomReader>> open_content(const std::string& path, const ObjectInfo& file) {
  const Error none(ErrorCode::kNotFound, "no file of a link: " + path);
  if (!is_stub(path) && !looks_released(path)) return tl::unexpected<Error>(none);
  const std::string whole = real_path(path);
  const auto links = links_folder();
  const auto linked = links ? find_linked(*links, whole) : tl::unexpected<Error>(links.error());
  if (linked) {
    ASSIGN_OR_RETURN(const auto state, LinkState::open_to_read(linked->home.state_path()));
    ASSIGN_OR_RETURN(const std::optional<LinkFile> known, state->find(linked->below));
    // A stub that was renamed has the content of another path.
    if (!known || known->here.version != file.version) {
      return fail(ErrorCode::kUnavailable, "the link {} does not know it under this name yet", linked->config.name);
    }
    return open_object(linked->config.url, linked->below, file, known->there);
  }
  ASSIGN_OR_RETURN(const auto marked, find_marked(whole));
  if (!marked) return tl::unexpected<Error>(none);
  return open_object(marked->url, marked->below, file, "");
}

// As the link remembers it. A node that has no link does not know.
std::optional<uint32_t> mode_of_content(const std::string& path, const ObjectInfo& file) {
  if (!is_stub(path) && !looks_released(path)) return std::nullopt;
  const auto links = links_folder();
  const auto linked = links ? find_linked(*links, path) : tl::unexpected<Error>(links.error());
  if (!linked) return std::nullopt;
  const auto state = LinkState::open_to_read(linked->home.state_path());
  const auto known = state ? (*state)->find(linked->below) : tl::unexpected<Error>(state.error());
  if (!known || !*known || (*known)->here.version != file.version || (*known)->mode == 0) return std::nullopt;
  return (*known)->mode;
}

}  // namespace

void read_stubs_from_buckets() {
  set_stub_opener(open_content);
  set_stub_mode(mode_of_content);
}

}  // namespace millrace::link
