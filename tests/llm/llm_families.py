"""Model families as these tests make them: template, special tokens, kind of tokenizer."""

from __future__ import annotations

from typing import Any

from llm_templates import GEMMA, LLAMA3, MISTRAL, QWEN3

LLAMA_SPECIALS = ["<|end_of_text|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
MISTRAL_SPECIALS = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]",
                    "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"]  # fmt: skip
GEMMA_SPECIALS = ["<pad>", "<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>"]
FAMILIES: dict[str, dict[str, Any]] = {
    "chatml": {},
    "chatml, marks not special": {"flags": False},
    "qwen3": {"template": QWEN3},
    "llama3": {"template": LLAMA3, "specials": LLAMA_SPECIALS, "eos": "<|eot_id|>", "bos": "<|begin_of_text|>"},
    "mistral": {"template": MISTRAL, "specials": MISTRAL_SPECIALS, "eos": "</s>", "bos": "<s>",
                "sentencepiece": "first"},
    "gemma": {"template": GEMMA, "specials": GEMMA_SPECIALS, "eos": "<end_of_turn>", "bos": "<bos>",
              "sentencepiece": "never"},
    "prefixed": {"template": GEMMA, "specials": GEMMA_SPECIALS, "eos": "<end_of_turn>", "bos": "<bos>",
                 "sentencepiece": "always"},
}  # fmt: skip
