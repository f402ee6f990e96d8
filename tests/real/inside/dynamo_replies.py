"""Turn texts into the trace from which Dynamo's mocker replays them: JSON {key: text} in, JSONL out.

Runs inside the Dynamo environment: `python dynamo_replies.py MODEL_DIR < replies.json > replay.jsonl`.
"""

# mypy: disable-error-code="import-not-found,import-untyped"

import json
import sys
from pathlib import Path

from tokenizers import Tokenizer

if __name__ == "__main__":
    tokenizer = Tokenizer.from_file(str(Path(sys.argv[1]) / "tokenizer.json"))
    eos_id = tokenizer.token_to_id("<|im_end|>")
    for key, text in json.load(sys.stdin).items():
        token_ids = [*tokenizer.encode(text, add_special_tokens=False).ids, eos_id]
        row = {
            "timestamp": 0,
            "input_length": 16,
            "output_length": len(token_ids),
            "hash_ids": [0],
            "request_id": key,
            "output_token_ids": token_ids,
        }
        print(json.dumps(row))
