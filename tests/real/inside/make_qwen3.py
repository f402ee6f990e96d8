"""Make a Qwen3-architecture model with random weights and a byte-level tokenizer, offline, in seconds.

Runs inside the vLLM environment: `python make_qwen3.py OUT [--hidden 256 --layers 6 ...]`.
"""

# mypy: disable-error-code="import-not-found,import-untyped"

import argparse
import os
import sysconfig
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MARKUP_TOKENS = [
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
]
CHAT_TEMPLATE = (Path(__file__).parent / "qwen3_chat_template.jinja").read_text()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out")
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--heads", type=int, default=2)
    parser.add_argument("--kv-heads", type=int, default=1)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--inter", type=int, default=256)
    parser.add_argument("--vocab", type=int, default=4096)
    parser.add_argument("--context-tokens", type=int, default=32768)
    return parser.parse_args()


def train_tokenizer(num_tokens: int, context_tokens: int) -> Any:
    """The standard library is the only text that is certain to be on the machine."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:150]
    trainer = trainers.BpeTrainer(
        vocab_size=num_tokens - len(SPECIAL_TOKENS) - len(MARKUP_TOKENS),
        special_tokens=[],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train([str(file) for file in files], trainer)
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL_TOKENS])
    # Not special: the engine's tool parser must see them in the decoded text.
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in MARKUP_TOKENS])
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
        model_max_length=context_tokens,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def main() -> None:
    arguments = parse_arguments()
    tokenizer = train_tokenizer(arguments.vocab, arguments.context_tokens)
    tokenizer.save_pretrained(arguments.out)
    config = transformers.Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=arguments.hidden,
        intermediate_size=arguments.inter,
        num_hidden_layers=arguments.layers,
        num_attention_heads=arguments.heads,
        num_key_value_heads=arguments.kv_heads,
        head_dim=arguments.head_dim,
        max_position_embeddings=arguments.context_tokens,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.convert_tokens_to_ids("<|im_end|>"),
        bos_token_id=None,
        pad_token_id=tokenizer.convert_tokens_to_ids("<|endoftext|>"),
    )
    torch.manual_seed(0)
    model = transformers.Qwen3ForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(arguments.out)
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    print(f"{arguments.out}: {num_parameters} parameters, {len(tokenizer)} tokens")


if __name__ == "__main__":
    main()
