#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
r"""Writes src/millrace/tokenizer/text/unicode_*.cpp by asking the installed `tokenizers` package about every code point.

The tables match that package by construction, whatever Unicode versions its parts carry:
  classes     what \p{L}, \p{N} and \s match in its Split pre-tokenizer (Oniguruma), and what \w and \s match where it
              looks at the neighbours of an added token (Rust's regex crate)
  properties  the general categories, scripts and some more properties of its Oniguruma; what its other pre-tokenizers
              and normalizers take for a digit, punctuation, white space, an accent, ...; lower case; its scripts;
              the grapheme clusters of its Precompiled
  normal      decompositions and compositions of its NFC, NFD, NFKC and NFKD

Usage: pip install tokenizers==0.23.3 && python tools/generate_unicode_tables.py
"""

import collections
import pathlib
import struct
import unicodedata

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

OUT = pathlib.Path(__file__).parent.parent / "src/millrace/tokenizer/text"
CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
CHUNK = 8192
HANGUL = range(0xAC00, 0xD7A4)
# Long names as in \p{..}; Cs is no part of any text.
CATEGORIES = {
    "Lu": "Uppercase_Letter",
    "Ll": "Lowercase_Letter",
    "Lt": "Titlecase_Letter",
    "Lm": "Modifier_Letter",
    "Lo": "Other_Letter",
    "Mn": "Nonspacing_Mark",
    "Mc": "Spacing_Mark",
    "Me": "Enclosing_Mark",
    "Nd": "Decimal_Number",
    "Nl": "Letter_Number",
    "No": "Other_Number",
    "Pc": "Connector_Punctuation",
    "Pd": "Dash_Punctuation",
    "Ps": "Open_Punctuation",
    "Pe": "Close_Punctuation",
    "Pi": "Initial_Punctuation",
    "Pf": "Final_Punctuation",
    "Po": "Other_Punctuation",
    "Sm": "Math_Symbol",
    "Sc": "Currency_Symbol",
    "Sk": "Modifier_Symbol",
    "So": "Other_Symbol",
    "Zs": "Space_Separator",
    "Zl": "Line_Separator",
    "Zp": "Paragraph_Separator",
    "Cc": "Control",
    "Cf": "Format",
    "Co": "Private_Use",
    "Cn": "Unassigned",
}
# Names and codes of scripts.
SCRIPT_NAMES = """
    Adlam/Adlm Ahom Anatolian_Hieroglyphs/Hluw Arabic/Arab Armenian/Armn Avestan/Avst Balinese/Bali Bamum/Bamu
    Bassa_Vah/Bass Batak/Batk Bengali/Beng Bhaiksuki/Bhks Bopomofo/Bopo Brahmi/Brah Braille/Brai Buginese/Bugi
    Buhid/Buhd Canadian_Aboriginal/Cans Carian/Cari Caucasian_Albanian/Aghb Chakma/Cakm Cham Cherokee/Cher
    Chorasmian/Chrs Common/Zyyy Coptic/Copt Cuneiform/Xsux Cypriot/Cprt Cypro_Minoan/Cpmn Cyrillic/Cyrl
    Deseret/Dsrt Devanagari/Deva Dives_Akuru/Diak Dogra/Dogr Duployan/Dupl Egyptian_Hieroglyphs/Egyp
    Elbasan/Elba Elymaic/Elym Ethiopic/Ethi Garay/Gara Georgian/Geor Glagolitic/Glag Gothic/Goth Grantha/Gran
    Greek/Grek Gujarati/Gujr Gunjala_Gondi/Gong Gurmukhi/Guru Gurung_Khema/Gukh Han/Hani Hangul/Hang
    Hanifi_Rohingya/Rohg Hanunoo/Hano Hatran/Hatr Hebrew/Hebr Hiragana/Hira Imperial_Aramaic/Armi Inherited/Zinh
    Inscriptional_Pahlavi/Phli Inscriptional_Parthian/Prti Javanese/Java Kaithi/Kthi Kannada/Knda Katakana/Kana
    Kawi Kayah_Li/Kali Kharoshthi/Khar Khitan_Small_Script/Kits Khmer/Khmr Khojki/Khoj Khudawadi/Sind
    Kirat_Rai/Krai Lao/Laoo Latin/Latn Lepcha/Lepc Limbu/Limb Linear_A/Lina Linear_B/Linb Lisu Lycian/Lyci
    Lydian/Lydi Mahajani/Mahj Makasar/Maka Malayalam/Mlym Mandaic/Mand Manichaean/Mani Marchen/Marc
    Masaram_Gondi/Gonm Medefaidrin/Medf Meetei_Mayek/Mtei Mende_Kikakui/Mend Meroitic_Cursive/Merc
    Meroitic_Hieroglyphs/Mero Miao/Plrd Modi Mongolian/Mong Mro/Mroo Multani/Mult Myanmar/Mymr Nabataean/Nbat
    Nag_Mundari/Nagm Nandinagari/Nand New_Tai_Lue/Talu Newa Nko/Nkoo Nushu/Nshu Nyiakeng_Puachue_Hmong/Hmnp
    Ogham/Ogam Ol_Chiki/Olck Ol_Onal/Onao Old_Hungarian/Hung Old_Italic/Ital Old_North_Arabian/Narb
    Old_Permic/Perm Old_Persian/Xpeo Old_Sogdian/Sogo Old_South_Arabian/Sarb Old_Turkic/Orkh Old_Uyghur/Ougr
    Oriya/Orya Osage/Osge Osmanya/Osma Pahawh_Hmong/Hmng Palmyrene/Palm Pau_Cin_Hau/Pauc Phags_Pa/Phag
    Phoenician/Phnx Psalter_Pahlavi/Phlp Rejang/Rjng Runic/Runr Samaritan/Samr Saurashtra/Saur Sharada/Shrd
    Shavian/Shaw Siddham/Sidd SignWriting/Sgnw Sinhala/Sinh Sogdian/Sogd Sora_Sompeng/Sora Soyombo/Soyo
    Sundanese/Sund Sunuwar/Sunu Syloti_Nagri/Sylo Syriac/Syrc Tagalog/Tglg Tagbanwa/Tagb Tai_Le/Tale
    Tai_Tham/Lana Tai_Viet/Tavt Takri/Takr Tamil/Taml Tangsa/Tnsa Tangut/Tang Telugu/Telu Thaana/Thaa Thai
    Tibetan/Tibt Tifinagh/Tfng Tirhuta/Tirh Todhri/Todr Toto Tulu_Tigalari/Tutg Ugaritic/Ugar Unknown/Zzzz
    Vai/Vaii Vithkuqi/Vith Wancho/Wcho Warang_Citi/Wara Yezidi/Yezi Yi/Yiii Zanabazar_Square/Zanb
"""
SCRIPTS = SCRIPT_NAMES.split()
# What a property is near to (general categories): the table says where it differs. Single letters are \w and the like.
DERIVED = {
    "w": "L M Nd Nl Pc",
    "d": "Nd",
    "h": "",
    "Alpha/Alphabetic": "L Nl",
    "Alnum": "L Nl Nd",
    "Lower/Lowercase": "Ll",
    "Upper/Uppercase": "Lu",
    "Digit": "Nd",
    "XDigit": "",
    "Word": "L M Nd Nl Pc",
    "Space/White_Space": "Z",
    "Blank": "Zs",
    "Cntrl": "Cc",
    "Punct": "P",
    "Graph": "L M N P S Cf Co",
    "Print": "L M N P S Zs Cf Co",
    "ASCII": "",
    "Any": "L M N P S Z C",
    "Assigned": "L M N P S Z Cc Cf Co",
}
# As the enum ClusterClass numbers them.
CLUSTER_CLASSES = [
    "other",
    "control",
    "extend",
    "extend_only",
    "linker",
    "spacing_mark",
    "joiner",
    "prepend",
    "pictographic",
    "consonant",
    "lead",
    "vowel",
    "trail",
]
NO_LABEL = 255


