// SPDX-License-Identifier: Apache-2.0
#include "millrace/cli/output.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <nlohmann/json.hpp>
#include <utility>

#include "millrace/base/text/units.h"
#include "millrace/base/text/utf8.h"

namespace millrace::cli {

namespace {

using namespace std::chrono_literals;

constexpr size_t kBufferBytes = 64 << 10;
constexpr auto kFlushAfter = 100ms;  // so that a reader behind a pipe sees results as they come
constexpr auto kRedrawEvery = 200ms;
constexpr auto kLineEvery = 5s;

// 0 or the errno of the failed write.
int write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(fd, text.data(), text.size());
    if (written < 0 && errno != EINTR) return errno;
    if (written > 0) text.remove_prefix(static_cast<size_t>(written));
  }
  return 0;
}

size_t terminal_width(int fd) {
  winsize size{};
  return ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

bool is_continuation(char c) {
  return (static_cast<unsigned char>(c) & 0xC0) == 0x80;
}

size_t character_count(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) { return !is_continuation(c); }));
}

std::string json_line(const Json& object) {
  return object.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

double fraction_done(const Progress::Snapshot& s) {
  if (s.total_bytes > 0) return std::min(1.0, static_cast<double>(s.bytes) / static_cast<double>(s.total_bytes));
  if (s.total_items > 0) return std::min(1.0, static_cast<double>(s.items) / static_cast<double>(s.total_items));
  return -1;
}

// A bar of at most `room` characters; empty when that is too short to be useful.
std::string progress_bar(double fraction, size_t room) {
  constexpr size_t kMostCells = 20, kFewestCells = 5, kFrame = 4;
  if (room < kFrame + kFewestCells) return {};
  const size_t cells = std::min(kMostCells, room - kFrame);
  const auto filled = static_cast<size_t>(fraction * static_cast<double>(cells));
  std::string bar(filled, '=');
  if (filled < cells) bar += '>';
  bar.resize(cells, ' ');
  return "  [" + bar + "]";
}

std::string part_text(const Progress::Part& part) {
  constexpr size_t kMostName = 40;
  std::string text = printable(part.name, kMostName);
  if (part.total_bytes > 0)
    text += fmt::format(" {}%", 100 * std::min(part.bytes, part.total_bytes) / part.total_bytes);
  return text;
}

// The files under way, the oldest first, as many as fit `width` characters, and the number of the others.
std::string parts_text(const std::vector<Progress::Part>& parts, size_t width) {
  for (size_t shown = parts.size();; --shown) {
    std::string text;
    for (size_t i = 0; i < shown; ++i) text += "  " + part_text(parts[i]);
    if (shown < parts.size()) text += fmt::format(" and {} more", parts.size() - shown);
    if (shown <= 1 || character_count(text) <= width) return text;
  }
}

// At most `characters` of them.
std::string cut(const std::string& text, size_t characters) {
  size_t end = 0;
  for (size_t seen = 0; end < text.size(); ++end) {
    if (!is_continuation(text[end]) && seen++ == characters) break;
  }
  return text.substr(0, end);
}

std::string amount_done(int64_t done, int64_t total, std::string (*format)(int64_t)) {
  return total > 0 ? fmt::format("  {} of {}", format(done), format(total)) : "  " + format(done);
}

}  // namespace

class Output::View final : public ProgressView {
 public:
  View(Output& output, const Progress& progress, std::string verb)
      : output_(output), progress_(progress), verb_(std::move(verb)), thread_("progress", [this] { run(); }) {}
  ~View() override {
    {
      MutexLock lock(mutex_);
      end_ = true;
    }
    changed_.notify_all();
    thread_.join();
    if (output_.err_is_terminal_) output_.write_err({}, false);
  }

 private:
  void run() {
    const bool redraw = output_.err_is_terminal_;
    for (auto next = Clock::now();;) {
      next += redraw ? Clock::duration(kRedrawEvery) : Clock::duration(kLineEvery);
      {
        MutexLock lock(mutex_);
        while (!end_ && changed_.wait_until(mutex_, next)) {
        }
        if (end_) return;
      }
      const size_t width = redraw ? terminal_width(output_.err_fd_) - 1 : 0;
      output_.write_err(format_progress(progress_.snapshot(), verb_, width), redraw);
    }
  }

