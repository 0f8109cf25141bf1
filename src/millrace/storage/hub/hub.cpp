// SPDX-License-Identifier: Apache-2.0
#include "millrace/storage/hub/hub.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "millrace/base/io/path.h"
#include "millrace/base/text/edit_distance.h"
#include "millrace/http/numbers.h"
#include "millrace/storage/detail/backend.h"
#include "millrace/storage/hub/detail/api.h"
#include "millrace/storage/hub/detail/names.h"
#include "millrace/storage/hub/detail/reader.h"

namespace millrace {
namespace hub {
namespace {

constexpr size_t kMostRevisions = 12, kMostSimilar = 3;  // in a message
constexpr std::string_view kOwnFolder = ".millrace/";

// What one request for a listing answered. A commit never changes, so a listing stays true.
struct Listing {
  std::string folder;  // without '/' at its end
  bool recursive = false;
  std::vector<TreeEntry> entries;  // by path

  bool covers(std::string_view key) const { return recursive && (folder.empty() || key.starts_with(folder + "/")); }
  const TreeEntry* find(std::string_view key) const {
    const auto found =
        std::lower_bound(entries.begin(), entries.end(), key,
                         [](const TreeEntry& entry, std::string_view path) { return entry.path < path; });
    return found == entries.end() || found->path != key ? nullptr : &*found;
  }
};

// What all storages of one repository and revision know.
struct Known {
  Mutex mutex;
  std::optional<HubCommit> commit GUARDED_BY(mutex);
  std::shared_ptr<const Listing> tree GUARDED_BY(mutex);   // the last recursive one
  std::shared_ptr<const Listing> level GUARDED_BY(mutex);  // the last other one
};

// The prefix of one level: "a/b/" of "a/b/c/d" where all begin with `prefix` "a/"; empty for a file of the level.
std::string_view level_of(std::string_view path, size_t prefix_size) {
  const size_t slash = path.find('/', prefix_size);
  return slash == path.npos ? std::string_view() : path.substr(0, slash + 1);
}

std::string names_of(const std::vector<HubRef>& refs) {
  std::string names;
  for (size_t i = 0; i < std::min(refs.size(), kMostRevisions); ++i) names += (i > 0 ? ", " : "") + refs[i].name;
  return names + (refs.size() > kMostRevisions ? " and more" : "");
}

class RepoStorage final : public HubStorage {
 public:
  RepoStorage(Client& client, HubRepo repo, std::string revision, std::stop_token stop)
      : revision_(revision.empty() ? "main" : revision),
        view_{client, repo, repo.url() + (revision.empty() ? "" : "@" + revision), std::move(stop)} {}
  RepoStorage(const RepoStorage& other, std::stop_token stop)
      : revision_(other.revision_), view_(other.view_), known_(other.known_) {
    view_.stop = std::move(stop);
  }
  std::shared_ptr<Storage> with_stop(std::stop_token stop) const override {
    return std::make_shared<RepoStorage>(*this, std::move(stop));
  }

  std::string_view name() const override { return view_.name; }
  Capabilities capabilities() const override { return {}; }
  const HubRepo& repo() const override { return view_.repo; }
  const HubOptions& options() const override { return view_.client.options(); }

  [[nodiscard]] Result<HubCommit> commit() override;
  void pin(const HubCommit& commit) override {
    MutexLock lock(known_->mutex);
    known_->commit = commit;
  }
  [[nodiscard]] Result<std::vector<HubRef>> refs() override { return fetch_refs(view_); }
  std::vector<std::string> similar_repos(size_t most) const override;

  [[nodiscard]] Result<std::unique_ptr<RandomReader>> open_read(std::string_view key,
                                                                const OpenOptions& options) override;
  [[nodiscard]] Result<ObjectInfo> stat(std::string_view key) override;
  [[nodiscard]] Result<std::optional<ContentChecksum>> checksum(const ObjectInfo& object) override {
    return checksum_of_version(object.version);
  }
  [[nodiscard]] Result<ListPage> list(std::string_view prefix, const ListOptions& options) override;
  void submit(std::span<const Operation> operations, CompletionQueue& queue) override;

