// SPDX-License-Identifier: Apache-2.0
#include "millrace/tokenizer/fast/unit_path.h"

#include <algorithm>

#include "millrace/tokenizer/steps/normalizer.h"
#include "millrace/tokenizer/text/aligned_text.h"
#include "millrace/tokenizer/text/precompiled.h"
#include "millrace/tokenizer/text/unicode_tables.h"

// Two shapes have units. Below, x|y is a cut between two neighbours.
//
// BPE over the whole text, with U+2581 for spaces (BpeShape). A cut x|y is right when nothing can ever be merged across
// it: no merge has a left part that ends with x and a right part that begins with y. Symbols are spelled by their
// names, since no byte token and no unknown token takes part in a merge; that is checked.
//
// Words between white space (WordShape). A cut x|y is right when each normalizer makes of the two sides what it makes
// of the whole, and the first pre-tokenizer ends a word there: the others see one word at a time, and so does the
// model. The normalizers that are taken work on single characters, but for
//  - normal forms: they look no further back than the last starter, and nothing is composed with an ASCII character
//  that
//    follows it;
//  - a precompiled map: it works on grapheme clusters, and one ends before white space unless it ends with a prepended
//  mark;
//  - a Replace of graphic ASCII by graphic ASCII: what it finds has no white space in it, so the only cuts are those
//    beside white space. Another joins spaces where the first pre-tokenizer takes any number of them for one.
// A BertNormalizer alone decomposes, at most, and marks stay behind what they follow: there, all white space and
// punctuation, and ideographs where they get spaces, are what they are beside any neighbour (WordShape::by_character).

namespace millrace::tokenizer {
namespace {

constexpr uint32_t kMeta = 0x2581;

bool is_graphic(uint32_t c) {
  return c > ' ' && c < 0x7F;
}
bool is_letter(uint32_t c) {
  return c < 0x80 && (c | 0x20) >= 'a' && (c | 0x20) <= 'z';
}
bool is_digit(uint32_t c) {
  return c >= '0' && c <= '9';
}

uint32_t first_character(std::string_view text) {
  return Characters(text).value();
}
uint32_t last_character(std::string_view text) {
  uint32_t last = 0;
  for (Characters c(text); !c.at_end(); c.next()) last = c.value();
  return last;
}

bool has_normalized_tokens(const TokenizerSpec& spec) {
  return std::ranges::any_of(spec.added_tokens, [](const auto& t) { return t.normalized && !t.content.empty(); });
}

// ---- BPE over the whole text

struct BpeShape {
  UnitPath::Start start = UnitPath::Start::kNothing;
  bool space_starts_word = false;

  static std::optional<BpeShape> find(const TokenizerSpec& spec) {
    return spec.normalizers.empty() ? of_metaspace(spec.pretokenizers) : of_normalizers(spec);
  }

 private:
  static std::optional<BpeShape> of_metaspace(const std::vector<PreTokenizerSpec>& steps) {
    const auto* metaspace = steps.size() == 1 ? std::get_if<MetaspaceSpec>(&steps[0]) : nullptr;
    if (metaspace == nullptr || metaspace->replacement != kMetaSymbol) return std::nullopt;
    BpeShape shape{UnitPath::Start::kNothing, metaspace->split};
    if (metaspace->prepend == PrependScheme::kAlways) shape.start = UnitPath::Start::kSpaceUnlessThere;
    if (metaspace->prepend == PrependScheme::kFirst) shape.start = UnitPath::Start::kSpaceUnlessThereFirst;
    return shape;
  }

  static std::optional<BpeShape> of_normalizers(const TokenizerSpec& spec) {
    int prepends = 0, replaces = 0;
    for (const NormalizerSpec& step : spec.normalizers) {
      const auto* prepend = std::get_if<PrependSpec>(&step);
      const auto* replace = std::get_if<ReplaceSpec>(&step);
      const bool is_prepend = prepend != nullptr && prepend->text == kMetaSymbol;
      const bool is_replace = replace != nullptr && !replace->pattern.is_regex && replace->pattern.text == " " &&
                              replace->content == kMetaSymbol;
      if (!is_prepend && !is_replace) return std::nullopt;
      prepends += is_prepend;
      replaces += is_replace;
    }
    if (prepends > 1 || replaces != 1) return std::nullopt;
    for (const PreTokenizerSpec& step : spec.pretokenizers) {
      // A search for a space finds none.
      const auto* split = std::get_if<SplitSpec>(&step);
      if (split == nullptr || split->pattern.is_regex || split->invert ||
          split->pattern.text.find(' ') == std::string::npos)
        return std::nullopt;
    }
    return BpeShape{prepends == 1 ? UnitPath::Start::kSpace : UnitPath::Start::kNothing, false};
  }
};

// Which characters the merges of a file can join.
class Joins {
 public:
  // Added to UnitScanner::kFirstKind for a character beyond ASCII: bits, or one of the two kinds above them.
  static constexpr uint8_t kEndsLeft = 1, kStartsRight = 2, kJoinsSpace = 4, kUnknown = 8, kNever = 9;