  Output& output_;
  const Progress& progress_;
  const std::string verb_;
  Mutex mutex_;
  CondVar changed_;
  bool end_ GUARDED_BY(mutex_) = false;
  Thread thread_;
};

Output::Output(const OutputOptions& options, int out_fd, int err_fd)
    : options_(options),
      out_fd_(out_fd),
      err_fd_(err_fd),
      out_is_terminal_(isatty(out_fd) == 1),
      err_is_terminal_(isatty(err_fd) == 1),
      flushed_(Clock::now()) {
  set_log_sink([this](LogLevel level,
                      std::string_view line) { write_err(fmt::format("{}: {}", log_level_name(level), line), false); },
               options.log);
}

Output::~Output() {
  set_log_sink({}, LogLevel::kError);
}

void Output::print(const Json& object, std::string_view text) {
  if (options_.json) {
    write_out(json_line(object));
  } else {
    write_out(text);
  }
}

void Output::print_done(const Json& object, std::string_view text, bool dry_run) {
  print(object, options_.quiet && !dry_run ? std::string_view() : text);
}

void Output::print_json(const Json& object) {
  if (options_.json) write_out(json_line(object));
}

void Output::print_text(std::string_view text) {
  if (!options_.json) write_out(text);
}

void Output::finding(std::string_view url, const Error& error) {
  const std::string message = error.to_string();
  print({{"type", "finding"},
         {"severity", "error"},
         {"url", url},
         {"code", error_code_name(error.code())},
         {"message", message}},
        "error: " + printable(message) + "\n");
  count_finding();
}

void Output::count_finding() {
  MutexLock lock(mutex_);
  ++findings_;
}

int64_t Output::findings() const {
  MutexLock lock(mutex_);
  return findings_;
}

void Output::note(std::string_view line) {
  if (!options_.quiet) write_err(line, false);
}

void Output::error(std::string_view verb, const Error& error) {
  const std::string message = error.to_string();
  print_json({{"type", "error"}, {"code", error_code_name(error.code())}, {"message", message}});
  write_err(fmt::format("{}: {}", verb, printable(message)), false);
}

std::unique_ptr<ProgressView> Output::watch(const Progress& progress, std::string verb) {
  if (options_.quiet) return std::make_unique<ProgressView>();
  return std::make_unique<View>(*this, progress, std::move(verb));
}

Status Output::flush() {
  MutexLock lock(mutex_);
  flush_locked();
  return failure_;
}

void Output::write_out(std::string_view text) {
  if (text.empty()) return;
  MutexLock lock(mutex_);
  if (out_is_terminal_) write_all(err_fd_, wipe());
  buffer_.append(text);
  if (out_is_terminal_ || buffer_.size() >= kBufferBytes || Clock::now() - flushed_ > kFlushAfter) flush_locked();
}

void Output::flush_locked() {
  const int error = write_all(out_fd_, buffer_);
  // The reader went away. Writes are invisible until they are whole, so ending here leaves no partial file.
  if (error == EPIPE) std::_Exit(128 + SIGPIPE);
  if (error != 0 && failure_) failure_ = tl::unexpected(errno_error(error, "write to standard output"));
  buffer_.clear();
  flushed_ = Clock::now();
}

// The escape sequence that clears the progress from the terminal.
std::string Output::wipe() {
  std::string codes;
  for (; lines_drawn_ > 0; --lines_drawn_) codes += lines_drawn_ > 1 ? "\r\x1b[K\x1b[A" : "\r\x1b[K";
  return codes;
}

// A failure to write to stderr has nowhere to be reported.
void Output::write_err(std::string_view text, bool redrawn) {
  MutexLock lock(mutex_);
  std::string line = wipe();
  line += text;
  if (!redrawn && !text.empty()) line += '\n';
  if (redrawn) lines_drawn_ = 1 + std::count(text.begin(), text.end(), '\n');
  write_all(err_fd_, line);
}

