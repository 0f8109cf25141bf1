# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: RUF001, SIM905  (characters that look alike are the point, and a list of words reads best as one string)
"""Strings that tokenizers get wrong, from a grammar with a seed, and bytes that are no UTF-8."""

WHITE = (
    "\t\n\v\f\r \x1c\x1d\x1e\x1f\x85\xa0\u1680\u180e\u2000\u2001\u2005\u200a\u200b\u2028\u2029\u202f\u205f\u2060"
    "\u3000\ufeff"
)
CONTRACTIONS = "'s 't 're 've 'm 'll 'd 'S 'T 'RE 'vE 'M 'Ll 'D 'ſ 'l 'r ' '' ’s 'st 'K".split()
WORDS = [
    *"the Hello WORLD naïve straße Привет мир 你好 世界 日本語 テスト 한국어 สวัสดี ครับ नमस्ते שלום مرحبا ελληνικά".split(),
    *"ǅ ª ʰ Ⅷ ٣٤٥ ½ ² ① ๕ 𝟘𝟙 𝔘𝔫𝔦 𒀀 👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽 🇩🇪 ▁ Ġ Ċ ĠĠ Ģ <0x0A> <|endoftext|> <|begin_of_text|>".split(),
    *"<|eot_id|> <|end |> <|endoftext <|<|endoftext|>|> http://a.b/c?d=e&f 0x1F 3.14159 ____ -- ... {}(); \\n".split(),
    *"e\u0301 a\u0308\u0323 \u200d \ufe0f \u0300 \U000e0100 \U000e0041 \U0010ffff \uffff \ue000 \ufffd".split(),
    *"\0 \x7f \xad \ud7ff".split(),
    # Marks in a wrong order, compositions, Hangul in parts, compatibility characters, case that changes length.
    *"a\u0315\u0300 q\u0323\u0307 o\u0302\u0323 \u1100\u1161\u11a8 \uac00\u11a8 \u0958 \u0344 \u212b \u2126 \u0f73".split(),
    *"ﬁn ﬀ Ａｂ１ ｶﾞ ㌔ ㎏ ① ⅷ ² ™ … ‥ \u0132 \u1e9e İstanbul ΣΑΣ ǅungla ẞ \u0390 \u1fd3 \ufb1d \u2f00 \uf900".split(),
    *"\u0600a \u200b\u200c a\u200d©\u200d™ \r\n a\u20dd \u0e01\u0e33 \u0915\u094d\u0937 \U0001f1e9 \u2028 \ufeffx".split(),
    *"[UNK] <unk> <s> </s> ##ing don't do n't a.b,c;d!e?f 'm 've 're · — – “quoted” ‹x› \u3001\u3002 $5 5€ <0xE4>".split(),
    # Every other letter of Latin-1, digits of other scripts, camel case, a mark alone, words that fold to two letters.
    *"x²y³z¹ ¼½¾ ¿¡ ÿŸ ×÷ µΜ ٠١٢ ०१२ ๐๑ 〇一二 ➀Ⅳ 1١१ camelCaseXMLHttp2 ſt ﬆ K Å ꭰᎠ 𐐨𐐀 \u0301\u0301 ᾳᾼ ŉ ıIi̇".split(),
    "pneumonoultramicroscopicsilicovolcanoconiosis" * 3,
]
CODE = 'if(!a&&b) {return -1;} for i in x: }catch(e){ function(t,n)=> === ?. ++i; <div class="a"> /* // \\u0041 &amp;'.split()
EDGES = ["", " ", "  ", "\n", "\r\n", "\t ", " \n ", "a", "1", ".", "_"]
# A stray continuation byte, and sequences that end early, are too long, are half a pair or are beyond Unicode.
ILL_FORMED = [b"\x80", b"\xbf\xbf", b"\xc3", b"\xe4\xbd", b"\xf0\x9f\x91", b"\xc0\x80", b"\xe0\x80\x80", b"\xed\xa0\x80",
              b"\xf4\x90\x80\x80", b"\xf5", b"\xfe\xff", b"\xe2\x28\xa1", b"\xf0\x9f\xe4\xbd\xa0"]  # fmt: skip


