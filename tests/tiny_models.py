"""Models of random numbers, made in a moment: for tests that need thousands of generations."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

from llamanb.engine.template import CHATML

_CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
_N_EMBD, _N_LAYER = 64, 2


def write_attention_model(path: Path) -> Path:
    """Write a model with two layers of attention, whose tokens are bytes."""
    writer = _writer(path, "llama")
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_rope_dimension_count(16)
    writer.add_feed_forward_length(128)
    random = np.random.default_rng(1)
    shapes = {
        "attn_q": (64, 64),
        "attn_k": (32, 64),
        "attn_v": (32, 64),
        "attn_output": (64, 64),
        "ffn_gate": (128, 64),
        "ffn_up": (128, 64),
        "ffn_down": (64, 128),
    }
    for layer in range(_N_LAYER):
        for norm in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{norm}.weight", np.ones(_N_EMBD, dtype=np.float32))
        for name, shape in shapes.items():
            weights = random.normal(0, 2 / np.sqrt(shape[1]), shape).astype(np.float32)
            writer.add_tensor(f"blk.{layer}.{name}.weight", weights)
    return _written(writer, path)


def write_recurrent_model(path: Path) -> Path:
    """Write a Mamba model with two layers: the memory of a sequence is one state, which cannot be cut."""
    n_inner, n_state, n_conv, n_dt = 128, 16, 4, 4
    writer = _writer(path, "mamba")
    writer.add_feed_forward_length(0)
    writer.add_head_count(0)
    writer.add_ssm_conv_kernel(n_conv)
    writer.add_ssm_inner_size(n_inner)
    writer.add_ssm_state_size(n_state)
    writer.add_ssm_time_step_rank(n_dt)
    random = np.random.default_rng(2)
    shapes = {
        "ssm_in.weight": (2 * n_inner, _N_EMBD),
        "ssm_conv1d.weight": (n_inner, n_conv),
        "ssm_conv1d.bias": (n_inner,),
        "ssm_x.weight": (n_dt + 2 * n_state, n_inner),
        "ssm_dt.weight": (n_inner, n_dt),
        "ssm_dt.bias": (n_inner,),
        "ssm_d": (n_inner,),
        "ssm_out.weight": (_N_EMBD, n_inner),
    }
    for layer in range(_N_LAYER):
        writer.add_tensor(f"blk.{layer}.attn_norm.weight", np.ones(_N_EMBD, dtype=np.float32))
        for name, shape in shapes.items():
            weights = random.normal(0, 2 / np.sqrt(shape[-1]), shape).astype(np.float32)
            writer.add_tensor(f"blk.{layer}.{name}", weights)
        decay = -np.tile(np.arange(1, n_state + 1, dtype=np.float32), (n_inner, 1))
        writer.add_tensor(f"blk.{layer}.ssm_a", decay)
    return _written(writer, path)


def _writer(path: Path, architecture: str) -> gguf.GGUFWriter:
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name(f"tiny {architecture}")
    writer.add_context_length(2048)
    writer.add_embedding_length(_N_EMBD)
    writer.add_block_count(_N_LAYER)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    tokens = [*_CONTROL, *_byte_letters(), "he"]
    kinds = [gguf.TokenType.CONTROL] * len(_CONTROL) + [gguf.TokenType.NORMAL] * (len(tokens) - len(_CONTROL))
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(["h e"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHATML)
    return writer


def _written(writer: gguf.GGUFWriter, path: Path) -> Path:
    letters = _byte_letters()
    vocabulary = np.random.default_rng(3).normal(0, 1, (len(_CONTROL) + len(letters) + 1, _N_EMBD)).astype(np.float32)
    for byte in range(len(letters)):
        if not 0x20 < byte < 0x7F:  # never likely: answers are mostly letters, and so the same when they are read again
            vocabulary[len(_CONTROL) + byte] *= 0.01
    vocabulary[:2] *= 0.01
    writer.add_tensor("token_embd.weight", vocabulary)
    writer.add_tensor("output_norm.weight", np.ones(_N_EMBD, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _byte_letters() -> list[str]:
    """Return a letter for each byte, as GPT-2's tokenizer has them: bytes that are no letter come from 256 on."""
    plain = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(256, 512))
    return [
        chr(byte) if byte in plain and byte < 0x80 else chr(byte if byte in plain else next(others))
        for byte in range(256)
    ]
