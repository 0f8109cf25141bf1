// SPDX-License-Identifier: Apache-2.0
#include "millrace/tokenizer/words/pattern_automaton.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "millrace/base/thread/sync.h"
#include "millrace/tokenizer/text/byte_map.h"
#include "millrace/tokenizer/words/pattern.h"
#include "millrace/tokenizer/words/regex_tree.h"

namespace millrace::tokenizer {
namespace {

using Kind = RegexTree::Kind;

constexpr size_t kMostNodes = 4096;
constexpr size_t kMostSets = 56;  // a bit each, and behind them the bits of conditions
constexpr size_t kMostStates = 4000;
constexpr size_t kMostAheadStates = 1000;
constexpr size_t kMostEntries = size_t{1} << 20;

}  // namespace

class AutomatonBuilder {
 public:
  static std::shared_ptr<const PatternAutomaton> build(const RegexTree& tree) {
    AutomatonBuilder builder;
    const uint32_t match = builder.add({});
    const uint32_t start = builder.lay_out(tree, match);
    if (!builder.fits_ || !builder.find_classes() || !builder.fill_aheads()) return nullptr;
    PatternAutomaton& automaton = *builder.automaton_;
    automaton.looks_around_ =
        builder.previous_sets_ != 0 || builder.asks_for_search_ || !builder.aheads_.empty() || may_be_empty(tree);
    if (!builder.fill(start)) return nullptr;
    return std::move(builder.automaton_);
  }

 private:
  // A place in the expression.
  struct Node {
    enum class Kind : uint8_t { kTake, kNextIs, kNextIsNot, kPreviousIs, kPreviousIsNot, kFork, kMatch };
    Kind kind = Kind::kMatch;
    uint32_t set = 0;            // of all but the last two
    uint32_t next = 0;           // where it goes on
    uint32_t second_choice = 0;  // kFork: tried after `next`
  };

  uint32_t add(Node node) {
    if (nodes_.size() >= kMostNodes) fits_ = false;
    if (fits_) nodes_.push_back(node);
    return static_cast<uint32_t>(nodes_.size() - 1);
  }

  uint32_t number_of(const CodePointRanges& set) {
    const auto same = [&](const CodePointRanges& other) {
      return std::ranges::equal(set, other, [](auto a, auto b) { return a.first == b.first && a.last == b.last; });
    };
    const auto number = static_cast<size_t>(std::ranges::find_if(sets_, same) - sets_.begin());
    if (number == kMostSets) fits_ = false;
    if (!fits_) return 0;
    if (number == sets_.size()) sets_.push_back(set);
    return static_cast<uint32_t>(number);
  }

  // A condition on the next character is a set, and so is what an Ahead answers before it.
  static constexpr uint32_t kFirstAhead = kMostSets;
  static constexpr uint32_t kSearch = kFirstAhead + PatternAutomaton::kMostAheads;

  // The nodes of a look-ahead, which end with a match of their own.
  struct AheadNodes {
    uint32_t start, first, end;
  };
  uint32_t number_of_ahead(const RegexTree& tree) {
    if (aheads_.size() == PatternAutomaton::kMostAheads) fits_ = false;
    if (!fits_) return kFirstAhead;
    const auto first = static_cast<uint32_t>(nodes_.size());
    const uint32_t start = lay_out(tree, add({}));
    aheads_.push_back({start, first, static_cast<uint32_t>(nodes_.size())});
    return kFirstAhead + static_cast<uint32_t>(aheads_.size()) - 1;
  }

