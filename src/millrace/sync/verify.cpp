// SPDX-License-Identifier: Apache-2.0
#include "millrace/sync/verify.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <memory>
#include <utility>

#include "millrace/base/log.h"
#include "millrace/base/thread/executor.h"
#include "millrace/storage/local/local.h"
#include "millrace/sync/cp.h"
#include "millrace/sync/detail/content_hash.h"
#include "millrace/sync/detail/etag_match.h"
#include "millrace/sync/detail/sidecar.h"
#include "millrace/sync/entries.h"
#include "millrace/sync/record.h"

namespace millrace::sync {
namespace {

using Finding = VerifyOptions::Finding;
using Effort = VerifyOptions::Effort;

class Verifier {
 public:
  Verifier(Storage& source, Storage& target, const VerifyOptions& options, std::stop_token stop, Progress* progress)
      : source_(source), target_(target), options_(options), stop_(std::move(stop)), progress_(progress) {}

  Status trees(const Location& from, const Location& to) {
    EntryWalk left(from, {.follow_links = options_.follow_links, .filter = &options_.filter, .stop = stop_});
    EntryWalk right(to, {.filter = &options_.filter, .stop = stop_});
    std::unique_ptr<RecordReader> record;
    if (options_.effort == Effort::kRecorded) {
      if (auto opened = RecordReader::open(*to.storage, prefix_of(to) + record_path(from))) record = std::move(*opened);
    }
    Plan plan([&] { return left.next(); }, [&] { return right.next(); },
              [&]() -> Result<std::optional<RecordEntry>> {
                if (!record) return std::nullopt;
                return record->next();
              },
              [](std::string_view) { return false; }, {.compare = CompareBy::kUsual});
    Executor executor(options_.files_at_once, "mr-verify");
    Status end;
    for (;;) {
      auto action = plan.next();
      if (!action) {
        end = tl::unexpected<Error>(std::move(action).error());
        break;
      }
      if (!*action) break;
      begin(executor, **action);
      settle(2 * static_cast<size_t>(options_.files_at_once));
    }
    settle(0);
    RETURN_IF_ERROR(std::move(end));
    return stop_.stop_requested() ? fail(ErrorCode::kCancelled, "stopped") : Status();
  }

  Status objects(const ObjectInfo& source, const ObjectInfo& target) {
    Executor executor(1, "mr-verify");
    Action action{.path = source.key.substr(source.key.rfind('/') + 1), .source = source, .target = target};
    action.size = source.size;
    begin(executor, action);
    settle(0);
    return stop_.stop_requested() ? fail(ErrorCode::kCancelled, "stopped") : Status();
  }

  VerifyReport& report() { return report_; }

 private:
  struct Pending {
    Finding finding;
    bool cancelled = false;
    bool done = false;
  };

  void begin(Executor& executor, const Action& action) {
    auto pending = std::make_shared<Pending>();
    pending->finding.path = action.path;
    pending->finding.size = action.size;
    open_.push_back(pending);
    pending->done = decide(action, pending->finding);
    if (pending->done) return;
    {
      MutexLock lock(mutex_);
      ++working_;
    }
    executor.submit([this, pending, source = action.source, target = action.target] {
      read(source, target, *pending);
      MutexLock lock(mutex_);
      pending->done = true;
      --working_;
      changed_.notify_all();
    });
  }

  // True when the answer needs no reading.
  bool decide(const Action& action, Finding& finding) const {
    using Is = Finding::Kind;
    const auto say = [&](Is kind, std::string reason) {
      finding.kind = kind;
      finding.reason = std::move(reason);
      return true;
    };
    const auto proved = [&](Proof proof) {
      finding.proof = proof;
      return true;
    };
    if (action.kind == Action::Kind::kExtra) return say(Is::kExtra, action.reason);
    if (action.kind == Action::Kind::kPass) return say(Is::kPassed, action.reason);
    if (action.kind == Action::Kind::kUnreadable) return say(Is::kUnreadable, action.reason);
    if (action.kind == Action::Kind::kRefuse) return say(Is::kMissing, action.reason);
    if (action.target.key.empty()) return say(Is::kMissing, "not at the target");
    if (action.target.kind != ObjectKind::kFile) return say(Is::kDifferent, "no file at the target");
    if (action.source.size != action.target.size) {
      return say(Is::kDifferent, fmt::format("{} bytes, not {}", action.target.size, action.source.size));
    }
    if (options_.effort == Effort::kSize) return proved(Proof::kSize);
    if (options_.effort != Effort::kRecorded) return false;
    const auto& recorded = action.recorded;
    if (recorded && recorded->hash && is_version(recorded->source, action.source) &&
        is_version(recorded->target, action.target)) {
      return proved(Proof::kRecorded);
    }
    const std::string_view left = etag_of(source_, action.source);
    const std::string_view right = etag_of(target_, action.target);
    // Two that differ are no proof: an object that is encrypted with a key has an ETag of the same look.
    return !left.empty() && left == right && proved(Proof::kEtag);
  }

  // On a thread of the executor.
  void read(const ObjectInfo& source, const ObjectInfo& target, Pending& pending) {
    if (options_.effort == Effort::kRecorded && is_proven(source, target)) {
      pending.finding.proof = Proof::kEtag;
      if (progress_ != nullptr) progress_->add(source.size, 0);
      return;
    }
    const Result<Hash128> left = hash_of(source_, source, pending.finding, progress_);
    const Result<Hash128> right = left ? hash_of(target_, target, pending.finding, nullptr) : left;
    if (!right) {
      pending.cancelled = right.error().code() == ErrorCode::kCancelled;
      pending.finding.kind = Finding::Kind::kUnreadable;
      pending.finding.reason = right.error().to_string();
    } else if (*left != *right) {
      pending.finding.kind = Finding::Kind::kDifferent;
      pending.finding.reason = "other content";
    }
  }

