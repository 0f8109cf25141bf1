// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>

#include "millrace/doctor/facts.h"
#include "millrace/jobs/log_tail.h"
#include "millrace/jobs/secrets.h"
#include "millrace/jobs/why.h"

namespace millrace::doctor {

namespace {

// Texts of PyTorch 1.13 to 2.13, Linux 6, Slurm 22.05 to 25, glibc's strerror and Python 3.
constexpr LogSign::Form kReason = LogSign::Form::kReason, kException = LogSign::Form::kException;
constexpr LogSign kSigns[] = {
    {"DR01", "CUDA out of memory. Tried to allocate", ""},
    {"DR01", "CUDA error: out of memory", ""},
    {"DR01", "HIP out of memory. Tried to allocate", ""},
    {"DR01", "CUBLAS_STATUS_ALLOC_FAILED", ""},
    {"DR02", "oom_kill event", ""},
    {"DR02", "oom-kill", ""},
    {"DR02", "Out of memory: Killed process", ""},
    {"DR02", "Memory cgroup out of memory", ""},
    {"DR02", "Some of the step tasks have been OOM Killed", ""},
    {"DR02", "OUT OF MEMORY", "srun: error"},
    {"DR02", "MemoryError", "", kException},
    {"DR02", "what():  std::bad_alloc", ""},
    {"DR02", "'std::bad_alloc'", ""},
    {"DR02", "Error: std::bad_alloc", ""},
    {"DR02", "can't allocate memory: you tried to allocate", ""},
    {"DR02", "Cannot allocate memory", "", kReason},
    {"DR02", "is killed by signal: Killed", "DataLoader worker"},
    {"DR03", "insufficient shared memory (shm)", ""},
    {"DR03", "is killed by signal: Bus error", "DataLoader worker"},
    {"DR03", "No space left on device", "/dev/shm", kReason},
    {"DR03", "No space left on device", "/torch_", kReason},
    {"DR04", "No space left on device", "", kReason},
    {"DR04", "no space left on device", "", kReason},
    {"DR05", "Disk quota exceeded", "", kReason},
    {"DR07", "Too many open files", "", kReason},
    {"DR11", "Watchdog caught collective operation timeout", ""},
    {"DR11", "last enqueued NCCL work", ""},
    {"DR11", "Timed out waiting", "ms for"},
    {"DR11", "Timeout waiting for key", ""},
    {"DR12", "ncclRemoteError", ""},
    {"DR12", "ncclSystemError", ""},
    {"DR12", "Connection refused", ""},
    {"DR12", "Connection reset by peer", ""},
    {"DR12", "Connection closed by peer", ""},
    {"DR12", "Connection timed out", ""},
    {"DR12", "No route to host", ""},
    {"DR13", "NVRM: Xid", ""},
    {"DR13", "fallen off the bus", ""},
    {"DR13", "uncorrectable ECC error", ""},
    {"DR13", "GPU is lost", ""},
    {"DR14", "DUE TO TIME LIMIT", ""},
    {"DR14", "DUE TO PREEMPTION", ""},
    {"DR14", "DUE TO NODE FAILURE", ""},
    {"DR14", "CANCELLED AT", "slurmstepd"},
    {"DR14", "Segmentation fault", ""},
    {"DR15", "Traceback (most recent call last)", ""},
    {"DR29", "SlowDown", "503"},
    {"DR29", "Please reduce your request rate", ""},
};

// Behind "open: ", "[Errno 24] " or "(24: ", and followed by what follows a reason: nothing, its number, a name.
bool is_reason(std::string_view line, size_t at, size_t size) {
  const std::string_view before = line.substr(0, at), behind = line.substr(at + size);
  if (!before.ends_with(": ") && !before.ends_with("] ")) return false;
  return behind.empty() || behind.starts_with(" (") || std::string_view("\r.:;,)'\"").find(behind[0]) != behind.npos;
}

// Nothing but the name of a rank or a label of srun stands before the exception's name and its modules.
bool is_exception(std::string_view line, size_t at, size_t size) {
  const std::string_view behind = line.substr(at + size);
  if (!behind.empty() && behind[0] != ':' && behind[0] != '\r') return false;
  size_t begin = at;
  const auto is_of_name = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.';
  };
  while (begin > 0 && is_of_name(line[begin - 1])) --begin;
  const std::string_view before = line.substr(0, begin);
  const bool label =
      before.ends_with(": ") && before.find_first_not_of("0123456789 :") == std::string_view::npos;  // "3: "
  return before.empty() || label || (before.starts_with('[') && (before.ends_with("]: ") || before.ends_with("] ")));
}

bool shows(std::string_view line, const LogSign& sign) {
  if (!sign.with.empty() && line.find(sign.with) == std::string_view::npos) return false;
  for (size_t at = line.find(sign.text); at != std::string_view::npos; at = line.find(sign.text, at + 1)) {
    if (sign.form == LogSign::Form::kAnywhere) return true;
    if (sign.form == kReason && is_reason(line, at, sign.text.size())) return true;
    if (sign.form == kException && is_exception(line, at, sign.text.size())) return true;
  }
  return false;
}

// The number in "[rank3]", "[Rank 3]", "rank 3:", or of `srun --label` at the begin of a line, "3: "; -1 without one.
int rank_of(std::string_view line) {
  const auto number_at = [&](size_t at) {
    int rank = -1;
    if (at < line.size() && line[at] == ' ') ++at;
    std::from_chars(line.data() + std::min(at, line.size()), line.data() + line.size(), rank);
    return rank;
  };
  for (const std::string_view word : {"[rank", "[Rank", " Rank", " rank"}) {
    for (size_t at = line.find(word); at != std::string_view::npos; at = line.find(word, at + 1)) {
      if (const int rank = number_at(at + word.size()); rank >= 0) return rank;
    }
  }
  const size_t digits = line.find_first_not_of("0123456789 ");
  const bool is_label = digits != std::string_view::npos && digits > 0 && line.substr(digits).starts_with(": ");
  return is_label ? number_at(line.find_first_not_of(' ')) : -1;
}

class LogReader {
 public:
  explicit LogReader(LogFacts& facts) : facts_(facts) {}