  // The first node of `tree`, which goes on at `next`.
  uint32_t lay_out(const RegexTree& tree, uint32_t next) {
    switch (tree.kind) {
      case Kind::kSet:
        return add({Node::Kind::kTake, number_of(tree.set), next});
      case Kind::kNextIs:
        return add({Node::Kind::kNextIs, number_of(tree.set), next});
      case Kind::kNextIsNot:
        return add({Node::Kind::kNextIsNot, number_of(tree.set), next});
      case Kind::kPreviousIs:
      case Kind::kPreviousIsNot: {
        const bool negated = tree.kind == Kind::kPreviousIsNot;
        const uint32_t set = number_of(tree.set);
        previous_sets_ |= uint64_t{1} << set;
        return add({negated ? Node::Kind::kPreviousIsNot : Node::Kind::kPreviousIs, set, next});
      }
      case Kind::kAhead:
        return add({Node::Kind::kNextIs, number_of_ahead(tree.parts[0]), next});
      case Kind::kAheadNot:
        return add({Node::Kind::kNextIsNot, number_of_ahead(tree.parts[0]), next});
      case Kind::kSearchBegins:
        asks_for_search_ = true;
        return add({Node::Kind::kNextIs, kSearch, next});
      case Kind::kSequence:
        for (size_t i = tree.parts.size(); i-- > 0;) next = lay_out(tree.parts[i], next);
        return next;
      case Kind::kChoice: {
        uint32_t at = lay_out(tree.parts.back(), next);
        for (size_t i = tree.parts.size() - 1; i-- > 0;) {
          const uint32_t first = lay_out(tree.parts[i], next);
          at = add({Node::Kind::kFork, 0, first, at});
        }
        return at;
      }
      case Kind::kRepeat:
        return repeat(tree, next);
    }
    return next;
  }

  uint32_t fork(bool is_lazy, uint32_t again, uint32_t on) {
    return add({Node::Kind::kFork, 0, is_lazy ? on : again, is_lazy ? again : on});
  }

  uint32_t repeat(const RegexTree& tree, uint32_t next) {
    const RegexTree& body = tree.parts[0];
    uint32_t at = next;
    if (tree.most == RegexTree::kNoLimit) {
      at = add({Node::Kind::kFork});
      const uint32_t again = lay_out(body, at);
      nodes_[at].next = tree.is_lazy ? next : again;
      nodes_[at].second_choice = tree.is_lazy ? again : next;
    } else {
      for (int i = tree.least; i < tree.most && fits_; ++i) {
        const uint32_t again = lay_out(body, at);
        at = fork(tree.is_lazy, again, next);
      }
    }
    for (int i = 0; i < tree.least && fits_; ++i) at = lay_out(body, at);
    return at;
  }

  // Characters that are in the same sets are one class.
  bool find_classes() {
    std::map<uint32_t, uint64_t> changes = {{0, 0}};  // sets that begin or end there
    for (size_t i = 0; i < sets_.size(); ++i) {
      for (const CodePointRange& range : sets_[i]) {
        changes[range.first] ^= uint64_t{1} << i;
        changes[range.last + 1] ^= uint64_t{1} << i;
      }
    }
    std::map<uint64_t, uint8_t> numbers;
    automaton_->classes_.resize(kCodePointTableSize);
    uint64_t members = 0;
    for (auto at = changes.begin(); at != changes.end(); ++at) {
      members ^= at->second;
      const auto [found, is_new] = numbers.try_emplace(members, static_cast<uint8_t>(numbers.size()));
      if (is_new) class_sets_.push_back(members);
      if (numbers.size() > 250) return false;
      const auto next = std::next(at);
      const size_t end = next == changes.end() ? kCodePointTableSize : next->first;
      std::fill(automaton_->classes_.begin() + at->first, automaton_->classes_.begin() + static_cast<ptrdiff_t>(end),
                found->second);
    }
    automaton_->end_class_ = class_sets_.size();
    class_sets_.push_back(0);  // the end of the text is in no set, and neither is its begin
    return true;
  }

  // ---- look-aheads