  [[nodiscard]] Result<std::unique_ptr<Writer>> open_write(std::string_view, const WriteOptions&) override {
    return read_only("write to");
  }
  [[nodiscard]] Status remove(std::span<const std::string>) override { return read_only("remove from"); }
  [[nodiscard]] Result<std::vector<ObjectInfo>> list_uploads(std::string_view) override {
    return std::vector<ObjectInfo>();
  }
  [[nodiscard]] Status abort_uploads(std::span<const ObjectInfo>) override { return read_only("write to"); }
  [[nodiscard]] Status make_durable(std::span<const std::string>) override { return read_only("write to"); }
  [[nodiscard]] Result<FreeSpace> free_space(std::string_view) override { return read_only("write to"); }

 private:
  tl::unexpected<Error> read_only(std::string_view what) const {
    return fail(ErrorCode::kUnsupported, "{} {}: hf:// can only be read; the Hub's own tools upload (hf upload)", what,
                view_.name);
  }
  std::string url_of(std::string_view key) const { return fmt::format("{}/{}", view_.name, key); }
  Error explain(Error error) const;
  tl::unexpected<Error> no_such_file(std::string_view key);
  std::shared_ptr<const Listing> listing_of(std::string_view folder, bool recursive);
  [[nodiscard]] Result<std::shared_ptr<const Listing>> fetch_listing(std::string_view folder, bool recursive);
  [[nodiscard]] Result<ObjectInfo> look_up(std::string_view key);
  [[nodiscard]] Result<ObjectInfo> head(std::string_view key, const HubCommit& commit);
  ObjectInfo info_of(const TreeEntry& entry, const HubCommit& commit) const {
    const auto modified = entry.modified.time_since_epoch().count() == 0 ? commit.modified : entry.modified;
    return {.key = entry.path, .size = entry.size, .version = entry.version, .modified = modified};
  }