def hostile(rng, specials):
    """One string of a grammar that likes class changes, white space of every kind and tokens that touch things."""
    parts = []
    for _ in range(rng.randrange(1, 12)):
        kind = rng.randrange(13)
        if kind <= 1:
            parts.append("".join(rng.choice(WHITE) for _ in range(rng.choice((1, 1, 2, 3, 9)))))
        elif kind == 2:
            parts.append(rng.choice(" \n\t\r_-=a0é你") * rng.choice((1, 2, 3, 4, 15, 16, 17, 31, 50, 130)))
        elif kind == 3:
            parts.append(rng.choice(CONTRACTIONS))
        elif kind == 4:
            parts.append("".join(chr(rng.randrange(0x20, 0x7F)) for _ in range(rng.randrange(1, 20))))
        elif kind == 5:
            parts.append("".join(random_character(rng) for _ in range(rng.randrange(1, 6))))
        elif kind == 6:
            parts.append(str(rng.randrange(10 ** rng.randrange(1, 12))))
        elif kind == 7 and specials:
            parts.append(whole_or_cut(rng, rng.choice(specials)))
        elif kind == 8:
            parts.append("".join(rng.choice("abcdefABCDEF0123456789+/=") for _ in range(rng.randrange(1, 90))))
        elif kind == 9:
            parts.append("".join(rng.choice(CODE) for _ in range(rng.randrange(1, 12))))
        else:
            parts.append(rng.choice(EDGES) + rng.choice(WORDS))
        if rng.random() < 0.4:
            parts.append(rng.choice(EDGES))
    return "".join(parts)


def whole_or_cut(rng, token):
    """A token, or in one case of four a part of its start or end."""
    cut = rng.randrange(len(token))
    return rng.choice((token[:cut], token[cut:])) if rng.random() < 0.25 else token


def ill_formed(rng):
    """Bytes of a hostile string with others between and inside its characters."""
    data = bytearray(hostile(rng, []).encode())
    for _ in range(rng.randrange(1, 5)):
        at = rng.randrange(len(data) + 1)
        data[at : at + rng.randrange(2)] = rng.choice(ILL_FORMED)
    return bytes(data)


def random_character(rng):
    code = rng.randrange(rng.choice((0x80, 0x250, 0x3000, 0xFFFF, 0x20000, 0x110000)))
    return chr(code) if not 0xD800 <= code < 0xE000 else "\ud7ff"


ATOMS = [*r"\w \W \d \D \s \S \h \p{L} \p{Lu} \P{Ll} \p{^N} \p{Word} \P{Word} \p{Greek} \p{C} \p{s} \p{Alnum} \p{Punct} \p{Space} \- \] \[".split(),
         *r"\x{e9} \u00e9 \n a É ß ſ ½ 1 . _ - k 😀 ab ﬁ İ σ ꟀΩ \x{10D50} ' # \p{Any} \p{Latn} \p{lowercase-letter}".split(), " "]  # fmt: skip
IN_SETS = ["a-z", "é-ü", "A-", "^", "&&", r"\b", *"]{|()*."]
NOT_IN_SETS = [*r"\b \B ^ $ \A \z \Z \G \R \N \O \K \1 (?i) (?x) (?W) (?D) (?S) (?m) (?-i) (?x-i) (?#[\w) \k<n> \g<n> \cA \c[ \C-[ \e \101".split(),
               "# \\w[\n"]  # fmt: skip
PATTERN_TEXT = "aAbkKéÉßſ½1² _-σΣςﬁSs\n'x"
GROUPS = "( (?: (?i: (?i-x: (?x: (?W: (?-W: (?= (?! (?> (?<n> (?~ (?(1) (?D-S:".split()


def hostile_pattern(rng, depth=0):
    """A regular expression, in about one case of three none at all."""
    return "|".join(
        "".join(hostile_piece(rng, depth) for _ in range(rng.randrange(depth == 0, 4)))
        for _ in range(rng.choice((1, 1, 1, 2, 3)))
    )


def hostile_piece(rng, depth):
    kind = rng.randrange(20)
    if kind < 8 or (kind >= 15 and depth == 3):
        piece = rng.choice(ATOMS)
    elif kind < 12:
        piece = hostile_set(rng, 0)
    elif kind < 15:
        piece = rng.choice(NOT_IN_SETS)
    elif kind == 15:  # of one length: others keep Oniguruma busy for minutes
        piece = rng.choice(("(?<=", "(?<!")) + rng.choice(ATOMS) + ")"
    else:
        piece = rng.choice(GROUPS) + hostile_pattern(rng, depth + 1) + ")"
    return piece + (rng.choice("* + ? {2} {1,3} *? ++ {,2} +?".split()) if rng.random() < 0.3 else "")


def hostile_set(rng, depth):
    items = [
        hostile_set(rng, depth + 1) if kind < 2 and depth < 2 else rng.choice(IN_SETS if kind < 5 else ATOMS)
        for kind in (rng.randrange(10) for _ in range(rng.randrange(1, 5)))
    ]
    return "[" + rng.choice(("", "", "^")) + "".join(items) + "]"