  struct Between {
    uint64_t next, previous;             // the sets of the characters on both sides
    const std::vector<uint32_t>& taken;  // the nodes that take the next one and match behind it, ascending
  };
  // Whether an engine at `at` would match. Answers are kept for the round.
  bool matches_from(uint32_t at, const Between& between) {
    if (answers_[at] >> 1 == round_) return (answers_[at] & 1) != 0;
    const Node& node = nodes_[at];
    const bool next_is = between.next >> node.set & 1, previous_is = between.previous >> node.set & 1;
    const auto goes_on = [&](uint32_t to) { return matches_from(to, between); };
    const auto matches = [&] {
      switch (node.kind) {
        case Node::Kind::kMatch:
          return true;
        case Node::Kind::kTake:
          return next_is && std::ranges::binary_search(between.taken, at);
        case Node::Kind::kNextIs:
          return next_is && goes_on(node.next);
        case Node::Kind::kNextIsNot:
          return !next_is && goes_on(node.next);
        case Node::Kind::kPreviousIs:
          return previous_is && goes_on(node.next);
        case Node::Kind::kPreviousIsNot:
          return !previous_is && goes_on(node.next);
        case Node::Kind::kFork:
          return goes_on(node.next) || goes_on(node.second_choice);
      }
      return false;
    };
    const bool answer = matches();
    answers_[at] = round_ << 1 | uint64_t{answer};
    return answer;
  }

  bool fill_aheads() {
    answers_.resize(nodes_.size());
    return std::ranges::all_of(aheads_, [&](const AheadNodes& nodes) { return fill_ahead(nodes); });
  }

  bool fill_ahead(const AheadNodes& nodes) {
    PatternAutomaton::Ahead& ahead = automaton_->aheads_.emplace_back();
    std::vector<uint32_t> takes;
    uint64_t taken_sets = 0, previous_sets = 0;
    for (uint32_t at = nodes.first; at < nodes.end; ++at) {
      const Node& node = nodes_[at];
      const bool looks_back = node.kind == Node::Kind::kPreviousIs || node.kind == Node::Kind::kPreviousIsNot;
      if (node.kind == Node::Kind::kTake) takes.push_back(at);
      (node.kind == Node::Kind::kTake ? taken_sets : previous_sets) |=
          uint64_t{node.kind == Node::Kind::kTake || looks_back} << node.set;
    }
    std::vector<uint64_t> kinds;  // of the previous character
    for (const uint64_t sets : class_sets_) {
      const auto known = std::ranges::find(kinds, sets & previous_sets);
      ahead.kinds.push_back(static_cast<uint8_t>(known - kinds.begin()));
      if (known == kinds.end()) kinds.push_back(sets & previous_sets);
      ahead.goes_on.push_back((sets & taken_sets) != 0);
    }
    ahead.may_match.resize(class_sets_.size());
    const size_t width = class_sets_.size() * kinds.size();
    std::map<std::vector<uint32_t>, uint32_t> numbers = {{{}, 0}};
    std::vector<std::vector<uint32_t>> states = {{}};
    for (size_t i = 0; i < states.size(); ++i) {
      const std::vector<uint32_t> taken = states[i];
      for (size_t column = 0; column < width; ++column) {
        const size_t next = column % class_sets_.size();
        const Between between = {class_sets_[next], kinds[column / class_sets_.size()], taken};
        const auto matches = [&](uint32_t at) { return matches_from(at, between); };
        ++round_;
        const bool holds = matches(nodes.start);
        if (holds) ahead.may_match[next] = 1;
        std::vector<uint32_t> before;
        std::ranges::copy_if(takes, std::back_inserter(before), [&](uint32_t at) { return matches(nodes_[at].next); });
        const auto [found, is_new] = numbers.try_emplace(before, static_cast<uint32_t>(states.size()));
        if (is_new) states.push_back(std::move(before));
        if (states.size() > kMostAheadStates || ahead.table.size() >= kMostEntries) return false;
        ahead.table.push_back(found->second * static_cast<uint32_t>(width) * 2 + holds);
      }
    }
    return true;
  }

  // ---- the table

  // Where the engine could be before a character, in the order in which it would try; nodes that need it are not
  // resolved.
  struct State {
    std::vector<uint32_t> nodes;
    uint64_t previous = 0;  // the sets that the last character is in, of those that the nodes ask for
    auto operator<=>(const State&) const = default;
  };