def chunks(code_points=CODE_POINTS):
    for start in range(0, len(code_points), CHUNK):
        yield code_points[start : start + CHUNK]


def removed_by(pre_tokenizer, among=CODE_POINTS):
    """Code points that a pre-tokenizer which removes its matches removes."""
    found = []
    for chunk in chunks(among):
        kept = set()
        for _, (begin, end) in pre_tokenizer.pre_tokenize_str("".join(map(chr, chunk))):
            kept.update(range(begin, end))
        found += [c for i, c in enumerate(chunk) if i not in kept]
    return found


def matched_by_regex(pattern, among=CODE_POINTS):
    return removed_by(pre_tokenizers.Split(Regex(pattern), "removed"), among)


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
    items = [f"{{0x{first:X},0x{last:X}}}" for first, last in ranges(code_points)]
    return table("CodePointRange", name, comment, items)


def runs(name, comment, labels, default=NO_LABEL):
    """`labels`: from code point to number. A run goes on to the start of the next."""
    items, before = [], None
    for c in range(0x110000):
        label = labels.get(c, default)
        if label != before:
            items.append(f"{{0x{c:X},{label}}}")
        before = label
    return table("Run", name, comment, items)


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


def lower_runs():
    """(first, last, step, distance to lower case); all but U+0130, which becomes two characters."""
    result = []
    for c, lower in lower_case():
        if len(lower) > 1:
            assert (c, lower) == (0x130, "i\u0307")
            continue
        distance = ord(lower) - c
        if result:
            last = result[-1]
            step = c - last[1]
            if distance == last[3] and step in (1, 2) and last[2] in (0, step):
                last[1], last[2] = c, step
                continue
        result.append([c, c, 0, distance])
    return [f"{{0x{first:X},0x{last:X},{step or 1},{distance}}}" for first, last, step, distance in result]


