# SPDX-License-Identifier: Apache-2.0
"""Tokens from texts, for `hspmd data prepare`, which checks the options and passes them as JSON. Writes PREFIX.bin and
PREFIX.idx, as Megatron-LM's preprocessing does, and PREFIX.mask if the texts are conversations. tokenizer.py comes before it."""
import array
import json
import os
import struct
import sys

COMMAND = "data"
BATCH = 1000  # texts that are encoded together
CHATML = "<|im_start|>{role}\n{content}<|im_end|>\n"


# ---- texts


def rows(path, form, field):
    """(place, value of the field) of every text of the file."""
    if form == "text":
        try:
            with open(path, encoding="utf-8") as f:
                yield path, f.read()
        except UnicodeDecodeError as why:
            fail(f"{path}: {why}")
    elif form == "jsonl":
        with open(path, "rb") as f:
            for number, line in enumerate(f, 1):
                if not line.strip():
                    continue
                try:
                    row = json.loads(line)
                except ValueError as why:
                    fail(f"{path}:{number}: {why}")
                if not isinstance(row, dict) or field not in row:
                    fail(f"{path}:{number}: expected an object with \"{field}\"")
                yield f"{path}:{number}", row[field]
    else:
        package("pyarrow", "a parquet file")
        import pyarrow.parquet

        try:
            table = pyarrow.parquet.ParquetFile(path)
            if field not in table.schema_arrow.names:
                fail(f"{path}: no column \"{field}\"; there are {', '.join(table.schema_arrow.names)}")
            number = 0
            for batch in table.iter_batches(columns=[field]):
                for value in batch.column(0).to_pylist():
                    number += 1
                    yield f"{path}: row {number}", value
        except pyarrow.ArrowInvalid as why:
            fail(f"{path}: {why}")


def form_of(path, given):
    ending = os.path.splitext(path)[1]
    return given or {".jsonl": "jsonl", ".json": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}.get(ending, "text")


# ---- conversations


def template_of(tokenizer):
    """A function from messages, and whether an answer follows, to the text: by the chat_template beside the tokenizer, otherwise ChatML."""
    config = os.path.join(os.path.dirname(tokenizer), "tokenizer_config.json")
    settings = {}
    if tokenizer != "bytes" and os.path.exists(config):
        with open(config, encoding="utf-8") as f:
            settings = json.load(f)
    template = settings.get("chat_template")
    if not isinstance(template, str):
        return lambda messages, answer: "".join(CHATML.format(**m) for m in messages) + ("<|im_start|>assistant\n" if answer else "")
    package("jinja2", "the tokenizer's chat_template")
    import jinja2.sandbox

    def give_up(text):
        raise ValueError(text)

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = give_up
    special = {k: v["content"] if isinstance(v, dict) else v for k, v in settings.items() if k.endswith("_token") and v}
    compiled = environment.from_string(template)
    return lambda messages, answer: compiled.render(messages=messages, add_generation_prompt=answer, **special)


def is_message(m):
    return isinstance(m, dict) and isinstance(m.get("role"), str) and isinstance(m.get("content"), str)


def parts_of(place, messages, render):
    """The conversation as (text, does it count) in turn: what the assistant says counts."""
    if not isinstance(messages, list) or not messages or not all(map(is_message, messages)):
        fail(f"{place}: expected a list of messages, each with role and content")
    done, parts = "", []
    try:
        for i, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            before, after = render(messages[:i], True), render(messages[: i + 1], False)
            if not before.startswith(done) or not after.startswith(before):
                fail(f"{place}: the chat_template changes earlier messages as the conversation goes on, so that answers cannot be found "
                     "in the text")
            parts += [(before[len(done) :], False), (after[len(before) :], True)]
            done = after
        whole = render(messages, False)
    except Exception as why:  # a template may raise anything
        fail(f"{place}: the chat_template fails: {why}")
    return parts + ([(whole[len(done) :], False)] if len(whole) > len(done) else [])


# ---- files of tokens


class Writer:
    def __init__(self, prefix, tokenizer, end, masked):
        self.prefix, self.kind, self.code = prefix, tokenizer.kind, tokenizer.code
        self.end = [] if end is None else [tokenizer.number(end)]
        self.lengths, self.counted, self.tokens = array.array("i"), 0, 0
        self.names = ["bin", "idx"] + ["mask"] * masked
        self.files = {name: open(f"{prefix}.{name}.part", "wb") for name in self.names}

    def add(self, parts):
        """parts: (tokens, do they count) in turn, one document."""
        tokens, mask = array.array(self.kind), bytearray()
        for part, counts in parts:
            tokens.extend(part)
            mask += bytes([counts]) * len(part)
        if not tokens:
            return
        tokens.extend(self.end)
        mask += bytes([mask[-1]]) * len(self.end)  # an answer ends where its document does
        if sys.byteorder != "little":
            tokens.byteswap()
        self.files["bin"].write(tokens.tobytes())
        if "mask" in self.files:
            self.files["mask"].write(mask)
        self.lengths.append(len(tokens))
        self.tokens += len(tokens)
        self.counted += sum(mask)

    def close(self):
        count, width, index = len(self.lengths), array.array(self.kind).itemsize, self.files["idx"]
        index.write(b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, self.code, count, count + 1))
        pointers, at = array.array("q"), 0
        for length in self.lengths:
            pointers.append(at)
            at += length * width
        for numbers in (self.lengths, pointers, array.array("q", range(count + 1))):
            if sys.byteorder != "little":
                numbers.byteswap()
            index.write(numbers.tobytes())
        for name in self.names:
            self.files[name].flush()
            os.fsync(self.files[name].fileno())
            self.files[name].close()
        for name in self.names:
            os.replace(f"{self.prefix}.{name}.part", f"{self.prefix}.{name}")

    def discard(self):
        for name in self.names:
            if os.path.exists(f"{self.prefix}.{name}.part"):
                os.remove(f"{self.prefix}.{name}.part")


def texts(o):
    """Every document as parts (text, does it count)."""
    render = template_of(o["tokenizer"]) if o["messages"] else None
    for path in o["files"]:
        for place, value in rows(path, form_of(path, o["format"]), o["field"]):
            if render:
                yield parts_of(place, value, render)
            elif isinstance(value, str):
                yield [(value, True)]
            else:
                fail(f"{place}: expected a text in \"{o['field']}\"")


def encode(documents, tokenizer, writer):
    encoded = iter(tokenizer.encode([text for parts in documents for text, _ in parts]))
    for parts in documents:
        writer.add([(next(encoded), counts) for _, counts in parts])


def main():
    o = json.loads(sys.argv[1])
    tokenizer = Bytes() if o["tokenizer"] == "bytes" else Tokenizer(o["tokenizer"])
    writer, waiting = Writer(o["output"], tokenizer, o["end"], o["messages"]), []
    try:
        for parts in texts(o):
            waiting.append(parts)
            if len(waiting) == BATCH:
                encode(waiting, tokenizer, writer)
                waiting = []
        encode(waiting, tokenizer, writer)
        if not writer.tokens:
            fail("the files have no text")
        writer.close()
    finally:
        writer.discard()
    counted = f", of which {writer.counted} count" if o["messages"] else ""
    print(f"hspmd data: {len(writer.lengths)} documents, {writer.tokens} tokens{counted}, below {tokenizer.size}", file=sys.stderr)
    section = {"train": [o["output"]], "kind": "megatron", "documents": True}
    print(json.dumps({"data": dict(section, mask=True) if o["messages"] else section}))


try:
    main()
except OSError as problem:
    fail(f"{problem.filename}: {problem.strerror}" if problem.filename else str(problem))
