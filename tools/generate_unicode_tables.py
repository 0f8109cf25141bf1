#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
r"""Writes src/millrace/tokenizer/unicode_*.cpp by asking the installed `tokenizers` package about every code point.

The tables match that package by construction, whatever Unicode versions its parts carry:
  classes     what \p{L}, \p{N} and \s match in its Split pre-tokenizer (Oniguruma), and what \w and \s match where it
              looks at the neighbours of an added token (Rust's regex crate)
  properties  the general categories and scripts of its Oniguruma; what its other pre-tokenizers and normalizers take for
              a digit, punctuation, white space, an accent, ...; lower case; its scripts; grapheme clusters
  normal      decompositions and compositions of its NFC, NFD, NFKC and NFKD

Usage: pip install tokenizers==0.23.3 && python tools/generate_unicode_tables.py
"""

import pathlib
import struct
import unicodedata

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

OUT = pathlib.Path(__file__).parent.parent / "src/millrace/tokenizer"
CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
CHUNK = 8192
HANGUL = range(0xAC00, 0xD7A4)
CATEGORIES = [
    "Lu",
    "Ll",
    "Lt",
    "Lm",
    "Lo",
    "Mn",
    "Mc",
    "Me",
    "Nd",
    "Nl",
    "No",
    "Pc",
    "Pd",
    "Ps",
    "Pe",
    "Pi",
    "Pf",
    "Po",
    "Sm",
    "Sc",
    "Sk",
    "So",
    "Zs",
    "Zl",
    "Zp",
    "Cc",
    "Cf",
    "Co",
]
SCRIPTS = [
    "Latin",
    "Greek",
    "Cyrillic",
    "Armenian",
    "Hebrew",
    "Arabic",
    "Syriac",
    "Thaana",
    "Devanagari",
    "Bengali",
    "Gurmukhi",
    "Gujarati",
    "Oriya",
    "Tamil",
    "Telugu",
    "Kannada",
    "Malayalam",
    "Sinhala",
    "Thai",
    "Lao",
    "Tibetan",
    "Myanmar",
    "Georgian",
    "Hangul",
    "Ethiopic",
    "Cherokee",
    "Mongolian",
    "Khmer",
    "Hiragana",
    "Katakana",
    "Bopomofo",
    "Han",
    "Yi",
    "Common",
    "Inherited",
]


def chunks():
    for start in range(0, len(CODE_POINTS), CHUNK):
        yield CODE_POINTS[start : start + CHUNK]


def removed_by(pre_tokenizer):
    """Code points that a pre-tokenizer which removes its matches removes."""
    found = []
    for chunk in chunks():
        kept = set()
        for _, (begin, end) in pre_tokenizer.pre_tokenize_str("".join(map(chr, chunk))):
            kept.update(range(begin, end))
        found += [c for i, c in enumerate(chunk) if i not in kept]
    return found


def matched_by_regex(pattern):
    return removed_by(pre_tokenizers.Split(Regex(pattern), "removed"))


def seen_beside_added_token(flag, text_of, is_match):
    """Code points for which an added token "@" with `flag` set behaves as `is_match` says in `text_of(code point)`."""
    tokenizer = Tokenizer(models.WordLevel({"?": 0}, unk_token="?"))
    tokenizer.add_tokens([AddedToken("@", normalized=False, **{flag: True})])
    found = []
    for chunk in chunks():
        chunk = [c for c in chunk if c != ord("@")]
        encodings = tokenizer.encode_batch([text_of(chr(c)) for c in chunk])
        found += [c for c, encoding in zip(chunk, encodings, strict=True) if is_match(encoding)]
    return found


def bert(**flags):
    off = {"clean_text": False, "handle_chinese_chars": False, "strip_accents": False, "lowercase": False}
    return normalizers.BertNormalizer(**(off | flags)).normalize_str


