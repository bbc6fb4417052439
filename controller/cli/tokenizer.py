# SPDX-License-Identifier: Apache-2.0
"""Tokenizers, for the Python programs that this file is put before: they set COMMAND."""
import sys


def fail(text):
    sys.exit(f"hspmd {COMMAND}: error: {text}")


def package(name, purpose):
    try:
        return __import__(name)
    except ImportError:
        fail(f"{purpose} needs the Python package {name} (pip install {name})")


class Bytes:
    """One token per byte of UTF-8."""

    size, code, kind = 256, 1, "B"

    def encode(self, texts):
        return [text.encode() for text in texts]

    def number(self, end):
        return int(end) if end.isdigit() and int(end) < 256 else fail(f"--end: expected a byte, 0 to 255, got '{end}'")


class Tokenizer:
    """A tokenizer.json of Hugging Face."""

    def __init__(self, path):
        try:  # first: without the file no package is needed
            open(path, "rb").close()
        except OSError as why:
            fail(f"{path}: {why.strerror}")
        tokenizers = package("tokenizers", "a tokenizer.json")
        try:
            self.of = tokenizers.Tokenizer.from_file(path)
        except Exception as why:  # the library raises plain Exception
            fail(f"{path}: {why}")
        self.of.no_padding()
        self.of.no_truncation()
        self.size = self.of.get_vocab_size()
        self.code, self.kind = (8, "H") if self.size <= 65536 else (4, "i")

    def encode(self, texts):
        return [e.ids for e in self.of.encode_batch(texts, add_special_tokens=False)]

    def number(self, end):
        number = self.of.token_to_id(end)
        return number if number is not None else fail(f"--end: the tokenizer has no token '{end}'")
