// SPDX-License-Identifier: Apache-2.0
#include "millrace/formats/csv.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <type_traits>

#include "millrace/base/text/utf8.h"
#include "millrace/formats/detail/csv_number.h"
#include "millrace/formats/detail/csv_scan.h"
#include "millrace/formats/text_check.h"

namespace millrace::formats {
namespace {

constexpr std::string_view kUtf8Mark = "\xEF\xBB\xBF";
constexpr std::string_view kDelimiters = ",;\t|";

size_t mark_bytes(std::string_view text) {
  return text.starts_with(kUtf8Mark) ? kUtf8Mark.size() : 0;
}

// "name:line:column" of an offset, both from 1; columns are counted in characters.
std::string place_of(std::string_view text, std::string_view name, size_t offset) {
  size_t line = 1, begin = mark_bytes(text);
  for (size_t i = begin; i < offset; ++i) {
    const bool ends = text[i] == '\n' || (text[i] == '\r' && !text.substr(i + 1).starts_with('\n'));
    if (!ends) continue;
    ++line;
    begin = i + 1;
  }
  const std::string_view before = text.substr(begin, offset - std::min(offset, begin));
  const auto characters = std::ranges::count_if(before, [](char c) { return (c & 0xC0) != 0x80; });
  return fmt::format("{}:{}:{}", name, line, characters + 1);
}

// A cell as a message shows it.
std::string shown(std::string_view cell) {
  constexpr size_t kShown = 40;
  std::string text;
  append_utf8_replaced(cell.substr(0, kShown), text);
  std::ranges::replace_if(text, [](char c) { return static_cast<unsigned char>(c) < ' '; }, ' ');
  return fmt::format("\"{}{}\"", text, cell.size() > kShown ? "..." : "");
}

struct CsvCell {
  std::string_view text;  // without quotes
  size_t begin = 0;       // its offset in the file
  bool quoted = false;
  bool ends_row = false;
};

// The cells of a file, as the state machine of Python's csv module finds them with its default dialect.
class CsvCells {
 public:
  CsvCells(std::string_view text, char delimiter, size_t begin)
      : text_(text), delimiter_(delimiter), at_(begin), marks_(text, delimiter, begin) {}

  bool at_end() const { return at_ >= text_.size(); }
  size_t offset() const { return at_; }

  // Passes a row of ends.size() cells without quotes, and says where they end. False: the row is another; then nothing
  // is passed. REQUIRES: !at_end().
  bool next_plain_row(std::span<size_t> ends) {
    for (size_t& end : ends) end = marks_.next();
    const size_t last = ends.back();
    bool plain = last < text_.size() && (text_[last] == '\n' || text_[last] == '\r');
    for (size_t i = 0; plain && i + 1 < ends.size(); ++i) plain = text_[ends[i]] == delimiter_;
    if (!plain || last == at_) [[unlikely]] {
      go_to(at_);
      return false;
    }
    at_ = last + 1;
    if (text_[last] == '\r' && at_ < text_.size() && text_[at_] == '\n') at_ = marks_.next() + 1;
    return true;
  }
  // The next cell is the one at `at`.
  void go_to(size_t at) {
    at_ = at;
    marks_.skip_to(at);
  }

  // REQUIRES: !at_end(), or the cell before did not end its row. False: its quote does not end.
  bool next(CsvCell& cell) {
    cell.begin = at_;
    cell.quoted = false;
    size_t end = marks_.next();
    if (end < text_.size() && text_[end] == '"') [[unlikely]] {
      if (end == at_) return next_quoted(cell);
      end = past_quotes(end);
    }
    cell.text = text_.substr(at_, end - at_);
    finish(cell, end);
    return true;
  }

