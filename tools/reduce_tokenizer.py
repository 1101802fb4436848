#!/usr/bin/env python3
"""Cuts a byte-level BPE tokenizer down to what a set of texts can reach, for tests.

    reduce_tokenizer.py MODEL CASES OUT

MODEL is a folder with tokenizer.json and tokenizer_config.json. CASES is a JSON object: "strings", a list of {"text"}, and
"chats", a list of {"text"} (rendered prompts). OUT receives both files. Ids and the order of merges stay as they are, so
these texts encode to the same ids as with the whole tokenizer: a merge can only ever apply where its result is a part of
the text, so the others are dropped. Kept besides: the tokens of the 256 bytes and the added tokens.
"""
import argparse
import json
import pathlib
import shutil
import unicodedata


def byte_alphabet():
    """The character that byte-level BPE writes for each byte."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    return {**{b: chr(b) for b in printable}, **{b: chr(0x100 + i) for i, b in enumerate(others)}}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("cases", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    args = parser.parse_args()

    tokenizer = json.loads((args.model / "tokenizer.json").read_text(encoding="utf-8"))
    cases = json.loads(args.cases.read_text(encoding="utf-8"))
    texts = [c["text"] for c in cases["strings"] + cases["chats"]]
    # Normalization happens between added tokens, where it may compose less than over the whole text: take both forms.
    texts = {form for t in texts for form in (t, unicodedata.normalize("NFC", t))}
    alphabet = byte_alphabet()
    # No token holds a raw NUL: joined by it, nothing matches across two texts.
    haystack = "\0".join("".join(alphabet[b] for b in t.encode()) for t in sorted(texts))

    model = tokenizer["model"]
    pairs = [tuple(m.split(" ")) if isinstance(m, str) else tuple(m) for m in model["merges"]]
    kept = [i for i, (left, right) in enumerate(pairs) if left + right in haystack]
    tokens = set(alphabet.values()) | {t for i in kept for t in (*pairs[i], "".join(pairs[i]))}
    model["merges"] = [model["merges"][i] for i in kept]
    model["vocab"] = {t: i for t, i in model["vocab"].items() if t in tokens}

    args.out.mkdir(parents=True, exist_ok=True)
    text = json.dumps(tokenizer, ensure_ascii=False, separators=(",", ":"))
    (args.out / "tokenizer.json").write_text(text + "\n", encoding="utf-8")
    if (args.model / "tokenizer_config.json").resolve() != (args.out / "tokenizer_config.json").resolve():
        shutil.copyfile(args.model / "tokenizer_config.json", args.out / "tokenizer_config.json")
    print(f"{args.out}: {len(model['vocab'])} tokens, {len(model['merges'])} merges, {len(text.encode())} bytes")


main()
