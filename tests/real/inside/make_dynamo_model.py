"""Make the model directory and the timing table that Dynamo's mocker needs: no weights, no hub.

Runs inside the Dynamo environment: `python make_dynamo_model.py MODEL_DIR TIMING_NPZ`.
"""

# mypy: disable-error-code="import-not-found,import-untyped"

import json
import sys
import sysconfig
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"]
CONTEXT_TOKENS = 40960
CHAT_TEMPLATE = (
    "{%- if tools %}<|im_start|>system\n# Tools\n"
    "{%- for t in tools %}\n{{ t | tojson }}{%- endfor %}<|im_end|>\n{%- endif %}"
    "{%- for m in messages %}<|im_start|>{{ m.role }}\n"
    "{{ m.content if m.content is string else '' }}"
    "{%- if m.tool_calls %}{%- for tc in m.tool_calls %}\n<tool_call>\n"
    "{{ {'name': tc.function.name, 'arguments': tc.function.arguments} | tojson }}\n"
    "</tool_call>{%- endfor %}{%- endif %}"
    "<|im_end|>\n{%- endfor %}{%- if add_generation_prompt %}<|im_start|>assistant\n{%- endif %}"
)


def train_tokenizer() -> Tokenizer:
    """The standard library is the only text that is certain to be on the machine."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:200]
    trainer = trainers.BpeTrainer(
        vocab_size=8000,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train([str(file) for file in files], trainer)
    return tokenizer


def write_model_dir(model_dir: Path) -> None:
    model_dir.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer()
    tokenizer.save(str(model_dir / "tokenizer.json"))
    eos_id = tokenizer.token_to_id("<|im_end|>")
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": CONTEXT_TOKENS,
        "vocab_size": tokenizer.get_vocab_size(),
        "bos_token_id": 0,
        "eos_token_id": eos_id,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
    }
    generation = {"bos_token_id": 0, "eos_token_id": [eos_id, 0], "pad_token_id": 0}
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "model_max_length": CONTEXT_TOKENS,
        "chat_template": CHAT_TEMPLATE,
        "add_bos_token": False,
    }
    (model_dir / "config.json").write_text(json.dumps(config, indent=1))
    (model_dir / "generation_config.json").write_text(json.dumps(generation))
    (model_dir / "tokenizer_config.json").write_text(json.dumps(tokenizer_config, indent=1))


def write_timing(timing_file: Path) -> None:
    """A plausible linear profile of a 32B-class model on one 80 GB GPU; a model, not a measurement.

    Prefill 8 ms + 0.13 ms per token; a decode step 15 ms + 0.11 us per cached token + 0.04 ms per
    sequence. The mocker's built-in formula makes overcommitted caches look free.
    """
    prompt_tokens = np.array([1, 64, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768], float)
    cached_tokens = np.array([1, *(500 * 2**power for power in range(11))], float)
    context_tokens = np.array([1, 250, 500, 1000, 1500, 2000, 3000, 4000, 5000, 6000, 8000, 16000, 32000], float)
    num_sequences = np.minimum(cached_tokens[:, None] / context_tokens[None, :], 256)
    np.savez(
        timing_file,
        prefill_isl=prompt_tokens,
        prefill_ttft_ms=8 + 0.13 * prompt_tokens,
        decode_active_kv_tokens=cached_tokens,
        decode_context_length=context_tokens,
        decode_itl=15 + 0.00011 * cached_tokens[:, None] + 0.04 * num_sequences,
    )


if __name__ == "__main__":
    write_model_dir(Path(sys.argv[1]))
    write_timing(Path(sys.argv[2]))
