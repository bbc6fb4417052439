# SPDX-License-Identifier: Apache-2.0
"""Tokens of texts, and texts of tokens, for `hspmd generate`: a request and its answer, as JSON. tokenizer.py comes before it."""
import json
import sys

COMMAND = "generate"

request = json.load(sys.stdin)
library = Tokenizer(request["tokenizer"]).of  # noqa: F821
if "texts" in request:
    encoded = library.encode_batch(request["texts"], add_special_tokens=request["special_tokens"])
    json.dump({"tokens": [e.ids for e in encoded]}, sys.stdout)
else:
    json.dump({"texts": library.decode_batch(request["tokens"], skip_special_tokens=True)}, sys.stdout)