  // False: a byte token or the unknown token is in a merge.
  static bool are_of_text(const BpeSpec& spec) {
    const auto is_safe = [&](std::string_view name) {
      return (!spec.byte_fallback || name.find("<0x") == std::string_view::npos) &&
             (!spec.unk_token || name.find(*spec.unk_token) == std::string_view::npos);
    };
    return std::ranges::all_of(spec.merges, [&](const auto& m) {
      return !m.first.empty() && !m.second.empty() && is_safe(m.first) && is_safe(m.second);
    });
  }

  Joins(const BpeSpec& spec, const UnitBpe& bpe) : kinds_(0x10000), ascii_(size_t{128} * 128) {
    const uint8_t flag_unknown = bpe.fuses_unknown() ? kUnknown : 0;
    for (uint32_t c = 128; c < kinds_.size(); ++c) kinds_[c] = bpe.token_of(c) == kNoToken ? flag_unknown : 0;
    for (uint32_t c = 0; c < 128; ++c) ascii_unknown_[c] = bpe.fuses_unknown() && bpe.token_of(c) == kNoToken;
    for (const auto& [left, right] : spec.merges) add(last_character(left), first_character(right));
    for (uint32_t c = 0; c < kinds_.size(); ++c) {
      if (kinds_[c] > kUnknown) kinds_[c] = kNever;
      kinds_[c] = static_cast<uint8_t>(c < 128 ? c : kinds_[c] + UnitScanner::kFirstKind);
    }
    kinds_[kMeta] = UnitScanner::kFirstKind + kNever;
    astral_kind_ = UnitScanner::kFirstKind + (astral_ || bpe.fuses_unknown() ? kNever : 0);
  }

  void fill(bool space_starts_word, UnitPath& path) {
    for (uint32_t left = 0; left <= UnitScanner::kFirstKind + kNever; ++left) {
      for (uint32_t right = 0; right <= UnitScanner::kFirstKind + kNever; ++right)
        if (!may_join(left, right) && !is_one_word(left, right)) path.scanner.set_cut(left, right, UnitScanner::kCut);
      if (!space_starts_word) continue;
      path.scanner.set_cut(left, ' ', UnitScanner::kCut);
      path.scanner.set_cut(left, UnitScanner::kFirstKind + kNever, UnitScanner::kCut);
    }
    path.kinds = std::move(kinds_);
    path.scanner.set_kinds(path.kinds.data(), astral_kind_, astral_kind_);
  }

 private:
  void add(uint32_t left, uint32_t right) {
    if (left == kMeta) left = ' ';
    if (right == kMeta) right = ' ';
    astral_ |= left > 0xFFFF || right > 0xFFFF;
    if (left < 128 && right < 128) ascii_[left * 128 + right] = true;
    if (left < 128 && right >= 128) joins_foreign_[left] = true;
    if (left >= 128 && right < 128) foreign_joins_[right] = true;
    if (left >= 128 && left < kinds_.size()) kinds_[left] |= right == ' ' ? kEndsLeft | kJoinsSpace : kEndsLeft;
    if (right >= 128 && right < kinds_.size()) kinds_[right] |= kStartsRight;
  }

  bool may_join(uint32_t left, uint32_t right) const {
    constexpr uint32_t kFirst = UnitScanner::kFirstKind;
    if (left == kFirst + kNever || right == kFirst + kNever) return true;
    const bool left_unknown = left < kFirst ? ascii_unknown_[left] : left == kFirst + kUnknown;
    const bool right_unknown = right < kFirst ? ascii_unknown_[right] : right == kFirst + kUnknown;
    if (left_unknown || right_unknown) return left_unknown && right_unknown;
    if (left < kFirst && right < kFirst) return ascii_[left * 128 + right];
    if (right == ' ') return (left - kFirst) & kJoinsSpace;
    const bool ends = left < kFirst ? joins_foreign_[left] : (left - kFirst) & kEndsLeft;
    const bool starts = right < kFirst ? foreign_joins_[right] : (right - kFirst) & kStartsRight;
    return ends && starts;
  }

