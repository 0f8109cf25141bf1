// SPDX-License-Identifier: Apache-2.0
#include "millrace/tokenizer/words/pattern_automaton.h"

#include <algorithm>
#include <map>
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

constexpr size_t kMostPlaces = 4096;
constexpr size_t kMostSets = 60;  // a bit each, and one for the end of the text
constexpr size_t kMostStates = 4000;

}  // namespace

class AutomatonBuilder {
 public:
  static std::shared_ptr<const PatternAutomaton> build(const RegexTree& tree) {
    AutomatonBuilder builder;
    const uint32_t match = builder.add({});
    const uint32_t start = builder.place(tree, match);
    if (!builder.fits_ || !builder.find_classes() || !builder.fill(start)) return nullptr;
    return std::move(builder.automaton_);
  }

 private:
  // A place in the expression.
  struct Place {
    enum class Kind : uint8_t { kTake, kNextIs, kNextIsNot, kFork, kMatch };
    Kind kind = Kind::kMatch;
    uint32_t set = 0;            // kTake, kNextIs, kNextIsNot
    uint32_t next = 0;           // where it goes on
    uint32_t second_choice = 0;  // kFork: tried after `next`
  };

  uint32_t add(Place place) {
    if (places_.size() >= kMostPlaces) fits_ = false;
    if (fits_) places_.push_back(place);
    return static_cast<uint32_t>(places_.size() - 1);
  }

  uint32_t number_of(const CodePointRanges& set) {
    const auto same = [&](const CodePointRanges& other) {
      return std::ranges::equal(set, other, [](auto a, auto b) { return a.first == b.first && a.last == b.last; });
    };
    const auto number = static_cast<size_t>(std::ranges::find_if(sets_, same) - sets_.begin());
    if (number == sets_.size()) sets_.push_back(set);
    if (sets_.size() > kMostSets) fits_ = false;
    return static_cast<uint32_t>(number);
  }

  // The first place of `tree`, which goes on at `next`.
  uint32_t place(const RegexTree& tree, uint32_t next) {
    switch (tree.kind) {
      case Kind::kSet:
        return add({Place::Kind::kTake, number_of(tree.set), next});
      case Kind::kNextIs:
        return add({Place::Kind::kNextIs, number_of(tree.set), next});
      case Kind::kNextIsNot:
        return add({Place::Kind::kNextIsNot, number_of(tree.set), next});
      case Kind::kSequence:
        for (size_t i = tree.parts.size(); i-- > 0;) next = place(tree.parts[i], next);
        return next;
      case Kind::kChoice: {
        uint32_t at = place(tree.parts.back(), next);
        for (size_t i = tree.parts.size() - 1; i-- > 0;) {
          const uint32_t first = place(tree.parts[i], next);
          at = add({Place::Kind::kFork, 0, first, at});
        }
        return at;
      }
      case Kind::kRepeat:
        return repeat(tree, next);
    }
    return next;
  }

  uint32_t fork(bool is_lazy, uint32_t again, uint32_t on) {
    return add({Place::Kind::kFork, 0, is_lazy ? on : again, is_lazy ? again : on});
  }

  uint32_t repeat(const RegexTree& tree, uint32_t next) {
    const RegexTree& body = tree.parts[0];
    uint32_t at = next;
    if (tree.most == RegexTree::kNoLimit) {
      at = add({Place::Kind::kFork});
      const uint32_t again = place(body, at);
      places_[at].next = tree.is_lazy ? next : again;
      places_[at].second_choice = tree.is_lazy ? again : next;
    } else {
      for (int i = tree.least; i < tree.most && fits_; ++i) {
        const uint32_t again = place(body, at);
        at = fork(tree.is_lazy, again, next);
      }
    }
    for (int i = 0; i < tree.least && fits_; ++i) at = place(body, at);
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
    class_sets_.push_back(0);  // the end of the text is in no set
    automaton_->width_ = class_sets_.size();
    return true;
  }

  // Where the engine could be before a character, in the order in which it would try; places that need it are not
  // resolved.
  using State = std::vector<uint32_t>;

  // Follows `at` with the knowledge that a character of `sets` comes next. False once a match has been found.
  bool follow(uint32_t at, uint64_t sets, State& next, bool& matches) {
    if (seen_[at] == round_) return true;
    seen_[at] = round_;
    const Place& place = places_[at];
    const bool is_in_set = sets >> place.set & 1;
    switch (place.kind) {
      case Place::Kind::kMatch:
        matches = true;
        return false;
      case Place::Kind::kTake:
        if (is_in_set && std::ranges::find(next, place.next) == next.end()) next.push_back(place.next);
        return true;
      case Place::Kind::kNextIs:
        return !is_in_set || follow(place.next, sets, next, matches);
      case Place::Kind::kNextIsNot:
        return is_in_set || follow(place.next, sets, next, matches);
      case Place::Kind::kFork:
        return follow(place.next, sets, next, matches) && follow(place.second_choice, sets, next, matches);
    }
    return true;
  }

  bool fill(uint32_t start) {
    std::map<State, uint32_t> numbers = {{{start}, 0}};
    std::vector<State> states = {{start}};
    seen_.resize(places_.size());
    for (size_t i = 0; i < states.size(); ++i) {
      const State state = states[i];
      for (const uint64_t sets : class_sets_) {
        ++round_;
        State next;
        bool matches = false;
        for (const uint32_t at : state)
          if (!follow(at, sets, next, matches)) break;
        uint32_t entry = PatternAutomaton::kDead;
        if (!next.empty()) {
          const auto [found, is_new] = numbers.try_emplace(next, static_cast<uint32_t>(states.size()));
          if (is_new) states.push_back(next);
          entry = found->second * static_cast<uint32_t>(automaton_->width_) << PatternAutomaton::kRowShift;
        }
        if (states.size() > kMostStates) return false;
        automaton_->table_.push_back(entry | (matches ? PatternAutomaton::kMatches : 0));
      }
    }
    find_plain_words();
    note_skips();
    return true;
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
  std::vector<Place> places_;
  std::vector<CodePointRanges> sets_;
  std::vector<uint64_t> class_sets_;  // of each class, a bit a set
  std::vector<uint64_t> seen_;        // the round in which a place was followed last
  uint64_t round_ = 0;
  bool fits_ = true;
};

namespace {

std::shared_ptr<const PatternAutomaton> build_automaton(std::string_view pattern) {
  const auto expanded = expand_classes(pattern);
  if (!expanded) return nullptr;
  const auto tree = parse_regex(expanded->text);
  if (!tree || may_be_empty(*tree)) return nullptr;
  return AutomatonBuilder::build(*tree);
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
      for (size_t c = 0; c <= end_class_ && !may_fail[state]; ++c) {
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
    if (may_fail[state]) add(state, 0);
  std::vector<std::vector<uint32_t>> before(states * states);  // the pairs that lead to each, once for each class
  std::vector<size_t> ahead(states * states);
  std::vector<size_t> struck_off;
  for (size_t i = 0; i < pairs.size(); ++i) {
    const size_t pair = pairs[i];
    for (size_t c = 0; c < end_class_; ++c) {
      const Step first = step(pair / states, c), later = step(pair % states, c);
      // The later scan began behind the last match of the first one.
      if (!first.goes_on || first.matches || !may_fail[first.to] || !later.goes_on) continue;
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

size_t PatternAutomaton::next_words(std::string_view piece, size_t begin, std::span<size_t> ends) const {
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