  const std::string revision_;
  RepoView view_;
  std::shared_ptr<Known> known_ = std::make_shared<Known>();
};

// ---- the commit

Result<HubCommit> RepoStorage::commit() {
  {
    MutexLock lock(known_->mutex);
    if (known_->commit) return *known_->commit;
  }
  auto found = fetch_commit(view_, revision_);
  if (!found) return tl::unexpected(explain(std::move(found).error()));
  MutexLock lock(known_->mutex);
  if (!known_->commit) known_->commit = *found;  // else another thread was first, and all read what it found
  return *known_->commit;
}

// A message about what is not there also says what is.
Error RepoStorage::explain(Error error) const {
  if (error.code() != ErrorCode::kNotFound || view_.stop.stop_requested()) return error;
  if (const auto refs = fetch_refs(view_); refs && !refs->empty()) {
    return Error(error.code(), fmt::format("{}; it has {}", error.message(), names_of(*refs)));
  }
  using Kind = HubRepo::Kind;
  for (const Kind kind : {Kind::kDataset, Kind::kModel}) {
    RepoView other = view_;
    other.repo.kind = kind;
    if (kind == view_.repo.kind || !fetch_refs(other)) continue;
    return Error(error.code(),
                 fmt::format("{}; there is a {}: {}", error.message(), other.repo.kind_name(), other.repo.url()));
  }
  const std::vector<std::string> similar = similar_repos(kMostSimilar);
  if (similar.empty()) return error;
  return Error(error.code(), fmt::format("{}; did you mean {}?", error.message(), fmt::join(similar, ", ")));
}

std::vector<std::string> RepoStorage::similar_repos(size_t most) const {
  const std::string name = view_.repo.id.substr(view_.repo.id.find('/') + 1);
  // The Hub finds names that hold the text, so a part of the name finds more.
  std::vector<std::string> found;
  for (const size_t size : {name.size(), name.find_first_of("_-."), name.size() / 2, size_t{0}}) {
    if (!found.empty() || view_.stop.stop_requested()) break;
    if (size == name.npos) continue;
    if (auto ids = search_repos(view_, std::string_view(name).substr(0, size))) found = *std::move(ids);
  }
  const auto distance = [&](const std::string& id) { return edit_distance(id, view_.repo.id); };
  std::erase_if(found, [&](const std::string& id) { return distance(id) > name.size() / 2; });
  std::stable_sort(found.begin(), found.end(), [&](const auto& a, const auto& b) { return distance(a) < distance(b); });
  if (found.size() > most) found.resize(most);
  return found;
}

// ---- listings

std::shared_ptr<const Listing> RepoStorage::listing_of(std::string_view folder, bool recursive) {
  Known& known = *known_;
  MutexLock lock(known.mutex);
  if (known.tree && (known.tree->folder == folder || known.tree->covers(folder))) return known.tree;
  return !recursive && known.level && known.level->folder == folder ? known.level : nullptr;
}

Result<std::shared_ptr<const Listing>> RepoStorage::fetch_listing(std::string_view folder, bool recursive) {
  if (auto known = listing_of(folder, recursive)) return known;
  ASSIGN_OR_RETURN(const HubCommit at, commit());
  auto fresh = std::make_shared<Listing>();
  fresh->folder = folder;
  fresh->recursive = recursive;
  ASSIGN_OR_RETURN(fresh->entries, fetch_tree(view_, at.id, folder, recursive));
  MutexLock lock(known_->mutex);
  (recursive ? known_->tree : known_->level) = fresh;
  return fresh;
}

Result<ListPage> RepoStorage::list(std::string_view prefix, const ListOptions& options) {
  RETURN_IF_ERROR(check_listing(prefix, options));
  ASSIGN_OR_RETURN(const auto listing, fetch_listing(folder_of(prefix), options.recursive));
  ASSIGN_OR_RETURN(const HubCommit at, commit());
  ListPage page;
  const std::string& token = options.page_token;
  auto entry = std::lower_bound(listing->entries.begin(), listing->entries.end(), std::max(token, std::string(prefix)),
                                [](const TreeEntry& each, const std::string& path) { return each.path < path; });
  std::string last;
  for (; entry != listing->entries.end() && entry->path.starts_with(prefix); ++entry) {
    const std::string_view folded = options.recursive ? std::string_view() : level_of(entry->path, prefix.size());
    const std::string_view item = folded.empty() ? entry->path : folded;
    if (item <= token || item == last) continue;
    if (std::ssize(page.objects) + std::ssize(page.prefixes) == options.max_keys) {
      page.next_page_token = last;
      break;
    }
    last = item;
    if (folded.empty()) {
      page.objects.push_back(info_of(*entry, at));
    } else {
      page.prefixes.emplace_back(folded);
    }
  }
  return page;
}

// ---- files

Result<ObjectInfo> RepoStorage::look_up(std::string_view key) {
  RETURN_IF_ERROR(check_key(key));
  ASSIGN_OR_RETURN(const HubCommit at, commit());
  const auto listing = listing_of(folder_of(key), true);
  if (!listing) return head(key, at);
  if (const TreeEntry* const entry = listing->find(key); entry != nullptr) return info_of(*entry, at);
  return fail(ErrorCode::kNotFound, "{}: no such file", url_of(key));
}

Result<ObjectInfo> RepoStorage::stat(std::string_view key) {
  return look_up(key);
}

Result<ObjectInfo> RepoStorage::head(std::string_view key, const HubCommit& at) {
  Question question{.method = http::Method::kHead, .url = file_url(view_, at.id, key), .name = url_of(key)};
  question.follows = false;
  question.stop = view_.stop;
  Result<Answer> answer = view_.client.fetch(question);
  // A repository that was renamed, or moved to another path of the endpoint, redirects to itself.
  for (int hops = 0; answer && hops < web::kMostRedirects && answer->response.status / 100 == 3; ++hops) {
    if (!answer->response.header("x-linked-size").empty()) break;
    ASSIGN_OR_RETURN(question.url, web::redirect_target(answer->url, answer->response, question.name));
    if (!view_.client.is_at_endpoint(question.url)) break;
    answer = view_.client.fetch(question);
  }
  if (!answer) return tl::unexpected(std::move(answer).error());
  const http::Response& said = answer->response;
  if (said.status != 200 && said.status / 100 != 3) return error_of(*answer, view_, question.name);
  const bool is_linked = !said.header("x-linked-etag").empty();
  const auto size = http::whole_number<int64_t>(
      said.header(said.header("x-linked-size").empty() ? "content-length" : "x-linked-size"));
  const std::string_view version = bare_etag(said.header(is_linked ? "x-linked-etag" : "etag"));
  if (size && !version.empty()) {
    return ObjectInfo{.key = std::string(key), .size = *size, .version = std::string(version), .modified = at.modified};
  }
  return fail(ErrorCode::kUnsupported, "{}: the Hub does not tell its size and version", question.name);
}

// Names what is like it, where the listing is known.
tl::unexpected<Error> RepoStorage::no_such_file(std::string_view key) {
  std::string near;
  size_t least = key.size() / 2;
  const bool is_typed = key.find(kOwnFolder) == key.npos;
  const auto listing = is_typed ? fetch_listing(folder_of(key), false) : std::shared_ptr<const Listing>();
  for (const TreeEntry& entry : listing && *listing ? (*listing)->entries : std::vector<TreeEntry>()) {
    const size_t steps = edit_distance(entry.path, key);
    if (entry.path.ends_with('/') || steps >= least) continue;
    least = steps;
    near = entry.path;
  }
  return fail(ErrorCode::kNotFound, "{}: no such file{}", url_of(key),
              near.empty() ? "" : fmt::format("; did you mean {}?", near));
}

Result<std::unique_ptr<RandomReader>> RepoStorage::open_read(std::string_view key, const OpenOptions& options) {
  RETURN_IF_ERROR(check_key(key));
  ASSIGN_OR_RETURN(const HubCommit at, commit());
  ObjectInfo info{.size = options.known_size.value_or(0), .version = options.expected_version};
  if (!options.known_size || options.expected_version.empty()) {
    auto found = look_up(key);
    if (!found && found.error().code() == ErrorCode::kNotFound) return no_such_file(key);
    if (!found) return tl::unexpected(std::move(found).error());
    info = *std::move(found);
  }
  if (!options.expected_version.empty() && options.expected_version != info.version) {
    return fail(ErrorCode::kCorruption, "open {}: version {}, not {} as expected", url_of(key), info.version,
                options.expected_version);
  }
  return std::make_unique<Reader>(
      std::make_shared<File>(view_, std::string(key), at.id, info.size, std::move(info.version)));
}

void RepoStorage::submit(std::span<const Operation> operations, CompletionQueue& queue) {
  submit_reads(operations, queue, view_.name);
}

}  // namespace
}  // namespace hub

Result<std::shared_ptr<HubStorage>> open_hub_storage(const HubRepo& repo, const std::string& revision,
                                                     const HubOptions& options, std::stop_token stop) {
  if (!hub::is_repo_id(repo.id)) {
    return fail(ErrorCode::kInvalidArgument, "\"{}\" is no name of a repository of the Hub: it is ORG/NAME", repo.id);
  }
  if (!hub::is_revision(revision)) {
    return fail(ErrorCode::kInvalidArgument, "\"{}\" is no branch, tag or commit", revision);
  }
  ASSIGN_OR_RETURN(hub::Client * client, hub::Client::find(options));
  return std::make_shared<hub::RepoStorage>(*client, repo, revision, std::move(stop));
}

}  // namespace millrace