  // Follows `at` with the knowledge that a character of `sets` comes next and one of `previous` came before. False once
  // a match has been found.
  bool follow(uint32_t at, uint64_t sets, uint64_t previous, std::vector<uint32_t>& next, bool& matches) {
    if (seen_[at] == round_) return true;
    seen_[at] = round_;
    const Node& node = nodes_[at];
    const bool is_in_set = sets >> node.set & 1;
    const auto go_on = [&](uint32_t to) { return follow(to, sets, previous, next, matches); };
    switch (node.kind) {
      case Node::Kind::kMatch:
        matches = true;
        return false;
      case Node::Kind::kTake:
        if (is_in_set && std::exchange(added_[node.next], round_) != round_) next.push_back(node.next);
        return true;
      case Node::Kind::kNextIs:
        return !is_in_set || go_on(node.next);
      case Node::Kind::kNextIsNot:
        return is_in_set || go_on(node.next);
      case Node::Kind::kPreviousIs:
        return (previous >> node.set & 1) == 0 || go_on(node.next);
      case Node::Kind::kPreviousIsNot:
        return (previous >> node.set & 1) != 0 || go_on(node.next);
      case Node::Kind::kFork:
        return go_on(node.next) && go_on(node.second_choice);
    }
    return true;
  }

  // Whether the engine would ask at `at` for the character before it.
  bool asks_for_previous(uint32_t at) {
    const Node& node = nodes_[at];
    const bool is_fork = node.kind == Node::Kind::kFork;
    std::optional<bool>& asks = asks_for_previous_[at];
    if (asks) return *asks;
    asks = node.kind == Node::Kind::kPreviousIs || node.kind == Node::Kind::kPreviousIsNot;
    if (is_fork || node.kind == Node::Kind::kNextIs || node.kind == Node::Kind::kNextIsNot)
      asks = asks_for_previous(node.next) || (is_fork && asks_for_previous(node.second_choice));
    return *asks;
  }
  State state_of(std::vector<uint32_t> nodes, uint64_t sets_before) {
    const bool asks =
        previous_sets_ != 0 && std::ranges::any_of(nodes, [&](uint32_t at) { return asks_for_previous(at); });
    return {std::move(nodes), asks ? sets_before & previous_sets_ : 0};
  }

  // The row of `state`, a new one if need be.
  uint32_t row_of_state(State state) {
    const auto [found, is_new] = numbers_.try_emplace(std::move(state), static_cast<uint32_t>(states_.size()));
    if (is_new) states_.push_back(&found->first);
    return found->second * static_cast<uint32_t>(automaton_->width_);
  }

  bool fill(uint32_t start) {
    PatternAutomaton& automaton = *automaton_;
    const size_t classes = class_sets_.size();
    const size_t conditions = size_t{1} << (aheads_.size() + (asks_for_search_ ? 1 : 0));
    if (asks_for_search_) automaton.search_condition_ = conditions / 2;
    automaton.width_ = classes * conditions;
    asks_for_previous_.resize(nodes_.size());
    row_of_state(state_of({start}, 0));
    if (automaton.looks_around_)
      for (const uint64_t sets : class_sets_) automaton.start_rows_.push_back(row_of_state(state_of({start}, sets)));
    seen_.resize(nodes_.size());
    added_.resize(nodes_.size());
    for (size_t i = 0; i < states_.size(); ++i) {
      for (size_t column = 0; column < automaton.width_; ++column) {
        const size_t possible = possible_conditions(column / classes, column % classes);
        const uint32_t entry = possible == column / classes
                                   ? entry_of(*states_[i], column % classes, possible)
                                   : automaton.table_[i * automaton.width_ + possible * classes + column % classes];
        automaton.table_.push_back(entry);
      }
      if (states_.size() > kMostStates || automaton.table_.size() > kMostEntries) return false;
    }
    note_questions();
    if (!automaton.looks_around_) find_plain_words();
    note_skips();
    return true;
  }

  // Without the look-aheads that can't match where such a character comes next.
  size_t possible_conditions(size_t conditions, size_t next) const {
    for (size_t i = 0; i < aheads_.size(); ++i)
      if (!automaton_->aheads_[i].may_match[next]) conditions &= ~(size_t{1} << i);
    return conditions;
  }