def category_labels():
    labels = {c: i for i, name in enumerate(CATEGORIES) for c in matched_by_regex(rf"\p{{{name}}}")}
    assert len(labels) == len(CODE_POINTS)
    return labels


def regex_script_labels(assigned):
    labels = {}
    for i, script in enumerate(SCRIPTS):
        *_, code = script.split("/")
        labels |= dict.fromkeys(matched_by_regex(rf"\p{{{script.split('/')[0]}}}", assigned), i)
        assert code == script or labels[matched_by_regex(rf"\p{{{code}}}", assigned)[0]] == i
    unknown = SCRIPTS.index("Unknown/Zzzz")
    return {c: labels.get(c, unknown) for c in CODE_POINTS}


def derived_tables(categories):
    """Arrays of where the properties in DERIVED differ from their categories, and the rows that name them."""
    by_category = collections.defaultdict(set)
    for c, i in categories.items():
        name = list(CATEGORIES)[i]
        by_category[name].add(c)
        by_category[name[0]].add(c)
    arrays, names = [], []
    for key, base in DERIVED.items():
        name = key.split("/")[0]
        pattern = rf"\{name}" if len(name) == 1 else rf"\p{{{name}}}"
        near = set().union(*(by_category[category] for category in base.split()))
        differing = sorted(near ^ set(matched_by_regex(pattern)))
        symbol = f"k{name.replace('_', '')}Differences" if differing else "Ranges()"
        if differing:
            arrays.append(array(symbol, f"{pattern} but for {base or 'nothing'}", differing))
        names += [f'{{"{alias}", "{base}", {symbol}}}' for alias in key.split("/")]
    return [*arrays, table("DerivedProperty", "kDerived", "Near to some categories", names)]


def write_properties():
    clean = bert(clean_text=True)
    nfd = normalizers.NFD().normalize_str
    strip_accents, strip_marks = normalizers.StripAccents().normalize_str, bert(strip_accents=True)
    chinese = bert(handle_chinese_chars=True)
    categories = category_labels()
    assigned = [c for c in CODE_POINTS if categories[c] != list(CATEGORIES).index("Cn")]
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
        table("CategoryName", "kCategoryNames", "Short and long", [f'{{"{a}", "{b}"}}' for a, b in CATEGORIES.items()]),
        runs("kCategoryRuns", "General categories of Oniguruma, numbered as in kCategoryNames", categories),
        table("std::string_view", "kScriptNames", "Names and codes", [f'"{script}"' for script in SCRIPTS]),
        runs("kRegexScriptRuns", "Scripts of Oniguruma, numbered as in kScriptNames", regex_script_labels(assigned)),
        *derived_tables(categories),
        runs("kScriptRuns", "UnicodeScripts", dict(script_labels()), 0),
        runs("kClusterRuns", "Grapheme clusters, numbered as ClusterClass", cluster_labels(), 0),
        table("LowerRun", "kLower", "Lowercase: first, last, step, distance", lower_runs()),
    ]
    write("unicode_properties.cpp", PROPERTIES, "\n".join(tables))


def removed_by_digits():
    digits = pre_tokenizers.Digits(individual_digits=True).pre_tokenize_str
    return where(lambda c: len(digits("a" + c)) == 2)


# ---- grapheme clusters


