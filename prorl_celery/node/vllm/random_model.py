"""Make a Qwen3-type model of half a million random weights, with a tokenizer trained on Python's own library.

Runs inside vLLM's environment, not ours (`install` starts it as a file); nothing is downloaded.

    python random_model.py OUT_DIRECTORY [SEED [TERSENESS]]

It talks nonsense, yet every rule of a real model's tokens holds for it: ids, log-probabilities, template, stop tokens.
Two seeds give two models of one shape and one tokenizer: other weights to load into a server that runs. It ends hardly
any turn by itself, as one token in 4096; with a terseness of 35 it does within tens of tokens.
"""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path
from typing import Any

TEMPLATE = Path(__file__).parents[2] / "testing" / "scripted" / "chatml.jinja"
VOCABULARY = 4096
HIDDEN, LAYERS, HEAD = 64, 2, 32
MAX_LENGTH = 8192
UNUSED, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
MARKS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
"""Single tokens that are kept when special ones are left out of a text, as Qwen's are."""


def main(out: Path, seed: int = 0, terseness: float = 1.0) -> int:
    """Write the model into `out`. Returns an exit code."""
    tokenizer = make_tokenizer()
    tokenizer.save_pretrained(out)
    model = make_model(tokenizer, seed, terseness)
    model.save_pretrained(out)
    print(f"{sum(weights.numel() for weights in model.parameters())} weights, {len(tokenizer)} tokens", flush=True)
    return 0


def make_tokenizer() -> Any:
    """A byte-level BPE with Qwen's marks and our ChatML template."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast  # type: ignore[import-not-found]

    plain = [AddedToken(mark, special=False, normalized=False) for mark in MARKS]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(plain),
        special_tokens=[UNUSED, TURN_START, TURN_END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train([str(file) for file in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))], trainer)
    tokenizer.add_tokens(plain)
    made = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=TURN_END,
        pad_token=UNUSED,
        clean_up_tokenization_spaces=False,
        model_max_length=MAX_LENGTH,
    )
    made.chat_template = TEMPLATE.read_text(encoding="utf-8").strip("\n")
    return made


def make_model(tokenizer: Any, seed: int, terseness: float) -> Any:
    """Random weights for as many tokens as the tokenizer has. `terseness`: by how much the end's are scaled."""
    import torch  # type: ignore[import-not-found]
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    end, unused = tokenizer.convert_tokens_to_ids([TURN_END, UNUSED])
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=HIDDEN,
        intermediate_size=2 * HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HIDDEN // HEAD,
        num_key_value_heads=1,
        head_dim=HEAD,
        max_position_embeddings=MAX_LENGTH,
        # vLLM's CPU build keeps the old output weights when tied ones are reloaded, and says nothing.
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=end,
        pad_token_id=unused,
    )
    model = Qwen3ForCausalLM(config)
    with torch.no_grad():
        model.lm_head.weight[end] *= terseness
    model.to(torch.bfloat16)
    model.generation_config.eos_token_id = end
    model.generation_config.pad_token_id = unused
    return model


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *map(int, sys.argv[2:4])))