  uint32_t entry_of(const State& state, size_t class_of_next, size_t conditions) {
    ++round_;
    std::vector<uint32_t> next;
    bool matches = false;
    for (const uint32_t at : state.nodes)
      if (!follow(at, class_sets_[class_of_next] | sets_of_conditions(conditions), state.previous, next, matches))
        break;
    uint32_t entry = PatternAutomaton::kDead;
    if (!next.empty())
      entry = row_of_state(state_of(std::move(next), class_sets_[class_of_next])) << PatternAutomaton::kRowShift;
    return entry | (matches ? PatternAutomaton::kMatches : 0);
  }
  uint64_t sets_of_conditions(size_t conditions) const {
    uint64_t sets = 0;
    for (size_t i = 0; i < aheads_.size(); ++i) sets |= uint64_t{conditions >> i & 1} << (kFirstAhead + i);
    if (conditions & automaton_->search_condition_) sets |= uint64_t{1} << kSearch;
    return sets;
  }

  // Marks the entries that depend on conditions.
  void note_questions() {
    std::vector<uint32_t>& table = automaton_->table_;
    const size_t classes = class_sets_.size();
    for (size_t row = 0; row < table.size(); row += automaton_->width_)
      for (size_t c = 0; c < classes; ++c)
        for (size_t i = c + classes; i < automaton_->width_; i += classes)
          if (table[row + i] != (table[row + c] & ~PatternAutomaton::kAsks)) table[row + c] |= PatternAutomaton::kAsks;
  }

  uint32_t entry(uint32_t row, int c) const {
    return automaton_->table_[row + automaton_->classes_[static_cast<size_t>(c)]];
  }
  static bool goes_on(uint32_t entry) { return entry < PatternAutomaton::kDead; }
  static bool ends_match(uint32_t entry) { return entry == (PatternAutomaton::kDead | PatternAutomaton::kMatches); }
  static uint32_t row_of(uint32_t entry) { return entry >> PatternAutomaton::kRowShift; }

  // A space, a letter, any number of a to z: is it a word whenever a space follows? Most text consists of such words;
  // they are found 64 bytes at a time. The same for ',' and '.' between such a word and a space: are they a word each?
  void find_plain_words() {
    const uint32_t begin = entry(0, ' ');
    if (!goes_on(begin)) return;
    std::set<uint32_t> rows;  // where the table stands in such a word
    std::vector<uint32_t> waiting;
    const auto add = [&](uint32_t to) {
      if (goes_on(to) && rows.insert(row_of(to)).second) waiting.push_back(row_of(to));
      return goes_on(to);
    };
    for (int c = 'a'; c <= 'z'; ++c)
      if (!add(entry(row_of(begin), c)) || !add(entry(row_of(begin), c - 'a' + 'A'))) return;
    while (!waiting.empty()) {
      const uint32_t row = waiting.back();
      waiting.pop_back();
      if (!ends_match(entry(row, ' '))) return;
      for (int c = 'a'; c <= 'z'; ++c)
        if (!add(entry(row, c))) return;
    }
    automaton_->has_plain_words_ = true;
    const auto stands_alone = [&](int mark) {
      const uint32_t alone = entry(0, mark);
      return goes_on(alone) && ends_match(entry(row_of(alone), ' ')) &&
             std::ranges::all_of(rows, [&](uint32_t row) { return ends_match(entry(row, mark)); });
    };
    for (uint8_t& mark : automaton_->marks_)
      if (!stands_alone(mark)) mark = ' ';
  }

