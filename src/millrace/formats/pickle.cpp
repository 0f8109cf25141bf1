// SPDX-License-Identifier: Apache-2.0
#include "millrace/formats/pickle.h"

#include <charconv>
#include <cstring>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>

namespace millrace::formats {
namespace {

// What is kept of a dict: entries whose key is a text.
struct Dict;
// A value on the stack of the pickle's machine. What is no number, text or dict is kOther.
struct Value {
  enum class Kind { kOther, kNumber, kText, kDict };
  Kind kind = Kind::kOther;
  int64_t number = 0;
  std::string_view text{};
  std::shared_ptr<Dict> dict{};
};
struct Dict {
  std::map<std::string_view, int64_t> numbers;
  std::map<std::string_view, std::string_view> texts;
};

// Runs the opcodes of a pickle over such values (pickletools.py names them). An object is kOther, whatever its class.
class Machine {
 public:
  Machine(std::string_view pickle, PickleContent& content) : left_(pickle), content_(content) {}

  // Why the bytes are no pickle; empty when they end as one does.
  std::string run() {
    while (reason_.empty()) {
      const std::string_view opcode = take(1);
      if (!reason_.empty()) break;
      if (opcode[0] == '.') {
        const Value value = pop();
        if (value.dict != nullptr) content_.numbers.insert(value.dict->numbers.begin(), value.dict->numbers.end());
        break;
      }
      if (!push_constant(opcode[0]) && !push_bytes(opcode[0]) && !collect(opcode[0]) && !build(opcode[0]) &&
          !remember(opcode[0]))
        stop("an unknown opcode");
    }
    return reason_;
  }

 private:
  void stop(const char* reason) {
    if (reason_.empty()) reason_ = reason;
  }

  std::string_view take(uint64_t bytes) {
    if (bytes > left_.size()) {
      stop("it is cut");
      return {};
    }
    const std::string_view taken = left_.substr(0, bytes);
    left_.remove_prefix(bytes);
    return taken;
  }
  // Little-endian.
  uint64_t take_count(size_t bytes) {
    uint64_t value = 0;
    const std::string_view taken = take(bytes);
    if (!taken.empty()) std::memcpy(&value, taken.data(), taken.size());  // none at the end of what was cut
    return value;
  }
  std::string_view take_line() {
    const size_t end = left_.find('\n');
    const std::string_view line = take(end == left_.npos ? left_.size() + 1 : end + 1);
    return line.empty() ? line : line.substr(0, line.size() - 1);
  }

  void push(Value value) { stack_.push_back(std::move(value)); }
  void push_number(int64_t number) { push({.kind = Value::Kind::kNumber, .number = number}); }
  void push_text(std::string_view text) { push({.kind = Value::Kind::kText, .text = text}); }
  void push_other() { push({}); }
  Value pop() {
    if (stack_.empty() || (!marks_.empty() && marks_.back() == stack_.size())) {
      stop("its stack is empty");
      return {};
    }
    Value value = std::move(stack_.back());
    stack_.pop_back();
    return value;
  }
  std::vector<Value> pop_to_mark() {
    if (marks_.empty()) {
      stop("a mark is missing");
      return {};
    }
    const auto from = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
    std::vector<Value> values(std::make_move_iterator(from), std::make_move_iterator(stack_.end()));
    stack_.erase(from, stack_.end());
    marks_.pop_back();
    return values;
  }
  void replace(int values) {
    for (int i = 0; i < values; ++i) pop();
    push_other();
  }

  static int64_t number_of(std::string_view line) {
    int64_t number = 0;
    std::from_chars(line.data(), line.data() + line.size(), number);
    return number;
  }
  // Whole numbers beyond 64 bits are no sizes.
  void push_long(std::string_view bytes) {
    if (bytes.size() > 8) return push_other();
    uint64_t value = !bytes.empty() && (bytes.back() & 0x80) != 0 ? ~uint64_t{0} : 0;
    if (!bytes.empty()) std::memcpy(&value, bytes.data(), bytes.size());
    push_number(static_cast<int64_t>(value));
  }

  bool push_constant(char opcode) {
    switch (opcode) {
      case 'K':
        push_number(static_cast<int64_t>(take_count(1)));
        return true;
      case 'M':
        push_number(static_cast<int64_t>(take_count(2)));
        return true;
      case 'J':
        push_number(static_cast<int32_t>(take_count(4)));
        return true;
      case '\x8a':
        push_long(take(take_count(1)));
        return true;
      case '\x8b':
        push_long(take(take_count(4)));
        return true;
      case 'I':
      case 'L':
        push_number(number_of(take_line()));
        return true;
      case 'G':
        take(8);
        push_other();
        return true;
      case 'F':
        take_line();
        push_other();
        return true;
      case 'N':
      case '\x88':
      case '\x89':
        push_other();
        return true;
      default:
        return false;
    }
  }