def charsmap_of_every_character():
    """A precompiled_charsmap that makes "b" of everything, by the first byte: a cluster below 6 bytes becomes one "b"."""
    root_offset, leaf_offset, value_follows = 256, 512, 1 << 8
    units = [0] * 1024
    units[0] = root_offset << 10
    for byte in (*range(1, 0x80), *range(0xC2, 0xF5)):
        units[root_offset ^ byte] = leaf_offset << 10 | value_follows | byte
    return struct.pack("<I1024I", 4 * len(units), *units) + b"b\0"


shortened = normalizers.Precompiled(charsmap_of_every_character()).normalize_str


def is_one_cluster(text):
    """Of fewer than 6 bytes."""
    return shortened(text) == "b"


def where(condition):
    return [c for c in CODE_POINTS if condition(chr(c))]


# ---- C++ text


def ranges(code_points):
    result = []
    for c in code_points:
        if result and result[-1][1] + 1 == c:
            result[-1][1] = c
        else:
            result.append([c, c])
    return result


def rows(items):
    lines, line = [], "   "
    for item in items:
        if len(line) + len(item) + 2 > 118:
            lines.append(line)
            line = "   "
        line += f" {item},"
    return "\n".join([*lines, line])


def table(type_name, name, comment, items):
    return f"// {comment}\nconstexpr {type_name} {name}[] = {{\n{rows(items)}\n}};\n"


def array(name, comment, code_points):
    items = [f"{{0x{first:X}, 0x{last:X}}}" for first, last in ranges(code_points)]
    return table("CodePointRange", name, comment, items)


def labelled(name, comment, labels):
    """`labels`: (code point, number), ascending; neighbours of one label become a range."""
    runs = []
    for c, label in labels:
        if runs and runs[-1][1] + 1 == c and runs[-1][2] == label:
            runs[-1][1] = c
        else:
            runs.append([c, c, label])
    return table("LabelledRange", name, comment, [f"{{0x{a:X}, 0x{b:X}, {label}}}" for a, b, label in runs])


# ---- classes


def write_classes():
    tables = [
        array("kLetterRanges", r"\p{L}", matched_by_regex(r"\p{L}")),
        array("kNumberRanges", r"\p{N}", matched_by_regex(r"\p{N}")),
        array("kSpaceRanges", r"\s", matched_by_regex(r"\s")),
        array(
            "kWordRanges",
            r"\w beside an added token",
            seen_beside_added_token("single_word", lambda c: c + "@", lambda e: 1 not in e.ids),
        ),
        array(
            "kWhiteRanges",
            r"\s beside an added token",
            seen_beside_added_token("rstrip", lambda c: "@" + c, lambda e: e.offsets == [(0, 2)]),
        ),
    ]
    write("unicode_tables.cpp", CLASSES, "\n".join(tables))


# ---- properties


def script_labels():
    """(code point, number) of every code point that the UnicodeScripts pre-tokenizer gives a script of its own."""
    split = pre_tokenizers.UnicodeScripts().pre_tokenize_str
    has_script = [c for c in CODE_POINTS if split(chr(c))]  # those of any script are lost at the start of a text
    representatives, labels = [], []
    for c in has_script:
        # The script of the code point before is the likely one.
        likely = labels[-1][1:] if labels else ()
        for number in (*likely, *range(1, len(representatives) + 1)):
            if len(split(representatives[number - 1] + chr(c))) == 1:
                break
        else:
            representatives.append(chr(c))
            number = len(representatives)
        labels.append((c, number))
    return labels


def lower_case():
    lower = normalizers.Lowercase().normalize_str
    return [(c, lower(chr(c))) for c in CODE_POINTS if lower(chr(c)) != chr(c)]