  // Marks the entries that lead to a state which letters do not change.
  void note_skips() {
    std::vector<uint32_t>& table = automaton_->table_;
    const size_t width = automaton_->width_;
    // A match that ends between two letters must not be lost: none does, or each character behind them tells a later
    // one.
    const auto stays = [&](size_t row, char first, char last) {
      const std::span<const uint32_t> entries = std::span(table).subspan(row, width);
      const auto matches = [](uint32_t entry) { return (entry & PatternAutomaton::kMatches) != 0; };
      const bool all_match = std::ranges::all_of(entries, matches);
      for (int c = first; c <= last; ++c) {
        const uint32_t entry = entries[automaton_->classes_[static_cast<size_t>(c)]];
        if (entry & PatternAutomaton::kAsks) return false;
        if (entry >= PatternAutomaton::kDead || entry >> PatternAutomaton::kRowShift != row) return false;
        if (matches(entry) && !all_match) return false;
      }
      return true;
    };
    std::vector<uint32_t> flags(table.size() / width);
    for (size_t state = 0; state < flags.size(); ++state) {
      if (!stays(state * width, 'a', 'z')) continue;
      flags[state] = PatternAutomaton::kSkips;
      if (stays(state * width, 'A', 'Z')) flags[state] |= PatternAutomaton::kSkipsCapitals;
    }
    for (uint32_t& entry : table)
      if (entry < PatternAutomaton::kDead) entry |= flags[(entry >> PatternAutomaton::kRowShift) / width];
  }