def replacing_charsmap():
    """A charsmap that replaces whatever starts with any byte but 0 with one letter: a cluster below 6 bytes gives one,
    a longer one gives one for each of its characters."""
    units = [1 << 31] * 1024  # the label of nothing
    units[0] = 256 << 10  # children are at 256 ^ byte, and all their values at 512
    units[512] = 0
    for byte in range(1, 256):
        units[256 ^ byte] = byte | 1 << 8 | (256 ^ byte ^ 512) << 10
    return struct.pack(f"<I{len(units)}I", 4 * len(units), *units) + b"Y\0"


def cluster_labels():
    """ClusterClass numbers, but for Hangul syllables. Regional indicators need none: with anything else their clusters
    have 6 bytes. Neither does a consonant or vowel of 4 bytes behind something, for the same reason."""
    normalize = normalizers.Precompiled(replacing_charsmap()).normalize_str
    ka, virama, joiner, copyright, acute = "\u0915", "\u094d", "\u200d", "\u00a9", "\u0301"

    def letters(text):
        return len(normalize(text))

    def class_of(c):
        if letters(c + "\u0300" + acute) == 2:
            return "control"
        if letters("a" + c) == 1:
            return class_of_extending(c)
        if letters(c + "a") == 1:
            return "prepend"
        if letters(copyright + joiner + c) == 3:
            return "pictographic"
        if letters(c + virama + ka + acute) == 4:
            return "consonant"
        before = tuple(letters(c + other + acute) == 3 for other in "\u1100\u1161\u11a8")
        return {
            (True, True, False): "lead",
            (False, True, True): "vowel" if letters("\u1161" + c + acute) == 3 else "lead_vowel",
            (False, False, True): "trail" if letters("\u11a8" + c + acute) == 3 else "syllable",
            (False, False, False): "other",
        }[before]

    def class_of_extending(c):
        in_emoji = letters(copyright + c + joiner + copyright + acute) == 5
        if letters(ka + c + ka + acute) == 4:
            assert in_emoji
            return "linker"
        if letters(ka + virama + c + ka + acute) == 5:
            return "extend" if in_emoji else "joiner"
        return "extend_only" if in_emoji else "spacing_mark"

    labels = {}
    for c in CODE_POINTS:
        name = class_of(chr(c)) if c else "control"  # 0 ends a string of a charsmap, so nothing can replace it
        if c in HANGUL:
            assert name == ("lead_vowel" if (c - HANGUL[0]) % 28 == 0 else "syllable")
        else:
            labels[c] = CLUSTER_CLASSES.index(name)
    assert [c for c, label in labels.items() if label == CLUSTER_CLASSES.index("joiner")] == [0x200D]
    return labels


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
            entries[name].append(f"{{0x{c:X},{len(parts)}}}")
            pool += map(ord, parts)
    tables = [
        table(
            "char32_t", "kPool", "The characters of all decompositions, one after another", [f"0x{c:X}" for c in pool]
        ),
        table("Decomposition", "kCanonical", "Full canonical decompositions but for Hangul", entries["kCanonical"]),
        table("Decomposition", "kCompatible", "Those that NFKD adds or changes", entries["kCompatible"]),
        table(
            "Composition",
            "kCompositions",
            "Pairs that NFC joins, ascending",
            [f"{{0x{a:X},0x{b:X},0x{c:X}}}" for a, b, c in sorted(compositions)],
        ),
        runs("kClassRuns", "Canonical combining classes", {c: unicodedata.combining(chr(c)) for c in marks}, 0),
    ]
    write("unicode_normal_data.cpp", NORMAL, "\n".join(tables))


def write(name, template, tables):
    text = template.replace("@VERSION@", tokenizers.__version__).replace("@TABLES@", tables)
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
    + """#include "millrace/tokenizer/text/unicode_tables.h"

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
    + """#include "millrace/tokenizer/text/unicode_data.h"

namespace millrace::tokenizer {
namespace {

// clang-format off
@TABLES@// clang-format on

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
    .category_names = kCategoryNames,
    .categories = kCategoryRuns,
    .script_names = kScriptNames,
    .regex_scripts = kRegexScriptRuns,
    .derived = kDerived,
    .script_numbers = kScriptRuns,
    .clusters = kClusterRuns,
    .lower = kLower,
};

}  // namespace millrace::tokenizer
"""
)

NORMAL = (
    HEAD
    + """#include "millrace/tokenizer/text/unicode_data.h"

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
    .classes = kClassRuns,
};

}  // namespace millrace::tokenizer
"""
)

if __name__ == "__main__":
    main()