def write_properties():
    clean = bert(clean_text=True)
    nfd = normalizers.NFD().normalize_str
    strip_accents, strip_marks = normalizers.StripAccents().normalize_str, bert(strip_accents=True)
    chinese = bert(handle_chinese_chars=True)
    categories = sorted((c, i) for i, name in enumerate(CATEGORIES) for c in matched_by_regex(rf"\p{{{name}}}"))
    simple = [(c, lower) for c, lower in lower_case() if len(lower) == 1]
    assert [(c, lower) for c, lower in lower_case() if len(lower) > 1] == [(0x130, "i\u0307")]
    tables = [
        array("kNumericRanges", "Digits", removed_by_digits()),
        array("kPunctuationRanges", "Punctuation", removed_by(pre_tokenizers.Punctuation("removed"))),
        array("kWhiteSpaceRanges", "WhitespaceSplit", removed_by(pre_tokenizers.WhitespaceSplit())),
        array("kBertRemovedRanges", "Bert's clean_text drops them", where(lambda c: clean(c) == "")),
        array("kBertSpaceRanges", "Bert's clean_text makes them a space", where(lambda c: clean(c) == " ")),
        array("kBertChineseRanges", "Bert's handle_chinese_chars", where(lambda c: chinese(c) != c)),
        array("kCombiningRanges", "StripAccents", where(lambda c: strip_accents(c) == "")),
        array(
            "kNonspacingRanges",
            "Bert's strip_accents, behind NFD",
            where(lambda c: nfd(c) == c and strip_marks(c) == ""),
        ),
        array("kRegexWordRanges", r"\w of Oniguruma", matched_by_regex(r"\w")),
        array("kRegexDigitRanges", r"\d of Oniguruma", matched_by_regex(r"\d")),
        array("kExtendRanges", "They go on with a grapheme cluster", where(lambda c: is_one_cluster("a" + c))),
        array("kPrependRanges", "A grapheme cluster goes on behind them", where(lambda c: is_one_cluster(c + "a"))),
        array("kControlRanges", "Nothing goes on behind them", where(is_control)),
        array("kPictographicRanges", "Extended_Pictographic", where(is_pictographic)),
        labelled("kCategoryRanges", "General categories, numbered as in kCategoryNames", categories),
        table("std::string_view", "kCategoryNames", "General categories", [f'"{name}"' for name in CATEGORIES]),
        labelled("kScriptRanges", "UnicodeScripts", script_labels()),
        *(
            array(f"k{script}Ranges", f"Script {script} of Oniguruma", matched_by_regex(rf"\p{{{script}}}"))
            for script in SCRIPTS
        ),
        table("Lower", "kLower", "Lowercase", [f"{{0x{c:X}, 0x{ord(lower):X}}}" for c, lower in simple]),
    ]
    scripts = rows(f'{{"{script}", k{script}Ranges}}' for script in SCRIPTS)
    write("unicode_properties.cpp", PROPERTIES, "\n".join(tables), scripts)


def removed_by_digits():
    digits = pre_tokenizers.Digits(individual_digits=True).pre_tokenize_str
    return where(lambda c: len(digits("a" + c)) == 2)


def is_control(c):
    return len(c.encode()) < 4 and not is_one_cluster(c + "\u0300")


def is_pictographic(c):
    # Too long to be one "b": it is three when it is one cluster, and two when the first two characters are one.
    return shortened("\u00a9\u200d" + c) == "bbb" and not is_one_cluster("a" + c)


# ---- normal forms


def write_normal_forms():
    nfc, nfd = normalizers.NFC().normalize_str, normalizers.NFD().normalize_str
    nfkd = normalizers.NFKD().normalize_str
    plain = [c for c in CODE_POINTS if c not in HANGUL]
    canonical = {c: nfd(chr(c)) for c in plain if nfd(chr(c)) != chr(c)}
    compatible = {c: nfkd(chr(c)) for c in plain if nfkd(chr(c)) != canonical.get(c, chr(c))}
    compositions = []
    for c, parts in canonical.items():
        first = nfc(parts[:-1])
        if len(parts) > 1 and len(first) == 1 and nfc(first + parts[-1]) == chr(c):
            compositions.append((ord(first), ord(parts[-1]), c))
    # A mark moves before U+0345, whose class is the highest. Classes of characters never change once they are given.
    marks = [
        c for c in plain if unicodedata.combining(chr(c)) and (c == 0x345 or nfd("\u0345" + chr(c))[0] != "\u0345")
    ]
    pool = []
    entries = {}
    for name, mapping in (("kCanonical", canonical), ("kCompatible", compatible)):
        entries[name] = []
        for c, parts in sorted(mapping.items()):
            entries[name].append(f"{{0x{c:X}, {len(pool)}, {len(parts)}}}")
            pool += map(ord, parts)
    tables = [
        table("char32_t", "kPool", "The characters of all decompositions", [f"0x{c:X}" for c in pool]),
        table("Decomposition", "kCanonical", "Full canonical decompositions but for Hangul", entries["kCanonical"]),
        table("Decomposition", "kCompatible", "Those that NFKD adds or changes", entries["kCompatible"]),
        table(
            "Composition",
            "kCompositions",
            "Pairs that NFC joins, ascending",
            [f"{{0x{a:X}, 0x{b:X}, 0x{c:X}}}" for a, b, c in sorted(compositions)],
        ),
        labelled("kClassRanges", "Canonical combining classes", [(c, unicodedata.combining(chr(c))) for c in marks]),
    ]
    write("unicode_normal_data.cpp", NORMAL, "\n".join(tables))