  std::shared_ptr<PatternAutomaton> automaton_ = std::make_shared<PatternAutomaton>();
  std::vector<Node> nodes_;
  std::vector<CodePointRanges> sets_;
  uint64_t previous_sets_ = 0;  // those that a condition on the previous character asks for
  std::vector<AheadNodes> aheads_;
  bool asks_for_search_ = false;
  std::vector<uint64_t> class_sets_;  // of each class and of the end of the text, a bit a set
  std::vector<uint64_t> answers_;     // of matches_from(), behind the round
  std::vector<std::optional<bool>> asks_for_previous_;
  std::map<State, uint32_t> numbers_;
  std::vector<const State*> states_;
  std::vector<uint64_t> seen_;   // the round in which a node was followed last
  std::vector<uint64_t> added_;  // ... and became one of the next state
  uint64_t round_ = 0;
  bool fits_ = true;
};

namespace {

std::shared_ptr<const PatternAutomaton> build_automaton(std::string_view pattern) {
  const auto expanded = expand_classes(pattern);
  if (!expanded) return nullptr;
  const auto tree = parse_regex(expanded->text);
  return tree ? AutomatonBuilder::build(*tree) : nullptr;
}

}  // namespace

// The steps of a file and its byte-level way ask for the same patterns, so do several tokenizers of one process.
std::shared_ptr<const PatternAutomaton> PatternAutomaton::compile(std::string_view pattern) {
  struct Kept {
    Mutex mutex;
    std::map<std::string, std::weak_ptr<const PatternAutomaton>, std::less<>> by_pattern GUARDED_BY(mutex);
  };
  static Kept& kept = *new Kept;
  {
    MutexLock lock(kept.mutex);
    std::erase_if(kept.by_pattern, [](const auto& entry) { return entry.second.expired(); });
    const auto found = kept.by_pattern.find(pattern);
    if (found != kept.by_pattern.end())
      if (auto automaton = found->second.lock()) return automaton;
  }
  auto automaton = build_automaton(pattern);
  if (automaton == nullptr) return nullptr;
  MutexLock lock(kept.mutex);
  kept.by_pattern.insert_or_assign(std::string(pattern), automaton);
  return automaton;
}

std::shared_ptr<const PatternAutomaton> PatternAutomaton::of_characters(const std::function<bool(uint32_t)>& contains,
                                                                        bool in_runs) {
  RegexTree set;
  set.kind = Kind::kSet;
  for (uint32_t c = 0; c < 0x110000; ++c) {
    if (!contains(c)) continue;
    if (!set.set.empty() && set.set.back().last + 1 == c)
      set.set.back().last = c;
    else
      set.set.push_back({c, c});
  }
  if (!in_runs) return AutomatonBuilder::build(set);
  RegexTree run;
  run.kind = Kind::kRepeat;
  run.least = 1;
  run.most = RegexTree::kNoLimit;
  run.parts.push_back(std::move(set));
  return AutomatonBuilder::build(run);
}

bool PatternAutomaton::covers_all() const {
  if (looks_around_) return false;
  // Behind the last code point the table has a class for bytes that are no UTF-8.
  std::array<bool, 256> has_characters{};
  for (const uint8_t c : std::span(classes_).first(std::min<size_t>(classes_.size(), 0x110000)))
    has_characters[c] = true;
  for (size_t c = 0; c < end_class_; ++c) {
    if (!has_characters[c]) continue;
    if (table_[c] >= kDead) return false;
    const auto next = std::span(table_).subspan(table_[c] >> kRowShift, width_);
    if (!std::ranges::all_of(next, [](uint32_t entry) { return (entry & kMatches) != 0; })) return false;
  }
  return true;
}

// Let a scan read far behind the end of its match. What it read is read again by scans that begin in there. Time is
// linear if those read less than some number of characters behind the ends of their own matches, as long as the first
// one went on: each character is read once by a scan that reads far ahead, and a limited number of times by others.
// So no cycle may lead through pairs of a state of the first scan and one of a later scan, without an end of a match of
// either and with a way to end without one. Real patterns need the pairs: behind a newline, \s*[\r\n]+ reads all white
// space, which is one match then.
bool PatternAutomaton::is_linear() const {
  const size_t states = table_.size() / width_;
  constexpr size_t kMostPairs = size_t{1} << 20;
  if (states * states > kMostPairs) return false;
  const size_t classes = end_class_ + 1;
  const auto is_end = [&](size_t column) { return column % classes == end_class_; };
  const auto start_behind = [&](size_t column) {
    return looks_around_ ? start_rows_[column % classes] / width_ : size_t{0};
  };
  // The first scan is behind its start when the later one begins.
  const auto without_search = [&](size_t column) {
    return (column / classes & search_condition_) != 0 ? column - search_condition_ * classes : column;
  };
  struct Step {
    bool goes_on, matches;
    size_t to;
  };
  const auto step = [&](size_t state, size_t c) {
    const uint32_t entry = table_[state * width_ + c];
    const bool goes_on = entry < kDead;
    return Step{goes_on, (entry & kMatches) != 0, goes_on ? (entry >> kRowShift) / width_ : 0};
  };
  // Whether a scan may end there without another match.
  std::vector<bool> may_fail(states);
  for (bool changes = true; changes;) {
    changes = false;
    for (size_t state = 0; state < states; ++state) {
      for (size_t c = 0; c < width_ && !may_fail[state]; ++c) {
        const Step to = step(state, c);
        may_fail[state] = !to.matches && (!to.goes_on || may_fail[to.to]);
        changes |= may_fail[state];
      }
    }
  }
  std::vector<bool> seen(states * states);
  std::vector<size_t> pairs;
  const auto add = [&](size_t first, size_t later) {
    if (!seen[first * states + later]) pairs.push_back(first * states + later);
    seen[first * states + later] = true;
  };
  for (size_t state = 0; state < states; ++state)
    for (size_t c = 0; c < width_; ++c)
      if (const Step to = step(state, c); !is_end(c) && to.goes_on && may_fail[to.to]) add(to.to, start_behind(c));
  std::vector<std::vector<uint32_t>> before(states * states);  // the pairs that lead to each, once for each class
  std::vector<size_t> ahead(states * states);
  std::vector<size_t> struck_off;
  for (size_t i = 0; i < pairs.size(); ++i) {
    const size_t pair = pairs[i];
    for (size_t c = 0; c < width_; ++c) {
      const Step first = step(pair / states, without_search(c)), later = step(pair % states, c);
      // The later scan began behind the last match of the first one.
      if (is_end(c) || !first.goes_on || first.matches || !may_fail[first.to] || !later.goes_on) continue;
      add(first.to, later.to);
      if (later.matches || !may_fail[later.to]) continue;
      before[first.to * states + later.to].push_back(static_cast<uint32_t>(pair));
      ++ahead[pair];
    }
    if (ahead[pair] == 0) struck_off.push_back(pair);
  }
  // What leads to nothing but pairs that were struck off is on no cycle.
  for (size_t i = 0; i < struck_off.size(); ++i)
    for (const uint32_t pair : before[struck_off[i]])
      if (--ahead[pair] == 0) struck_off.push_back(pair);
  return struck_off.size() == pairs.size();
}

std::shared_ptr<const PatternAutomaton> PatternAutomaton::over_spelled_bytes() const {
  auto automaton = std::make_shared<PatternAutomaton>(*this);
  automaton->classes_.resize(256);
  for (size_t b = 0; b < 256; ++b) automaton->classes_[b] = classes_[spelled_character(static_cast<uint8_t>(b))];
  automaton->is_over_bytes_ = true;
  automaton->has_plain_words_ = false;  // a space is another character
  return automaton;
}

size_t PatternAutomaton::plain_words(const uint8_t* p, const uint8_t* base, size_t* ends) const {
#if defined(__SSE2__)
  uint64_t space = 0, lower = 0, upper = 0, mark = 0;
  for (int i = 0; i < 4; ++i) {
    // SAFETY: an unaligned load of bytes.
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 16 * i));
    const auto equal = [&](uint8_t c) { return _mm_cmpeq_epi8(bytes, _mm_set1_epi8(static_cast<char>(c))); };
    const auto within = [&](char first) {
      const __m128i places = _mm_sub_epi8(bytes, _mm_set1_epi8(first));
      return _mm_cmpeq_epi8(_mm_min_epu8(places, _mm_set1_epi8(25)), places);
    };
    const auto bits = [i](__m128i mask) {
      return uint64_t{static_cast<uint32_t>(_mm_movemask_epi8(mask))} << (16 * i);
    };
    space |= bits(equal(' '));
    lower |= bits(within('a'));
    upper |= bits(within('A'));
    mark |= bits(_mm_or_si128(equal(marks_[0]), equal(marks_[1])));
  }
  mark &= ~space;
  // What goes on as plain words do: bit i for byte i.
  const uint64_t plain =
      lower | (upper & space << 1) | (space & ~(space << 1)) | (mark & (lower | upper) << 1 & space >> 1);
  const int size = __builtin_ctzll(~plain | uint64_t{1} << 63);
  uint64_t starts = (space | mark) & ((uint64_t{1} << size) - 2);
  const auto at = static_cast<size_t>(p - base);
  size_t count = 0;
  for (; starts != 0; starts &= starts - 1) ends[count++] = at + static_cast<size_t>(__builtin_ctzll(starts));
  return count;