  // Cuts that are right but not wanted: short words repeat themselves, parts of them are only more look-ups.
  static bool is_one_word(uint32_t left, uint32_t right) {
    return left == ' ' || (left == right && left < 128) || (is_letter(left) && is_letter(right)) ||
           (is_digit(left) && is_digit(right));
  }

  std::vector<uint8_t> kinds_;
  std::vector<bool> ascii_;
  std::array<bool, 128> joins_foreign_{}, foreign_joins_{}, ascii_unknown_{};
  bool astral_ = false;
  uint8_t astral_kind_ = 0;
};

// What an added token has in it that normalizing leaves alone.
std::string core_of(std::string_view content) {
  std::string_view longest;
  size_t begin = 0;
  const auto take = [&](size_t end) {
    if (end - begin > longest.size()) longest = content.substr(begin, end - begin);
  };
  for (Characters c(content); !c.at_end(); c.next()) {
    if (c.value() != ' ' && c.value() != kMeta) continue;
    take(c.begin());
    begin = c.end();
  }
  take(content.size());
  return std::string(longest);
}

std::optional<UnitPath> bpe_path(const TokenizerSpec& spec, const Model& model) {
  const auto* bpe_spec = std::get_if<BpeSpec>(&spec.model);
  const auto* bpe_model = dynamic_cast<const CharBpe*>(&model);
  const auto shape = BpeShape::find(spec);
  if (bpe_spec == nullptr || bpe_model == nullptr || !shape || !Joins::are_of_text(*bpe_spec)) return std::nullopt;
  UnitPath path;
  path.bpe = UnitBpe::build(*bpe_model);
  if (!path.bpe) return std::nullopt;
  path.start = shape->start;
  if (!spec.normalizers.empty()) {
    for (const AddedTokenSpec& token : spec.added_tokens) {
      if (!token.normalized || token.content.empty()) continue;
      const std::string core = core_of(token.content);
      if (core.empty()) return std::nullopt;
      path.cores.add(core, 0, {});
    }
  }
  Joins(*bpe_spec, *path.bpe).fill(shape->space_starts_word, path);
  return path;
}

// ---- words between white space

// Kinds of characters beyond ASCII, added to UnitScanner::kFirstKind.
constexpr uint8_t kOther = 0, kLetter = 1, kChinese = 2, kPrepended = 3, kPunctuation = 4, kWhiteSpace = 5;
static_assert(kWordKinds == UnitScanner::kFirstKind + kWhiteSpace + 1);

uint8_t kind_of_separator(uint32_t c) {
  if (is_punctuation(c)) return is_bert_removed(c) ? kOther : kPunctuation;
  return is_white_space(c) && is_bert_white_space(c) && !is_bert_removed(c) ? kWhiteSpace : kOther;
}

const uint8_t* word_kinds() {
  static const std::vector<uint8_t> kinds = [] {
    std::vector<uint8_t> result(0x10000);
    for (uint8_t c = 0; c < 128; ++c) result[c] = c;
    const uint8_t* const classes = code_point_classes();
    for (uint32_t c = 128; c < result.size(); ++c) {
      uint8_t kind = kOther;
      if ((classes[c] & kClassMask) == kLetterClass && !extends_cluster(c)) kind = kLetter;
      if (c >= 0x2E80 && is_bert_chinese(c) && !is_bert_removed(c)) kind = kChinese;
      if (prepends_cluster(c)) kind = kPrepended;
      if (kind == kOther) kind = kind_of_separator(c);
      result[c] = UnitScanner::kFirstKind + kind;
    }
    return result;
  }();
  return kinds.data();
}

// What the normalizers of a file leave to be cut.
struct WordShape {
  bool precompiled = false, precompiled_is_first = false;
  bool composes = false;
  bool spaces_chinese = false;
  bool by_character = false;
  bool replaces = false;          // characters that are neighbours
  bool removes_letters = false;   // some that are unknown to its Unicode tables
  bool isolates = false;          // punctuation is a word by itself
  std::array<bool, 128> white{};  // a word ends before it

  // `drops_white`: the first pre-tokenizer does.
  bool take(const NormalizerSpec& step, bool is_first, bool drops_white) {
    if (const auto* form = std::get_if<NormalForm>(&step))
      composes |= *form == NormalForm::kNfc || *form == NormalForm::kNfkc;
    else if (const auto* bert = std::get_if<BertNormalizerSpec>(&step))
      spaces_chinese |= is_first && bert->handle_chinese_chars, removes_letters = true;
    else if (const auto* map = std::get_if<PrecompiledSpec>(&step))
      return take_precompiled(*map, is_first);
    else if (const auto* replace = std::get_if<ReplaceSpec>(&step))
      return take_replace(*replace, drops_white);
    else
      return std::holds_alternative<LowercaseSpec>(step) || std::holds_alternative<StripAccentsSpec>(step) ||
             std::holds_alternative<NmtSpec>(step);
    return true;
  }