def write(name, template, tables, *more):
    text = template.replace("@VERSION@", tokenizers.__version__).replace("@TABLES@", tables)
    if more:
        text = text.replace("@SCRIPTS@", more[0])
    (OUT / name).write_text(text)


def main():
    write_classes()
    write_properties()
    write_normal_forms()


HEAD = """// SPDX-License-Identifier: Apache-2.0
// Generated by tools/generate_unicode_tables.py from tokenizers @VERSION@. Do not edit.
"""

CLASSES = (
    HEAD
    + """#include "millrace/tokenizer/unicode_tables.h"

#include <vector>

namespace millrace::tokenizer {
namespace {

// clang-format off
@TABLES@// clang-format on

std::vector<uint8_t> build_code_point_classes() {
  std::vector<uint8_t> classes(kCodePointTableSize, kOtherClass);
  const auto mark = [&](const auto& ranges, uint8_t bits) {
    for (const CodePointRange& range : ranges)
      for (uint32_t c = range.first; c <= range.last; ++c) classes[c] |= bits;
  };
  mark(kLetterRanges, kLetterClass);
  mark(kNumberRanges, kNumberClass);
  mark(kSpaceRanges, kSpaceClass);
  mark(kWordRanges, kWordFlag);
  mark(kWhiteRanges, kWhiteFlag);
  return classes;
}

}  // namespace

const uint8_t* code_point_classes() {
  static const std::vector<uint8_t> classes = build_code_point_classes();
  return classes.data();
}

}  // namespace millrace::tokenizer
"""
)

PROPERTIES = (
    HEAD
    + """#include "millrace/tokenizer/unicode_data.h"

namespace millrace::tokenizer {
namespace {

// clang-format off
@TABLES@
constexpr NamedRanges kScripts[] = {
@SCRIPTS@
};
// clang-format on

}  // namespace

const PropertyData kPropertyData = {
    .numeric = kNumericRanges,
    .punctuation = kPunctuationRanges,
    .white_space = kWhiteSpaceRanges,
    .bert_removed = kBertRemovedRanges,
    .bert_space = kBertSpaceRanges,
    .bert_chinese = kBertChineseRanges,
    .combining = kCombiningRanges,
    .nonspacing = kNonspacingRanges,
    .regex_word = kRegexWordRanges,
    .regex_digit = kRegexDigitRanges,
    .extend = kExtendRanges,
    .prepend = kPrependRanges,
    .control = kControlRanges,
    .pictographic = kPictographicRanges,
    .category_names = kCategoryNames,
    .categories = kCategoryRanges,
    .script_numbers = kScriptRanges,
    .scripts = kScripts,
    .lower = kLower,
};

}  // namespace millrace::tokenizer
"""
)

NORMAL = (
    HEAD
    + """#include "millrace/tokenizer/unicode_data.h"

namespace millrace::tokenizer {
namespace {

// clang-format off
@TABLES@// clang-format on

}  // namespace

const NormalData kNormalData = {
    .pool = kPool,
    .canonical = kCanonical,
    .compatible = kCompatible,
    .compositions = kCompositions,
    .classes = kClassRanges,
};

}  // namespace millrace::tokenizer
"""
)

if __name__ == "__main__":
    main()