#else
  static_cast<void>(p), static_cast<void>(base), static_cast<void>(ends);
  return 0;
#endif
}

size_t PatternAutomaton::next_words(std::string_view piece, size_t begin, std::span<size_t> ends,
                                    LookAroundMemory& memory) const {
  if (looks_around_) return next_words_around(piece, begin, ends, memory);
  // SAFETY: uint8_t may alias any object.
  const auto base = reinterpret_cast<const uint8_t*>(piece.data());
  const uint8_t* const end = base + piece.size();
  const uint8_t* p = base + begin;
  size_t count = 0;
  while (p < end && count < ends.size()) {
    if (*p == ' ' && has_plain_words_ && end - p >= 64) {
      if (count > 0 && ends.size() - count < 64) break;
      const size_t plain = ends.size() < 64 ? 0 : plain_words(p, base, &ends[count]);
      if (plain > 0) {
        count += plain;
        p = base + ends[count - 1];
        continue;
      }
    }
    const uint8_t* const word = p;
    const uint8_t* matched = match(p, end);
    // What no match begins with is a word up to the next match.
    while (matched == nullptr && p < end) {
      p = find_start(p + (is_over_bytes_ ? 1 : read<false>(p, end).size), end);
      if (p < end) matched = match(p, end);
    }
    if (p != word) ends[count++] = static_cast<size_t>(p - base);
    if (matched == nullptr || count == ends.size()) continue;
    p = matched;
    ends[count++] = static_cast<size_t>(p - base);
  }
  return count;
}

}  // namespace millrace::tokenizer