 private:
  // A quote inside a cell is a character like others.
  size_t past_quotes(size_t end) {
    while (end < text_.size() && text_[end] == '"') end = marks_.next();
    return end;
  }
  void finish(CsvCell& cell, size_t end) {
    at_ = end + 1;
    cell.ends_row = end >= text_.size() || text_[end] != delimiter_;
    if (end < text_.size() && text_[end] == '\r' && at_ < text_.size() && text_[at_] == '\n') {
      at_ = marks_.next() + 1;
    }
  }
  bool next_quoted(CsvCell& cell) {
    unquoted_.clear();
    size_t at = at_ + 1;
    for (;;) {
      const size_t quote = text_.find('"', at);
      if (quote == std::string_view::npos) return false;
      unquoted_ += text_.substr(at, quote - at);
      at = quote + 1;
      if (at >= text_.size() || text_[at] != '"') break;
      unquoted_ += '"';
      ++at;
    }
    marks_.skip_to(at);
    const size_t end = past_quotes(marks_.next());
    unquoted_ += text_.substr(at, end - at);
    cell.text = unquoted_;
    cell.quoted = true;
    finish(cell, end);
    return true;
  }

  const std::string_view text_;
  const char delimiter_;
  size_t at_;
  detail::SeparatorCursor marks_;
  std::string unquoted_;  // of the last quoted cell
};

tl::unexpected<Error> unended_quote(std::string_view text, std::string_view name, size_t at) {
  return fail(ErrorCode::kCorruption, "{}: a quote begins here and does not end: is the file cut?",
              place_of(text, name, at));
}

// The delimiter that the first line has most of, outside quotes.
char find_delimiter(std::string_view text) {
  std::array<size_t, kDelimiters.size()> counts{};
  bool quoted = false;
  for (const char c : text) {
    if (c == '"') quoted = !quoted;
    if (quoted) continue;
    if (c == '\n' || c == '\r') break;
    if (const size_t at = kDelimiters.find(c); at != std::string_view::npos) ++counts[at];
  }
  return kDelimiters[static_cast<size_t>(std::ranges::max_element(counts) - counts.begin())];
}

bool is_blank(std::string_view rest) {
  return rest.find_first_not_of("\r\n") == std::string_view::npos;
}

// A name that a program writes as a number is data, unless the names count: pandas writes 0,1,2 for an array.
bool looks_like_data(const std::vector<std::string>& names) {
  bool counts = true, numbers = false;
  for (size_t i = 0; i < names.size(); ++i) {
    double value = 0;
    counts = counts && names[i] == std::to_string(i);
    const bool begins = !names[i].empty() && std::string_view("+-.0123456789 ").find(names[i][0]) != std::string::npos;
    numbers = numbers || (begins && detail::parse_number(names[i], '.', value) == detail::NumberStatus::kOk);
  }
  return numbers && (!counts || names.size() == 1);
}

// The first row, and where it ends. `begins` are the offsets of its cells.
Result<size_t> first_row(std::string_view text, std::string_view name, char delimiter, std::vector<std::string>& names,
                         std::vector<size_t>& begins) {
  CsvCells cells(text, delimiter, mark_bytes(text));
  for (CsvCell cell; !cell.ends_row;) {
    if (!cells.next(cell)) return unended_quote(text, name, cell.begin);
    if (!is_utf8(cell.text) || cell.text.find('\0') != std::string_view::npos) {
      return fail(ErrorCode::kCorruption, "{}: the first row is not UTF-8 text", place_of(text, name, cell.begin));
    }
    names.emplace_back(cell.text);
    begins.push_back(cell.begin);
  }
  return cells.offset();
}

Status check_names(std::string_view text, std::string_view name, const CsvOptions& options, const CsvHead& head,
                   const std::vector<size_t>& begins) {
  if (options.header == CsvHeader::kAuto && looks_like_data(head.names)) {
    return fail(ErrorCode::kCorruption,
                "{}: the first row looks like data: say that there is no header (--header no), or that these are the "
                "names (--header yes)",
                place_of(text, name, begins.front()));
  }
  std::vector<size_t> order(head.names.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::stable_sort(order, {}, [&](size_t i) -> std::string_view { return head.names[i]; });
  const auto twice = std::ranges::adjacent_find(order, {}, [&](size_t i) -> std::string_view { return head.names[i]; });
  if (twice == order.end()) return {};
  return fail(ErrorCode::kCorruption, "{}: column {} has the same name as column {}: {}",
              place_of(text, name, begins[twice[1]]), twice[1] + 1, twice[0] + 1, shown(head.names[*twice]));
}

// What a file and its options say, for reading its rows.
struct CsvFile {
  std::string_view text, name;
  const CsvHead& head;
  const CsvOptions& options;

  std::string place(size_t offset) const { return place_of(text, name, offset); }
  std::string column(size_t i) const { return shown(head.names[i]); }
  bool is_declared_text(size_t i) const {
    return std::ranges::find(options.text_columns, head.names[i]) != options.text_columns.end();
  }
  bool is_number(std::string_view cell, char point) const {
    double value = 0;
    return detail::parse_number(cell, point, value) != detail::NumberStatus::kNotANumber;
  }
};

tl::unexpected<Error> wrong_count(const CsvFile& file, const CsvCell& last, size_t count) {
  const size_t wanted = file.head.names.size();
  const bool cut = count < wanted && file.text.find_first_of("\r\n", last.begin) == std::string_view::npos;
  return fail(ErrorCode::kCorruption, "{}: this row has {} cell{}, and the header {} name{}{}", file.place(last.begin),
              count > wanted ? "more" : std::to_string(count), count == 1 ? "" : "s", wanted, wanted == 1 ? "" : "s",
              cut ? ": the file ends in this row, so it may be cut" : "");
}

// Calls visit(column, cell, failed) for each cell of a row, in order, until it answers false; it sets `failed` when
// that is for an error. False: there are no more rows, or `failed` says why.
template <class Visit>
bool visit_row(const CsvFile& file, CsvCells& cells, const Visit& visit, Status& failed) {
  const size_t columns = file.head.names.size();
  CsvCell cell;
  for (size_t column = 0; column < columns; ++column) {
    if (!cells.next(cell)) [[unlikely]] {
      failed = unended_quote(file.text, file.name, cell.begin);
      return false;
    }
    if (column == 0 && cell.ends_row && cell.text.empty() && !cell.quoted) [[unlikely]] {
      const bool last = is_blank(file.text.substr(cell.begin));
      if (!last) failed = fail(ErrorCode::kCorruption, "{}: a blank line between rows", file.place(cell.begin));
      return false;
    }
    if (cell.ends_row != (column + 1 == columns)) [[unlikely]] {
      failed = wrong_count(file, cell, column + 1 + (cell.ends_row ? 0 : 1));
      return false;
    }
    if (!visit(column, cell, failed)) [[unlikely]]
      return false;
  }
  return true;
}

tl::unexpected<Error> other_decimal(const CsvFile& file, size_t column, const CsvCell& cell, char other) {
  return fail(ErrorCode::kCorruption,
              "{}: {} in column {} looks like a number with a decimal {}: say so (--decimal {}), or that the column is "
              "text (--text {})",
              file.place(cell.begin), shown(cell.text), file.column(column), other == ',' ? "comma" : "point", other,
              file.head.names[column]);
}

tl::unexpected<Error> not_a_number(const CsvFile& file, size_t column, const CsvCell& cell) {
  if (cell.text.empty()) {
    return fail(ErrorCode::kCorruption,
                "{}: an empty cell in column {}, which has numbers: mend it, or take empty cells as NaN (--empty nan)",
                file.place(cell.begin), file.column(column));
  }
  return fail(ErrorCode::kCorruption,
              "{}: {} in column {} is not a number as the cells before are: mend it, or say that the column is text "
              "(--text {})",
              file.place(cell.begin), shown(cell.text), file.column(column), file.head.names[column]);
}

// Rows of one file into a table.
template <class T>
class TableBuilder {
 public:
  TableBuilder(const CsvFile& file, std::span<const CsvType> types) : file_(file) {
    for (size_t i = 0; i < types.size(); ++i) {
      const bool number = types[i] == CsvType::kNumber;
      slots_.push_back({number, file.is_declared_text(i), number ? numbers_++ : texts_++});
    }
    table_.texts.resize(texts_);
    table_.rounded.assign(numbers_, -1);
  }

  // False: `failed` says why.
  bool add(size_t column, const CsvCell& cell, Status& failed) {
    const Slot& slot = slots_[column];
    table_.rows += column + 1 == slots_.size() ? 1 : 0;
    if (slot.number && add_number(cell)) [[likely]]
      return true;
    failed = slot.number ? add_odd_number(column, slot, cell) : add_text(column, slot, cell);
    return failed.has_value();
  }
  bool has_texts() const { return texts_ > 0; }
  // A row of numbers alone, which begins at `begin` and whose cells end at `ends`. False: a cell needs add(); then no
  // cell has been added. Without branches for rarer things, this loop takes two thirds of the time.
  bool add_plain_row(size_t begin, std::span<const size_t> ends) {
    if (table_.numbers.size() - filled_ < ends.size()) [[unlikely]]
      grow(begin);
    T* out = table_.numbers.data() + filled_;
    for (const size_t end : ends) {
      double value = 0;
      const auto status = detail::parse_cell(file_.text.substr(begin, end - begin), file_.options.decimal, value);
      if (status != detail::NumberStatus::kOk || !(std::fabs(value) < kLarge)) [[unlikely]]
        return false;
      *out++ = static_cast<T>(value);
      begin = end + 1;
    }
    filled_ += ends.size();
    ++table_.rows;
    return true;
  }
  CsvTable<T> take() {
    table_.numbers.resize(filled_);
    return std::move(table_);
  }

 private:
  // A cell of this size or more may have been rounded by 1 or more.
  static constexpr double kLarge = std::is_same_v<T, float> ? 16'777'216.0 : std::numeric_limits<double>::infinity();

  struct Slot {
    bool number = false, declared = false;
    size_t index = 0;  // among the columns of numbers, or of text
  };

  // False for what add_odd_number takes.
  bool add_number(const CsvCell& cell) {
    double value = 0;
    if (detail::parse_cell(cell.text, file_.options.decimal, value) != detail::NumberStatus::kOk) return false;
    if (!(std::fabs(value) < kLarge)) return false;
    push(cell, static_cast<T>(value));
    return true;
  }
  Status add_odd_number(size_t column, const Slot& slot, const CsvCell& cell) {
    double value = 0;
    if (cell.text.empty() && file_.options.empty_is_nan) {
      value = std::numeric_limits<double>::quiet_NaN();
    } else if (const auto status = detail::parse_number(cell.text, file_.options.decimal, value);
               status != detail::NumberStatus::kOk) {
      return status == detail::NumberStatus::kTooLarge ? too_large(column, cell, "a double")
                                                       : not_a_number(file_, column, cell);
    }
    const T stored = static_cast<T>(value);
    if (std::isinf(stored) && !std::isinf(value)) return too_large(column, cell, "float32 (--dtype float64 holds it)");
    if (static_cast<double>(stored) != value && !std::isnan(value) && table_.rounded[slot.index] < 0) {
      table_.rounded[slot.index] = table_.rows - (column + 1 == slots_.size() ? 1 : 0);
    }
    push(cell, stored);
    return {};
  }
  void push(const CsvCell& cell, T value) {
    if (filled_ == table_.numbers.size()) [[unlikely]]
      grow(cell.begin);
    table_.numbers[filled_++] = value;
  }
  tl::unexpected<Error> too_large(size_t column, const CsvCell& cell, std::string_view holder) const {
    return fail(ErrorCode::kCorruption, "{}: {} in column {} is too large for {}", file_.place(cell.begin),
                shown(cell.text), file_.column(column), holder);
  }
  // By what the rows so far took of the file.
  void grow(size_t at) {
    const size_t done = at - file_.head.rows_begin, left = file_.text.size() - at;
    const double share = filled_ < 1000 ? 0 : static_cast<double>(left) / static_cast<double>(done);
    table_.numbers.resize(
        filled_ + std::max<size_t>(4096 + numbers_, static_cast<size_t>(1.05 * share * static_cast<double>(filled_))));
  }
  Status add_text(size_t column, const Slot& slot, const CsvCell& cell) {
    if (!slot.declared && !cell.text.empty() && file_.is_number(cell.text, file_.options.decimal)) {
      return fail(ErrorCode::kCorruption,
                  "{}: {} in column {} is a number, and the cells before are text: mend it, or say that the column is "
                  "text (--text {})",
                  file_.place(cell.begin), shown(cell.text), file_.column(column), file_.head.names[column]);
    }
    if (!is_utf8(cell.text) || cell.text.find('\0') != std::string_view::npos) {
      return fail(ErrorCode::kCorruption, "{}: the text in column {} is not UTF-8, or holds a NUL",
                  file_.place(cell.begin), file_.column(column));
    }
    CsvTexts& texts = table_.texts[slot.index];
    texts.bytes += cell.text;
    texts.ends.push_back(texts.bytes.size());
    return {};
  }

  const CsvFile& file_;
  std::vector<Slot> slots_;
  size_t numbers_ = 0, texts_ = 0, filled_ = 0;
  CsvTable<T> table_;
};

template <class T>
Result<CsvTable<T>> read_rows(const CsvFile& file, std::span<const CsvType> types) {
  TableBuilder<T> table(file, types);
  CsvCells cells(file.text, file.head.delimiter, file.head.rows_begin);
  std::vector<size_t> ends(types.size());
  const auto add = [&](size_t column, const CsvCell& cell, Status& failed) { return table.add(column, cell, failed); };
  Status failed;
  while (!cells.at_end()) {
    const size_t begin = cells.offset();
    if (!table.has_texts() && cells.next_plain_row(ends)) {
      if (table.add_plain_row(begin, ends)) continue;
      cells.go_to(begin);
    }
    if (!visit_row(file, cells, add, failed)) break;
  }
  RETURN_IF_ERROR(std::move(failed));
  return table.take();
}

}  // namespace

Result<CsvHead> read_csv_head(std::string_view text, std::string_view name, const CsvOptions& options) {
  RETURN_IF_ERROR(refuse_other_format(name, text.substr(0, kOtherFormatHead)));
  if (is_blank(text.substr(mark_bytes(text)))) {
    return fail(ErrorCode::kCorruption, "{}:1:1: the file is empty: it has not even a header", name);
  }
  CsvHead head;
  head.delimiter = options.delimiter != '\0' ? options.delimiter : find_delimiter(text);
  std::vector<size_t> begins;
  ASSIGN_OR_RETURN(head.rows_begin, first_row(text, name, head.delimiter, head.names, begins));
  head.rows_begin = std::min(head.rows_begin, text.size());
  if (options.header == CsvHeader::kNo) {
    head.rows_begin = mark_bytes(text);
    for (size_t i = 0; i < head.names.size(); ++i) head.names[i] = fmt::format("c{}", i);
    return head;
  }
  RETURN_IF_ERROR(check_names(text, name, options, head, begins));
  return head;
}

Status infer_csv_types(std::string_view text, std::string_view name, const CsvHead& head, const CsvOptions& options,
                       std::vector<CsvType>& types) {
  const CsvFile file{text, name, head, options};
  auto unknown = std::ranges::count(types, CsvType::kUnknown);
  if (unknown == 0) return {};
  const auto decide = [&](size_t column, const CsvCell& cell, Status& failed) {
    if (types[column] != CsvType::kUnknown || cell.text.empty()) return true;
    const bool declared = file.is_declared_text(column),
               number = !declared && file.is_number(cell.text, options.decimal);
    const char other = options.decimal == '.' ? ',' : '.';
    if (!declared && !number && file.is_number(cell.text, other)) {
      failed = other_decimal(file, column, cell, other);
      return false;
    }
    types[column] = number ? CsvType::kNumber : CsvType::kText;
    return --unknown != 0;
  };
  CsvCells cells(text, head.delimiter, head.rows_begin);
  Status failed;
  while (!cells.at_end() && visit_row(file, cells, decide, failed)) continue;
  return failed;
}

template <class T>
Result<CsvTable<T>> read_csv(std::string_view text, std::string_view name, const CsvHead& head,
                             std::span<const CsvType> types, const CsvOptions& options) {
  return read_rows<T>({text, name, head, options}, types);
}

template Result<CsvTable<float>> read_csv(std::string_view, std::string_view, const CsvHead&, std::span<const CsvType>,
                                          const CsvOptions&);
template Result<CsvTable<double>> read_csv(std::string_view, std::string_view, const CsvHead&, std::span<const CsvType>,
                                           const CsvOptions&);

}  // namespace millrace::formats