  void take(std::string_view text) {
    // Where signs stand, so that lines are looked at only there.
    std::vector<size_t> places;
    for (const LogSign& sign : kSigns) {
      for (size_t at = text.find(sign.text); at != std::string_view::npos; at = text.find(sign.text, at + 1)) {
        places.push_back(at);
      }
    }
    std::sort(places.begin(), places.end());
    size_t counted = 0, done = 0;
    for (const size_t place : places) {
      if (place < done) continue;  // another sign of the same line
      const size_t before = text.rfind('\n', place);
      const size_t begin = before == std::string_view::npos ? 0 : before + 1;
      const size_t end = std::min(text.find('\n', place), text.size());
      facts_.lines += std::count(text.begin() + static_cast<ptrdiff_t>(counted),
                                 text.begin() + static_cast<ptrdiff_t>(begin), '\n');
      counted = begin;
      done = end;
      take_line(text.substr(begin, end - begin));
    }
    if (facts_.first_error.empty()) {
      if (const std::string error = jobs::first_error(text); !error.empty()) {
        const size_t at = text.find(error);
        const auto line = line_begun_ + 1 + std::count(text.begin(), text.begin() + static_cast<ptrdiff_t>(at), '\n');
        facts_.first_error = fmt::format("{}:{}: {}", facts_.path, line, jobs::without_secrets(error));
      }
    }
    facts_.lines += std::count(text.begin() + static_cast<ptrdiff_t>(counted), text.end(), '\n');
    line_begun_ = facts_.lines;
  }

 private:
  void take_line(std::string_view line) {
    constexpr size_t kLongest = 600;
    std::vector<std::string_view> found;
    for (const LogSign& sign : kSigns) {
      if (!shows(line, sign)) continue;
      if (std::find(found.begin(), found.end(), sign.rule) != found.end()) continue;
      // A full /dev/shm is no full disk, and torch.OutOfMemoryError no MemoryError.
      const auto holds = [&](std::string_view rule) {
        return std::find(found.begin(), found.end(), rule) != found.end();
      };
      if ((sign.rule == "DR04" && holds("DR03")) || (sign.rule == "DR02" && holds("DR01"))) continue;
      found.push_back(sign.rule);
      if (++facts_.of[sign.rule] > LogFacts::kMostHits) continue;
      facts_.hits.push_back({.rule = sign.rule,
                             .file = facts_.path,
                             .line = facts_.lines + 1,
                             .rank = rank_of(line),
                             .text = jobs::without_secrets(line.substr(0, kLongest))});
    }
  }

  LogFacts& facts_;
  int64_t line_begun_ = 0;  // lines before this piece
};

}  // namespace

std::span<const LogSign> log_signs() {
  return kSigns;
}

Result<LogFacts> read_log(const std::string& path, const std::stop_token& stop) {
  constexpr int kMostPieces = 256;  // of 1 MiB
  LogFacts facts;
  facts.path = path;
  LogReader reader(facts);
  jobs::LogTail tail(path);
  for (int piece = 0;; ++piece) {
    if (stop.stop_requested()) return fail(ErrorCode::kCancelled, "stopped while reading {}", path);
    ASSIGN_OR_RETURN(const jobs::LogTail::News news, tail.read(true));
    reader.take(news.text);
    if (!news.more) {
      if (!news.text.empty() && news.text.back() != '\n') ++facts.lines;
      return facts;
    }
    if (piece + 1 == kMostPieces) break;
  }
  facts.was_cut = true;
  return facts;
}

}  // namespace millrace::doctor