  // Keeps of `white` what begins with white space, or a space, once it is normalized.
  bool find_white(const Normalizer& normalizer, bool only_space) {
    for (const char c : UnitScanner::kWhite) {
      const auto begins_white = [&](std::string text) {
        AlignedText aligned;
        Normalizer::Scratch scratch;
        aligned.assign(text, 0, false);
        if (!normalizer.apply(aligned, scratch) || aligned.text().empty()) return false;
        return only_space ? aligned.text()[0] == ' '
                          : UnitScanner::kWhite.find(aligned.text()[0]) != std::string_view::npos;
      };
      const std::string text(1, c);
      white[static_cast<uint8_t>(c)] = begins_white(text) && (c != '\r' || begins_white("\r\n"));
    }
    return white[' '];
  }

  // What is right at a|b. Where it is not kNone between white space and another character, all white space before it
  // has been cut off from what was there: that is what kDrop needs.
  UnitScanner::Cut cut(uint32_t a, uint32_t b) const {
    if (is_white(a)) return goes_behind_white(b) ? after_white() : UnitScanner::kNone;
    if (is_white(b)) return before_white(a);
    const bool parts = by_character ? is_alone(a) || is_alone(b) : parts_word(a, b);
    return parts ? UnitScanner::kCut : UnitScanner::kNone;
  }

 private:
  bool is_white(uint32_t c) const {
    return c < 128 ? white[c] : by_character && c == UnitScanner::kFirstKind + kWhiteSpace;
  }

  bool is_isolated(uint32_t c) const { return isolates && is_graphic(c) && is_punctuation(c); }

  bool is_alone(uint32_t c) const {
    constexpr uint32_t kFirst = UnitScanner::kFirstKind;
    if (c < 128) return is_isolated(c);
    return (isolates && c == kFirst + kPunctuation) || (spaces_chinese && c == kFirst + kChinese);
  }

  UnitScanner::Cut after_white() const {
    return precompiled && !precompiled_is_first ? UnitScanner::kNone : UnitScanner::kDrop;
  }

  bool goes_behind_white(uint32_t b) const {
    if (by_character) return !is_white(b);
    return b < 128 ? is_graphic(b) : b == UnitScanner::kFirstKind + kLetter || b == UnitScanner::kFirstKind + kChinese;
  }

  UnitScanner::Cut before_white(uint32_t a) const {
    if (!precompiled || is_graphic(a)) return UnitScanner::kCut;
    // The steps before it may remove a mark, and then a prepended one comes before the white space; letters stay some.
    const bool is_letter_kind = a == UnitScanner::kFirstKind + kLetter || a == UnitScanner::kFirstKind + kChinese;
    if (!precompiled_is_first) return is_letter_kind && !removes_letters ? UnitScanner::kCut : UnitScanner::kNone;
    if (a < 128) return cluster_class(a) == ClusterClass::kControl ? UnitScanner::kCut : UnitScanner::kNone;
    return a == UnitScanner::kFirstKind + kPrepended ? UnitScanner::kGlue : UnitScanner::kCut;
  }

  // REQUIRES: none of the two is white space.
  bool parts_word(uint32_t a, uint32_t b) const {
    constexpr uint32_t kFirst = UnitScanner::kFirstKind;
    const bool a_foreign = a >= kFirst, b_foreign = b >= kFirst;
    if (precompiled || replaces || (!a_foreign && !is_graphic(a)) || (!b_foreign && !is_graphic(b))) return false;
    if (spaces_chinese && (a == kFirst + kChinese || b == kFirst + kChinese)) return true;
    // A mark behind it may compose with it, and what comes out is no punctuation.
    if (!b_foreign && is_isolated(b) && !composes) return true;
    if (a_foreign || !is_isolated(a)) return false;
    return !b_foreign || (b == kFirst + kLetter && !composes);
  }

  bool take_replace(const ReplaceSpec& replace, bool drops_white) {
    if (drops_white && replace.pattern.is_regex && replace.pattern.text == " {2,}" && replace.content == " ")
      return true;
    const auto are_graphic = [](std::string_view text) {
      return !text.empty() && std::ranges::all_of(text, [](char c) { return is_graphic(static_cast<uint8_t>(c)); });
    };
    replaces = true;
    return !replace.pattern.is_regex && are_graphic(replace.pattern.text) && are_graphic(replace.content);
  }

