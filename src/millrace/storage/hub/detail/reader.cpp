// SPDX-License-Identifier: Apache-2.0
#include "millrace/storage/hub/detail/reader.h"

#include <algorithm>
#include <utility>

#include "millrace/base/log.h"
#include "millrace/storage/hub/detail/names.h"

namespace millrace::hub {
namespace {

constexpr int64_t kPieceBytes = ReadInPieces::kPieceBytes;
constexpr int kTriesOfContent = 3;  // when the content does not match its hash, or too little came
// URLs that the Hub redirects to are signed for an hour; a sixth of it leaves time for the read.
constexpr std::chrono::minutes kLocationAge(10);

bool is_gone(int status) {
  return status == 401 || status == 403 || status == 404 || status == 410;
}

}  // namespace

std::optional<ContentChecksum> checksum_of_version(std::string_view version) {
  if (version.find_first_not_of("0123456789abcdef") != version.npos) return std::nullopt;
  if (version.size() == 64) return ContentChecksum{ContentChecksum::Kind::kSha256, std::string(version)};
  if (version.size() == 40) return ContentChecksum{ContentChecksum::Kind::kGitBlob, std::string(version)};
  return std::nullopt;
}

// ---- a file

File::File(RepoView view, std::string path, std::string commit, int64_t size, std::string version)
    : view_(std::move(view)),
      path_(std::move(path)),
      commit_(std::move(commit)),
      name_(view_.name + "/" + path_),
      url_(file_url(view_, commit_, path_)),
      size_(size),
      version_(std::move(version)) {}

void File::locate(Then then) {
  State& state = state_.get();
  std::string known;
  {
    MutexLock lock(state.mutex);
    if (!state.location.empty() && Clock::now() - state.located < kLocationAge) known = state.location;
    if (known.empty() && size_ > kPieceBytes) {
      state.waiting.push_back(std::move(then));
      if (state.waiting.size() > 1) return;
    }
  }
  if (!known.empty() || size_ <= kPieceBytes) return then(known.empty() ? url_ : known);
  view_.client.start({.method = http::Method::kHead, .url = url_, .name = name_, .follows = false, .stop = view_.stop},
                     [this](const Result<Answer>& answer) { take_location(answer); });
}

void File::take_location(const Result<Answer>& answer) {
  const auto located = [&]() -> Result<std::string> {
    if (!answer) return tl::unexpected(answer.error());
    RETURN_IF_ERROR(check_hub(*answer));
    if (answer->response.status / 100 == 3) return web::redirect_target(answer->url, answer->response, name_);
    if (answer->response.status == 200) return url_;
    return error_of(*answer, view_, name_);
  }();
  std::vector<Then> waiting;
  {
    State& state = state_.get();
    MutexLock lock(state.mutex);
    waiting.swap(state.waiting);
    if (located) {
      state.location = *located;
      state.located = Clock::now();
    }
  }
  for (const Then& then : waiting) then(located);
}

void File::set_location(const std::string& url) {
  State& state = state_.get();
  MutexLock lock(state.mutex);
  if (state.location == url) return;
  state.location = url;
  state.located = Clock::now();
}

void File::forget_location(const std::string& url) {
  State& state = state_.get();
  MutexLock lock(state.mutex);
  if (state.location == url) state.location.clear();
}

Status File::check_hub(const Answer& answer) const {
  const http::Response& said = answer.of_hub();
  const bool is_of_hub = answer.hub || view_.client.is_at_endpoint(answer.url);
  if (!is_of_hub || said.status >= 400) return {};
  const std::string_view commit = said.header("x-repo-commit");
  if (!commit.empty() && commit != commit_) {
    return fail(ErrorCode::kCorruption, "read {}: the Hub answered with commit {}, not {}", name_, commit, commit_);
  }
  const std::string_view linked = bare_etag(said.header("x-linked-etag"));
  const std::string_view etag = linked.empty() && !answer.hub ? bare_etag(said.header("etag")) : linked;
  if (etag.size() != version_.size() || !checksum_of_version(etag) || etag == version_) return {};
  return fail(ErrorCode::kCorruption, "read {}: changed while reading: the Hub has the version {}, not {}", name_, etag,
              version_);
}

// ---- a read

namespace {

class Read final : public ReadInPieces {
 public:
  Read(std::shared_ptr<File> file, const std::stop_token& stop, Clock::time_point deadline, Reader::Done done)
      : ReadInPieces(stop, deadline, std::move(done)), file_(std::move(file)) {}