  // Whether the one that is here is what the ETag of the other, in S3, says: then only the one is read. Where anything
  // else is known of the other, that decides.
  bool is_proven(const ObjectInfo& source, const ObjectInfo& target) const {
    const std::string_view left = etag_of(source_, source), right = etag_of(target_, target);
    if (left.empty() == right.empty()) return false;
    Storage& here = left.empty() ? source_ : target_;
    const ObjectInfo& mine = left.empty() ? source : target;
    const auto beside = load_beside(left.empty() ? target_ : source_, left.empty() ? target : source);
    if (!beside || *beside) return false;
    const OwnContentScope own;
    const auto content = here.open_read(mine.key, {.expected_version = mine.version, .known_size = mine.size});
    if (!content) return false;
    const auto proven = prove_by_etag(**content, left.empty() ? right : left, stop_);
    return proven && *proven;
  }

  static Result<std::optional<formats::BlockHashes>> load_beside(Storage& storage, const ObjectInfo& object) {
    if (object.size <= kBlockBytes) return std::nullopt;
    return load_sidecar(storage, object);
  }

  Result<Hash128> hash_of(Storage& storage, const ObjectInfo& object, Finding& finding, Progress* progress) const {
    if (options_.effort == Effort::kRecorded) {
      ASSIGN_OR_RETURN(const auto beside, load_beside(storage, object));
      if (beside) {
        finding.proof = Proof::kSidecar;
        return beside->object_hash;
      }
    }
    return hash_object(storage, object, stop_, progress);
  }

  void settle(size_t working) {
    for (;;) {
      std::shared_ptr<Pending> ended;
      {
        MutexLock lock(mutex_);
        if (!open_.empty() && open_.front()->done) {
          ended = std::move(open_.front());
          open_.pop_front();
        } else if (working_ <= working && open_.size() <= kOpen) {
          return;
        } else {
          changed_.wait(mutex_);
          continue;
        }
      }
      if (!ended->cancelled) count(ended->finding);
    }
  }

  void count(const Finding& finding) {
    using Is = Finding::Kind;
    const bool at_source = finding.kind != Is::kExtra && finding.kind != Is::kPassed;
    if (at_source) {
      ++report_.files;
      report_.bytes += finding.size;
      if (progress_ != nullptr) progress_->add(0, 1);
      if (progress_ != nullptr && finding.kind != Is::kSame) progress_->add_failed();
    }
    report_.same += finding.kind == Is::kSame;
    report_.different += finding.kind == Is::kDifferent;
    report_.missing += finding.kind == Is::kMissing;
    report_.extra += finding.kind == Is::kExtra;
    report_.unreadable += finding.kind == Is::kUnreadable;
    report_.passed += finding.kind == Is::kPassed;
    if (finding.kind == Is::kSame) {
      report_.by_content += finding.proof == Proof::kContent;
      report_.by_record += finding.proof == Proof::kRecorded;
      report_.by_sidecar += finding.proof == Proof::kSidecar;
      report_.by_etag += finding.proof == Proof::kEtag;
      report_.by_size += finding.proof == Proof::kSize;
    }
    if (options_.on_file) options_.on_file(finding);
  }

  static constexpr size_t kOpen = 10'000;  // begun or waiting for an earlier one: some MB

  Storage& source_;
  Storage& target_;
  const VerifyOptions& options_;
  const std::stop_token stop_;
  Progress* const progress_;
  VerifyReport report_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<std::shared_ptr<Pending>> open_;  // of the thread that calls; `done` of those at work is under the mutex
  size_t working_ GUARDED_BY(mutex_) = 0;
};

}  // namespace

std::string_view proof_name(Proof proof) {
  switch (proof) {
    case Proof::kContent:
      return "content";
    case Proof::kRecorded:
      return "recorded";
    case Proof::kSidecar:
      return "sidecar";
    case Proof::kEtag:
      return "etag";
    case Proof::kSize:
      break;
  }
  return "size";
}

std::string_view finding_name(Finding::Kind kind) {
  switch (kind) {
    case Finding::Kind::kSame:
      return "same";
    case Finding::Kind::kDifferent:
      return "different";
    case Finding::Kind::kMissing:
      return "missing";
    case Finding::Kind::kExtra:
      return "extra";
    case Finding::Kind::kUnreadable:
      return "unreadable";
    case Finding::Kind::kPassed:
      break;
  }
  return "passed";
}

Result<VerifyReport> verify(const std::string& source, const std::string& target, const VerifyOptions& options,
                            std::stop_token stop, Progress* progress) {
  const auto start = Clock::now();
  ASSIGN_OR_RETURN(Found from, find(source));
  ASSIGN_OR_RETURN(const Found to, find(target, from.is_folder ? FindAs::kFolder : FindAs::kNamed));
  if (to.is_folder && !from.is_folder) {
    ASSIGN_OR_RETURN(from, find(source, FindAs::kFolder));
  }
  if (from.is_folder != to.is_folder) {
    return fail(ErrorCode::kInvalidArgument, "{} is {}, and {} is {}", source,
                from.is_folder ? "a folder" : "an object", target, to.is_folder ? "a folder" : "an object");
  }
  Verifier verifier(*from.location.storage, *to.location.storage, options, std::move(stop), progress);
  if (from.is_folder) {
    RETURN_IF_ERROR(verifier.trees(from.location, to.location));
  } else {
    RETURN_IF_ERROR(verifier.objects(from.object, to.object));
  }
  verifier.report().seconds = std::chrono::duration<double>(Clock::now() - start).count();
  return verifier.report();
}

}  // namespace millrace::sync