  bool take_precompiled(const PrecompiledSpec& spec, bool is_first) {
    const auto map = PrecompiledMap::parse(spec.map);
    // Nothing that begins with a space is in the map: it stays one, also before marks that join its cluster.
    if (precompiled || !map || !map->is_surely_normal(" ")) return false;
    precompiled = true;
    precompiled_is_first = is_first;
    return true;
  }
};

// The first pre-tokenizer cuts at white space (true) or is a Metaspace that cuts before it (false); nullopt: neither.
std::optional<bool> removes_white(const std::vector<PreTokenizerSpec>& steps) {
  if (steps.empty()) return std::nullopt;
  for (size_t i = 0; i < steps.size(); ++i) {
    const auto* metaspace = std::get_if<MetaspaceSpec>(&steps[i]);
    // It asks whether a word is the text's first.
    if (i > 0 && metaspace != nullptr && metaspace->prepend == PrependScheme::kFirst) return std::nullopt;
  }
  if (const auto* metaspace = std::get_if<MetaspaceSpec>(&steps[0]))
    return metaspace->split ? std::optional(false) : std::nullopt;
  const auto* split = std::get_if<CharacterSplitSpec>(&steps[0]);
  const bool by_white =
      split != nullptr && split->kind == CharacterKind::kWhiteSpace && split->behavior == SplitBehavior::kRemoved;
  return by_white || std::holds_alternative<WordsSpec>(steps[0]) ? std::optional(true) : std::nullopt;
}

bool isolates_punctuation(const std::vector<PreTokenizerSpec>& steps) {
  const auto* split = steps.size() > 1 ? std::get_if<CharacterSplitSpec>(&steps[1]) : nullptr;
  return std::holds_alternative<CharacterSplitSpec>(steps[0]) && split != nullptr &&
         split->kind == CharacterKind::kPunctuation &&
         (split->behavior == SplitBehavior::kIsolated || split->behavior == SplitBehavior::kRemoved);
}

bool is_bert_alone(const TokenizerSpec& spec) {
  return spec.normalizers.empty() ||
         (spec.normalizers.size() == 1 && std::holds_alternative<BertNormalizerSpec>(spec.normalizers[0]));
}

std::optional<UnitPath> word_path(const TokenizerSpec& spec, const Model& model) {
  const auto white = removes_white(spec.pretokenizers);
  if (!white || (has_normalized_tokens(spec) && !spec.normalizers.empty())) return std::nullopt;
  WordShape shape;
  for (const NormalizerSpec& step : spec.normalizers)
    if (!shape.take(step, &step == spec.normalizers.data(), *white)) return std::nullopt;
  const auto normalizer = Normalizer::build(spec.normalizers);
  if (!normalizer || !shape.find_white(*normalizer, !*white)) return std::nullopt;
  shape.isolates = *white && isolates_punctuation(spec.pretokenizers);
  if (!*white) shape.spaces_chinese = false;
  shape.by_character = std::holds_alternative<CharacterSplitSpec>(spec.pretokenizers[0]) && is_bert_alone(spec);
  UnitPath path;
  path.start = *white ? UnitPath::Start::kNothing : UnitPath::Start::kGeneral;
  path.plain = PlainWords::build(spec, *normalizer);
  if (path.plain) path.pieces = dynamic_cast<const WordPiece*>(&model);
  for (uint32_t a = 0; a < kWordKinds; ++a)
    for (uint32_t b = 0; b < kWordKinds; ++b) {
      const auto cut = shape.cut(a, b);
      // White space in front of a Metaspace is no mere separator.
      path.scanner.set_cut(a, b, !*white && cut == UnitScanner::kDrop ? UnitScanner::kNone : cut);
    }
  path.scanner.set_kinds(word_kinds(), UnitScanner::kFirstKind + kPrepended, UnitScanner::kFirstKind + kOther);
  path.scanner.use_blocks(kWordKinds, find_unit_block_scan());
  return path;
}

}  // namespace

std::optional<UnitPath> UnitPath::build(const TokenizerSpec& spec, const Model& model) {
  auto path = bpe_path(spec, model);
  return path ? std::move(path) : word_path(spec, model);
}

bool is_lone_letter(uint32_t c) {
  const uint8_t kind = word_kinds()[c];
  return kind == UnitScanner::kFirstKind + kLetter || kind == UnitScanner::kFirstKind + kChinese;
}

bool UnitPath::may_have_added_token(std::string_view text) const {
  return cores.finds_any(text);
}

}  // namespace millrace::tokenizer