  bool push_bytes(char opcode) {
    switch (opcode) {
      case '\x8c':
        push_text(take(take_count(1)));
        return true;
      case 'X':
        push_text(take(take_count(4)));
        return true;
      case '\x8d':
        push_text(take(take_count(8)));
        return true;
      case 'V':
        push_text(take_line());
        return true;
      case 'S':
        take_line();
        push_other();
        return true;
      case 'C':
      case 'U':
        take(take_count(1));
        push_other();
        return true;
      case 'B':
      case 'T':
        take(take_count(4));
        push_other();
        return true;
      case '\x8e':
      case '\x96':
        take(take_count(8));
        push_other();
        return true;
      case '\x97':
        push_other();
        return true;
      default:
        return false;
    }
  }

  void put(Dict& dict, const Value& key, const Value& value) {
    if (key.kind != Value::Kind::kText) return;
    if (value.kind == Value::Kind::kNumber) dict.numbers.insert_or_assign(key.text, value.number);
    if (value.kind == Value::Kind::kText) dict.texts.insert_or_assign(key.text, value.text);
  }
  void put_all(const std::vector<Value>& items) {
    if (stack_.empty()) return stop("its stack is empty");
    if (stack_.back().dict == nullptr) return;  // of another class
    for (size_t i = 0; i + 1 < items.size(); i += 2) put(*stack_.back().dict, items[i], items[i + 1]);
  }
  void push_dict() { push({.kind = Value::Kind::kDict, .dict = std::make_shared<Dict>()}); }

  bool collect(char opcode) {
    switch (opcode) {
      case '(':
        marks_.push_back(stack_.size());
        return true;
      case '}':
        push_dict();
        return true;
      case 'd': {
        const std::vector<Value> items = pop_to_mark();
        push_dict();
        put_all(items);
        return true;
      }
      case 's': {
        Value value = pop(), key = pop();
        put_all({std::move(key), std::move(value)});
        return true;
      }
      case 'u':
        put_all(pop_to_mark());
        return true;
      case ']':
      case ')':
      case '\x8f':
        push_other();
        return true;
      case 'l':
      case 't':
      case '\x91':
        pop_to_mark();
        push_other();
        return true;
      case 'e':
      case '\x90':
      case '1':
        pop_to_mark();
        return true;
      case 'a':
      case '0':
        pop();
        return true;
      case '\x85':
      case '\x86':
      case '\x87':
        replace(opcode - '\x84');
        return true;
      default:
        return false;
    }
  }

  // The state of an object of DCP that says where a tensor lies.
  void see_state(const Value& state) {
    if (state.dict == nullptr) return;
    const auto file = state.dict->texts.find("relative_path");
    const auto offset = state.dict->numbers.find("offset"), length = state.dict->numbers.find("length");
    if (file == state.dict->texts.end() || offset == state.dict->numbers.end() || length == state.dict->numbers.end())
      return;
    content_.ranges.push_back({std::string(file->second), offset->second, length->second});
  }

  bool build(char opcode) {
    switch (opcode) {
      case 'c':
        take_line();
        take_line();
        push_other();
        return true;
      case '\x93':
      case 'R':
      case '\x81':
        replace(2);
        return true;
      case '\x92':
        replace(3);
        return true;
      case 'b':
        see_state(pop());
        return true;
      case 'P':
        take_line();
        push_other();
        return true;
      case 'Q':
        replace(1);
        return true;
      case 'o':
        pop_to_mark();
        push_other();
        return true;
      case 'i':
        take_line();
        take_line();
        pop_to_mark();
        push_other();
        return true;
      default:
        return false;
    }
  }

  void store(uint64_t at) {
    if (stack_.empty()) return stop("its stack is empty");
    memo_[at] = stack_.back();
  }
  void recall(uint64_t at) {
    const auto found = memo_.find(at);
    if (found == memo_.end()) return stop("it refers to what it did not store");
    push(found->second);
  }

  bool remember(char opcode) {
    switch (opcode) {
      case '\x80':
        take(1);
        return true;
      case '\x95':
        take(8);
        return true;
      case '2':
        if (stack_.empty()) stop("its stack is empty");
        if (!stack_.empty()) push(Value(stack_.back()));
        return true;
      case '\x94':
        store(memo_.size());
        return true;
      case 'q':
        store(take_count(1));
        return true;
      case 'r':
        store(take_count(4));
        return true;
      case 'p':
        store(static_cast<uint64_t>(number_of(take_line())));
        return true;
      case 'h':
        recall(take_count(1));
        return true;
      case 'j':
        recall(take_count(4));
        return true;
      case 'g':
        recall(static_cast<uint64_t>(number_of(take_line())));
        return true;
      default:
        return false;
    }
  }

  std::string_view left_;
  PickleContent& content_;
  std::string reason_;
  std::vector<Value> stack_;
  std::vector<size_t> marks_;
  std::unordered_map<uint64_t, Value> memo_;
};

}  // namespace

Result<PickleContent> read_pickle(std::string_view pickle, std::string_view source) {
  PickleContent content;
  const std::string reason = Machine(pickle, content).run();
  if (!reason.empty()) return fail(ErrorCode::kCorruption, "{}: not a pickle that can be read: {}", source, reason);
  return content;
}

}  // namespace millrace::formats