 private:
  void begin_piece(Piece& piece) override {
    file_->locate([this, self = shared_from_this(), &piece](const Result<std::string>& url) {
      if (!url) return end(tl::unexpected(url.error()));
      ask(piece, *url);
    });
  }

  void ask(Piece& piece, const std::string& url) {
    Question question{.url = url, .name = file_->name(), .out = piece.out, .deadline = deadline_};
    question.headers.push_back(piece.range_header());
    question.stop = stop_.get_token();
    file_->view().client.start(std::move(question), [this, self = shared_from_this(), &piece,
                                                     url](const Result<Answer>& answer) { take(piece, url, answer); });
  }

  void take(Piece& piece, const std::string& asked_url, const Result<Answer>& answer) {
    const Client& client = file_->view().client;
    if (answer && is_gone(answer->response.status) && !client.is_at_endpoint(answer->url)) {
      file_->forget_location(asked_url);
      if (++piece.relocations < kTriesOfContent && !stop_.stop_requested()) return begin_piece(piece);
    }
    Status status = judge(piece, answer);
    if (status && answer->hub) file_->set_location(answer->url);
    const bool is_damage = !status && status.error().code() == ErrorCode::kCorruption && is_whole(piece);
    const bool is_short =
        answer && !status && status.error().code() == ErrorCode::kUnavailable && answer->response.status / 100 == 2;
    if ((is_damage || is_short) && ++piece.tries < kTriesOfContent && !stop_.stop_requested()) {
      log(LogLevel::kWarning, "{}; it is read again", status.error().to_string());
      file_->forget_location(answer ? answer->url : asked_url);
      return begin_piece(piece);
    }
    end(std::move(status));
  }

  bool is_whole(const Piece& piece) const { return piece.offset == 0 && std::ssize(piece.out) == file_->size(); }

  Status judge(const Piece& piece, const Result<Answer>& answer) const {
    const auto no_ranges = [&] {
      return fail(ErrorCode::kUnsupported, "read {}: the server does not answer ranges", file_->name());
    };
    if (!answer) {
      const bool is_longer = answer.error().code() == ErrorCode::kCorruption && !is_whole(piece);
      return is_longer ? Status(no_ranges()) : tl::unexpected(answer.error());
    }
    RETURN_IF_ERROR(file_->check_hub(*answer));
    const http::Response& response = answer->response;
    if (response.status == 416) return changed("it is shorter now");
    if (response.status != 200 && response.status != 206) return error_of(*answer, file_->view(), file_->name());
    if (response.status == 200 && !is_whole(piece)) return no_ranges();
    if (response.status == 206) RETURN_IF_ERROR(check_range(piece, response.content_range()));
    if (response.received_bytes != std::ssize(piece.out)) {
      return fail(ErrorCode::kUnavailable, "read {}: {} of {} bytes arrived", file_->name(), response.received_bytes,
                  piece.out.size());
    }
    return is_whole(piece) ? check_content(piece.out) : Status();
  }

  Status changed(std::string_view how) const {
    return fail(ErrorCode::kCorruption, "read {}: changed while reading: {}", file_->name(), how);
  }

  Status check_range(const Piece& piece, const http::ContentRange& range) const {
    if (range.total.value_or(file_->size()) != file_->size()) {
      return changed(fmt::format("it has {} bytes now, not {}", *range.total, file_->size()));
    }
    if (range.first == piece.offset) return {};
    return fail(ErrorCode::kCorruption, "read {}: the server sent another range than [{}, {})", file_->name(),
                piece.offset, piece.offset + std::ssize(piece.out));
  }

  Status check_content(std::span<const std::byte> content) const {
    const auto told = checksum_of_version(file_->version());
    if (!told) return {};
    const auto came = ContentChecksum::of(told->kind, content);
    if (came == *told) return {};
    return fail(ErrorCode::kCorruption, "read {}: what came has the {} {}, and the Hub keeps {}", file_->name(),
                checksum_name(told->kind), came.digest, told->digest);
  }

  const std::shared_ptr<File> file_;
};

}  // namespace

Reader::Reader(const std::shared_ptr<File>& file)
    : ServiceReader(
          file->size(),
          [file](int64_t offset, std::span<std::byte> out, const std::stop_token& stop, Clock::time_point deadline,
                 Done done) { std::make_shared<Read>(file, stop, deadline, std::move(done))->start(offset, out); },
          file->view().stop),
      file_(file) {}

}  // namespace millrace::hub