std::string TextTable::to_string() const {
  std::vector<std::vector<std::string>> lines(1);
  for (const Column& column : columns_) lines[0].push_back(column.name);
  for (const auto& row : rows_) {
    auto& line = lines.emplace_back();
    for (const std::string& cell : row) line.push_back(printable(cell));
  }
  std::vector<size_t> widths(columns_.size(), 0);
  for (const auto& line : lines) {
    for (size_t i = 0; i < columns_.size(); ++i) widths[i] = std::max(widths[i], character_count(line[i]));
  }
  std::string text;
  for (const auto& line : lines) {
    for (size_t i = 0; i < columns_.size(); ++i) {
      const std::string padding(widths[i] - character_count(line[i]), ' ');
      text += columns_[i].right ? padding + line[i] : line[i] + padding;
      text += "  ";
    }
    text.erase(text.find_last_not_of(' ') + 1);
    text += '\n';
  }
  return text;
}

std::string printable(std::string_view text, size_t max_characters) {
  // A code point has at most four bytes, so the cut does not show.
  const bool cut_bytes = text.size() / 4 > max_characters;
  std::string clean;
  append_utf8_replaced(cut_bytes ? text.substr(0, 4 * (max_characters + 1)) : text, clean);
  std::string out;
  size_t characters = 0;
  for (size_t i = 0; i < clean.size(); ++i) {
    const auto byte = static_cast<unsigned char>(clean[i]);
    if (!is_continuation(clean[i]) && ++characters > max_characters) return out + "…";
    // U+0080 to U+009F, which some terminals obey, are C2 80 to C2 9F in UTF-8.
    const bool c1 = byte == 0xC2 && static_cast<unsigned char>(clean[i + 1]) < 0xA0;
    if (byte == '\n') {
      out += "\\n";
    } else if (byte == '\t') {
      out += "\\t";
    } else if (byte < 0x20 || byte == 0x7F) {
      out += fmt::format("\\x{:02x}", byte);
    } else if (c1) {
      out += fmt::format("\\u00{:02x}", static_cast<unsigned char>(clean[++i]));
    } else {
      out += clean[i];
    }
  }
  return out;
}

std::string utc_text(const FileTime& time) {
  const time_t value = time.seconds();
  std::tm parts{};
  if (gmtime_r(&value, &parts) == nullptr) return fmt::format("@{}", value);  // its year is no int
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z", int64_t{parts.tm_year} + 1900, parts.tm_mon + 1,
                     parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec);
}

std::string counted(int64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", format_count(count), noun, count == 1 ? "" : noun.ends_with('s') ? "es" : "s");
}

std::string format_progress(const Progress::Snapshot& s, std::string_view verb, size_t width) {
  const double fraction = fraction_done(s);
  std::string name(verb);
  if (!s.phase.empty() && s.phase != verb) name += ": " + s.phase;
  std::string rest;
  if (fraction >= 0) rest += fmt::format("  {:3.0f}%", 100 * fraction);
  if (s.bytes > 0 || s.total_bytes > 0) rest += amount_done(s.bytes, s.total_bytes, format_bytes);
  if (s.items > 0 || s.total_items > 0) rest += amount_done(s.items, s.total_items, format_count);
  if (s.failed > 0) rest += fmt::format("  {} failed", format_count(s.failed));
  if (s.bytes > 0 && s.seconds > 0) rest += "  " + format_rate(static_cast<double>(s.bytes) / s.seconds);
  if (fraction > 0 && fraction < 1) rest += "  ETA " + format_duration(s.seconds * (1 - fraction) / fraction);
  if (width == 0) return name + rest + parts_text(s.parts, 0);
  const size_t taken = character_count(name + rest);
  if (fraction >= 0 && taken < width) name += progress_bar(fraction, width - taken);
  std::string text = cut(name + rest, width);
  if (!s.parts.empty()) text += "\n" + cut(parts_text(s.parts, width), width);
  return text;
}

}  // namespace millrace::cli
