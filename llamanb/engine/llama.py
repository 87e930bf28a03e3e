"""LlamaCppEngine: llama.cpp in this process. The only module that imports llama_cpp."""

from __future__ import annotations

import atexit
import collections
import contextlib
import ctypes
import dataclasses
import functools
import hashlib
import json
import os
import sys
import tempfile
import threading
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
from llguidance import LLTokenizer

from llamanb.engine.base import EngineStats, Generation, GenerationRequest, answer_budget, require_open, token_bias
from llamanb.engine.cache import CacheBook
from llamanb.engine.constraint import Constraint, SchemaConstraint, check_schema
from llamanb.engine.limits import (
    MIN_CELLS,
    N_OWN_SEQUENCES,
    check_counts,
    check_grammar,
    check_memory,
    default_threads,
)
from llamanb.engine.scheduler import Outcome, Row, Scheduler
from llamanb.engine.template import ChatTemplate, ControlStrings, Render
from llamanb.errors import (
    DecodeError,
    EngineError,
    InvalidArgumentError,
    ModelLoadError,
    TemplateError,
)
from llamanb.messages import Message
from llamanb.models import check_header, fingerprint, resolve
from llamanb.sampling import MAX_SEED, SamplingParams
from llamanb.wording import sentence

__all__ = ["LlamaCppEngine"]

_DETERMINISTIC_UBATCH = 32
_GGML_LOG_LEVEL_ERROR = 4
_FEW_CANDIDATES = 256
_GGML_TYPE_BF16 = 30  # see enum ggml_type in ggml.h
_OK, _NO_SLOT, _ABORTED = 0, 1, 2  # what llama_decode returns, see llama.h

_stderr_lock = threading.Lock()
_log_lines: collections.deque[str] = collections.deque(maxlen=8)


@llama_cpp.llama_log_callback  # type: ignore[untyped-decorator]
def _collect_log(level: int, text: bytes, _: object) -> None:
    """Keep llama.cpp's last errors for messages of our own, and everything else out of the cells' outputs."""
    if level == _GGML_LOG_LEVEL_ERROR:
        _log_lines.append(text.decode("utf-8", errors="replace").strip())


llama_cpp.llama_log_set(_collect_log, None)
llama_cpp.llama_backend_init()

# llama.cpp asks after every node of its graph whether to abort. A Python function there would cost several percent of
# the decode rate, and the GIL with it. `strlen` has the right form: of a buffer it returns 0 (go on) while the first
# byte is zero and 1 (abort) once that is set, from any thread.
_libc = ctypes.cdll.msvcrt if sys.platform == "win32" else ctypes.CDLL(None)
_strlen_as_abort = ctypes.cast(_libc.strlen, llama_cpp.ggml_abort_callback)

_TOKEN_DATA = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])
_open_engines: weakref.WeakSet[LlamaCppEngine] = weakref.WeakSet()


def _close_engines() -> None:
    for engine in list(_open_engines):
        engine.close()


atexit.register(_close_engines)


class LlamaCppEngine:
    """A GGUF model, loaded into this process by llama.cpp.

    One engine serves any number of sessions, branches and threads at once: their requests are decoded together, and
    what their prompts have in common is held once.

    Parameters
    ----------
    model
        The path of a .gguf file, the name of a known model, or ``None`` for the embedded default.
    n_ctx
        Tokens that one branch may hold; cut to what the model was trained for.
    n_cells
        Tokens that the whole cache may hold, shared ones counted once; by default ``2 * n_ctx``, and at least `n_ctx`.
    n_seq_max
        How many branches can be in the cache at once, 1 to 254. Further ones are parked in host memory.
    n_threads
        Threads for evaluation; by default one per processor of this process, or half of them from eight on.
    n_batch
        The most tokens in one step.
    n_gpu_layers
        Layers that run on a GPU; by default all where llama.cpp was built for one, else none.
    deterministic
        Whether answers are the same bit for bit however their prefix came to be and whatever else is running. By
        default where nothing runs on a GPU. It costs some prefill speed. It was measured to hold for weights in Q4_1,
        such as the embedded model's, and in F32, and not to hold for Gemma 3 in Q4_K_M, whose sums depend on how many
        tokens are evaluated in one step.
    chat_template
        A Jinja template to use instead of the model's own; needed for a model that has none.

    Raises
    ------
    ModelNotFoundError
        There is no such model.
    ModelLoadError
        The file is damaged or of an unknown kind, or does not fit into memory.
    InvalidArgumentError
        A number is out of its range.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        n_ctx: int = 4096,
        n_cells: int | None = None,
        n_seq_max: int = 16,
        n_threads: int | None = None,
        n_batch: int = 512,
        n_gpu_layers: int | None = None,
        deterministic: bool | None = None,
        chat_template: str | None = None,
    ) -> None:
        check_counts(int(llama_cpp.llama_max_parallel_sequences()), n_ctx, n_cells, n_seq_max, n_batch, n_threads)
        if n_gpu_layers is not None and (isinstance(n_gpu_layers, bool) or not isinstance(n_gpu_layers, int)):
            raise TypeError(f"n_gpu_layers is a whole number or None, not a {type(n_gpu_layers).__name__}.")
        if chat_template is not None and not isinstance(chat_template, str):
            raise TypeError(f"chat_template is the text of a template, not a {type(chat_template).__name__}.")
        file = resolve(model)
        header = check_header(file.path)
        self.name = file.name
        self.fingerprint = fingerprint(file.path)
        offload = bool(llama_cpp.llama_supports_gpu_offload())
        layers = (-1 if offload else 0) if n_gpu_layers is None else n_gpu_layers
        self.deterministic = (not offload or layers == 0) if deterministic is None else deterministic
        self._native = _loaded(file.path, layers)
        self._closed = False
        try:
            self._n_ctx = min(n_ctx, self._native.n_ctx_train)
            wanted = max(n_cells or 2 * self._n_ctx, self._n_ctx, MIN_CELLS)
            check_memory(file.path.name, header, wanted)
            threads = n_threads or default_threads()
            self._native.open_context(wanted, n_seq_max, n_batch, threads, self.deterministic)
            self._template = self._native.template(chat_template)
        except BaseException:
            self._native.close()
            raise
        self._n_seq_max = n_seq_max
        book = CacheBook(
            n_seq_max, self._native.n_cells, can_cut=self._native.can_cut, ordered=self._native.keeps_order
        )
        self._scheduler = Scheduler(self._native, book)
        _open_engines.add(self)

    @property
    def n_ctx(self) -> int:
        """Tokens that the context window of one branch may hold."""
        return self._n_ctx

    @functools.cached_property
    def cache_fingerprint(self) -> str:
        """The SHA-256 of all that the numbers in the cache depend on.

        That is the model, llama.cpp's version and what it was built for, and how it evaluates.
        """
        parts = [self.fingerprint, llama_cpp.__version__, self._native.system_info, self.deterministic]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    @property
    def closed(self) -> bool:
        """Whether the engine was closed."""
        return self._closed

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> str:
        """Return the text of a conversation by the chat template."""
        return self._chat_template().render(messages, add_generation_prompt=add_generation_prompt)

    def encode(
        self, messages: Sequence[Message], *, add_generation_prompt: bool = True, render: Render | None = None
    ) -> list[int]:
        """Return the tokens of a conversation; see `llamanb.engine.base.Engine.encode`."""
        require_open(self._closed)
        if render is not None:
            segments = self._native.control.segments_of(messages, render)
        else:
            segments = self._chat_template().segments(messages, add_generation_prompt=add_generation_prompt)
        tokens = [token for segment in segments for token in self._native.tokenize(segment, special=True)]
        first = self._native.first_token
        if first is not None and tokens[:1] != [first]:
            tokens.insert(0, first)
        return tokens

    def tokenize(self, text: str) -> list[int]:
        """Return the tokens of plain text, with nothing added."""
        require_open(self._closed)
        return self._native.tokenize(text, special=False)

    def submit(self, request: GenerationRequest) -> Generation:
        """Start a generation; see `llamanb.engine.base.Engine.submit`."""
        require_open(self._closed)
        sampling = self._native.checked_sampling(request.sampling)
        budget = answer_budget(request, self._n_ctx)
        return self._scheduler.submit(dataclasses.replace(request, sampling=sampling), budget)

    def count_cached(self, tokens: Sequence[int]) -> int:
        """Return how many tokens at the start of a prompt need no prefill now."""
        require_open(self._closed)
        return self._scheduler.count_cached(tokens)

    def load_state(self, tokens: Sequence[int], state: memoryview) -> bool:
        """Keep what a cache held for some tokens; see `llamanb.engine.base.Engine.load_state`."""
        require_open(self._closed)
        return self._scheduler.load_state(tokens, (ctypes.c_uint8 * len(state)).from_buffer(state))

    def stats(self) -> EngineStats:
        """Return where the cells of the cache are."""
        return EngineStats(
            n_ctx=self._n_ctx, n_cells=self._native.n_cells, n_seq_max=self._n_seq_max, **self._scheduler.counts()
        )

    def close(self) -> None:
        """Cancel what runs and free the model. Closing twice changes nothing."""
        if not self._closed:
            self._closed = True
            self._scheduler.close()

    def _chat_template(self) -> ChatTemplate:
        if self._template is None:
            raise TemplateError(
                f"The model {self.name} has no chat template; give one: LlamaCppEngine(…, chat_template=…)."
            )
        return self._template

    def __enter__(self) -> LlamaCppEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<LlamaCppEngine {self.name}, n_ctx={self._n_ctx}{', closed' if self._closed else ''}>"


class _Native:
    """The model, its context and its vocabulary: everything that calls into the library."""

    def __init__(self, path: Path, n_gpu_layers: int, keep_loading: threading.Event) -> None:
        @llama_cpp.llama_progress_callback  # type: ignore[untyped-decorator]
        def progress(_: float, __: object) -> bool:
            return keep_loading.is_set()

        params = llama_cpp.llama_model_default_params()
        params.n_gpu_layers = n_gpu_layers
        params.progress_callback = progress
        _log_lines.clear()
        self._context: Any = None
        self._model: Any = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
        if not self._model:
            reason = next((line for line in _log_lines if line), "no reason given")
            raise ModelLoadError(f"llama.cpp cannot load {path.name}: {_reason(reason)}")
        self._vocab: Any = llama_cpp.llama_model_get_vocab(self._model)
        self.n_vocab = int(llama_cpp.llama_vocab_n_tokens(self._vocab))
        self._pieces: dict[int, bytes] = {}
        self._abort_flag = ctypes.create_string_buffer(2)
        self.n_ctx_train = int(llama_cpp.llama_model_n_ctx_train(self._model))
        self.can_cut = not (
            llama_cpp.llama_model_is_recurrent(self._model) or llama_cpp.llama_model_is_hybrid(self._model)
        )
        bos = int(llama_cpp.llama_vocab_bos(self._vocab))
        self.first_token = bos if bos >= 0 and llama_cpp.llama_vocab_get_add_bos(self._vocab) else None

    def open_context(self, n_cells: int, n_seq_max: int, n_batch: int, n_threads: int, deterministic: bool) -> None:
        """Make the context: one unified cache, in which sequences can share cells."""
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = n_cells
        params.n_batch = n_batch
        params.n_ubatch = _DETERMINISTIC_UBATCH if deterministic else n_batch
        params.n_seq_max = n_seq_max + N_OWN_SEQUENCES
        self._buried, self._passing = n_seq_max, n_seq_max + 1
        self.keeps_order = deterministic and self.can_cut
        params.n_threads = params.n_threads_batch = n_threads
        params.kv_unified = True
        params.swa_full = True
        if deterministic:
            # A row of the same micro-batch of at most 32 goes through the same arithmetic, whatever stands beside it,
            # with one exception: from 512 cells on, ggml's attention for a single token adds up one part of an F16
            # cache per thread, so that sums depend on where in the cache a branch lies. It never does for BF16 keys
            # (`use_split_kv_path` in ggml/src/ggml-cpu/ops.cpp).
            params.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED
            params.type_k = _GGML_TYPE_BF16
        _log_lines.clear()
        self._context = llama_cpp.llama_init_from_model(self._model, params)
        if not self._context:
            reason = next((line for line in _log_lines if line), "out of memory")
            raise ModelLoadError(f"llama.cpp cannot make a context of {n_cells} tokens: {_reason(reason)}")
        llama_cpp.llama_set_abort_callback(self._context, _strlen_as_abort, ctypes.addressof(self._abort_flag))
        self._memory = llama_cpp.llama_get_memory(self._context)
        self.n_cells = int(llama_cpp.llama_n_ctx(self._context))
        self.n_batch = int(llama_cpp.llama_n_batch(self._context))
        self.n_ubatch = int(llama_cpp.llama_n_ubatch(self._context))
        self._batch = llama_cpp.llama_batch_init(self.n_batch, 0, 1)

    @property
    def system_info(self) -> str:
        """What the library was built for, such as the processor's instruction sets."""
        return str(llama_cpp.llama_print_system_info().decode("utf-8", errors="replace"))

    # -- vocabulary ---------------------------------------------------------------------------------------------

    def template(self, source: str | None) -> ChatTemplate | None:
        """Return the chat template to use, or ``None`` where the model has none and none was given."""
        if source is None:
            raw = llama_cpp.llama_model_chat_template(self._model, None)
            if not raw:
                return None
            source = raw.decode("utf-8", errors="replace")
        return ChatTemplate(
            source,
            bos=self._token_text(llama_cpp.llama_vocab_bos(self._vocab)),
            eos=self._token_text(llama_cpp.llama_vocab_eos(self._vocab)),
            control=self.control,
        )

    @functools.cached_property
    def control(self) -> ControlStrings:
        """The texts of the control tokens."""
        # A user-defined token is one by its text wherever it stands; only these can be kept apart from plain text.
        marked = llama_cpp.LLAMA_TOKEN_ATTR_CONTROL | llama_cpp.LLAMA_TOKEN_ATTR_UNKNOWN
        return ControlStrings(
            self._token_text(token)
            for token in range(self.n_vocab)
            if llama_cpp.llama_vocab_get_attr(self._vocab, token) & marked
        )

    def _token_text(self, token: int) -> str:
        if token < 0:
            return ""
        text = llama_cpp.llama_vocab_get_text(self._vocab, token)
        return text.decode("utf-8", errors="replace") if text else ""

    def tokenize(self, text: str, *, special: bool) -> list[int]:
        """Return the tokens of a text; `special` says whether control tokens are read in it."""
        data = text.encode()
        room = len(data) + 8
        tokens = (llama_cpp.llama_token * room)()
        n = llama_cpp.llama_tokenize(self._vocab, data, len(data), tokens, room, False, special)
        if n < 0:
            raise EngineError(f"llama.cpp cannot tokenise a text of {len(data)} bytes.")
        return list(tokens[:n])

    def is_end(self, token: int) -> bool:
        """Whether the vocabulary marks a token as an end of generation."""
        return bool(llama_cpp.llama_vocab_is_eog(self._vocab, token))

    def piece(self, token: int) -> bytes:
        """Return the bytes of a token; those of a control token are none."""
        if token not in self._pieces:
            room = 256
            buffer = ctypes.create_string_buffer(room)
            n = llama_cpp.llama_token_to_piece(self._vocab, token, buffer, room, 0, False)
            if n < 0:
                buffer = ctypes.create_string_buffer(-n)
                n = llama_cpp.llama_token_to_piece(self._vocab, token, buffer, -n, 0, False)
            self._pieces[token] = buffer.raw[:n]
        return self._pieces[token]

    # -- sequences ----------------------------------------------------------------------------------------------

    def share(self, source: int, target: int, n: int) -> None:
        """Let a sequence hold the first `n` cells of another."""
        # A recurrent memory has one state for a sequence, which is shared whole.
        llama_cpp.llama_memory_seq_cp(self._memory, source, target, 0, n if self.can_cut else -1)

    def remove(self, seq_id: int, start: int) -> bool:
        """Remove a sequence's tokens from a position on; false where the memory cannot be cut there.

        Attention adds up in the order of the cells, and llama.cpp fills gaps first. Where sums must not depend on what
        was removed before, removed cells are therefore not freed: they go to a sequence that nobody reads, until the
        cache is written anew.
        """
        if self.keeps_order:
            llama_cpp.llama_memory_seq_cp(self._memory, seq_id, self._buried, start, -1)
        return bool(llama_cpp.llama_memory_seq_rm(self._memory, seq_id, start, -1))

    def save(self, seq_id: int, start: int = 0) -> Any:
        """Return a copy of a sequence's state from a position on, as an array of bytes."""
        if start:
            llama_cpp.llama_memory_seq_cp(self._memory, seq_id, self._passing, start, -1)
            seq_id = self._passing
        size = llama_cpp.llama_state_seq_get_size(self._context, seq_id)
        state = (ctypes.c_uint8 * size)()
        llama_cpp.llama_state_seq_get_data(self._context, state, size, seq_id)
        if start:
            llama_cpp.llama_memory_seq_rm(self._memory, self._passing, -1, -1)
        return state

    def load(self, state: Any, seq_id: int) -> bool:
        """Put a saved state at the end of a sequence; false where it does not fit."""
        # Loading empties a sequence first, so that a part has to come by way of another one.
        loaded = bool(llama_cpp.llama_state_seq_set_data(self._context, state, len(state), self._passing))
        if loaded:
            llama_cpp.llama_memory_seq_cp(self._memory, self._passing, seq_id, -1, -1)
        llama_cpp.llama_memory_seq_rm(self._memory, self._passing, -1, -1)
        return loaded

    def length(self, seq_id: int) -> int:
        """Return how many tokens a sequence holds."""
        return int(llama_cpp.llama_memory_seq_pos_max(self._memory, seq_id)) + 1

    def clear(self) -> None:
        """Remove everything from the cache."""
        llama_cpp.llama_memory_clear(self._memory, False)

    # -- evaluation ---------------------------------------------------------------------------------------------

    def decode(self, rows: Sequence[Row]) -> Outcome:
        """Evaluate a batch of at most `n_batch` tokens."""
        batch = self._batch
        batch.n_tokens = len(rows)
        for i, row in enumerate(rows):
            batch.token[i] = row.token
            batch.pos[i] = row.position
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = row.seq_id
            batch.logits[i] = row.wants_logits
        _log_lines.clear()
        status = llama_cpp.llama_decode(self._context, batch)
        if status == _OK:
            return Outcome.DONE
        if status == _ABORTED:
            return Outcome.ABORTED
        if status == _NO_SLOT:
            return Outcome.NO_ROOM
        reason = next((line for line in _log_lines if line), f"llama_decode returned {status}")
        raise DecodeError(f"llama.cpp failed while it evaluated {len(rows)} tokens: {_reason(reason)}")

    def logits(self, row: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Return the logits of a row of the last batch, shape ``(n_vocab,)``; valid until the next batch."""
        pointer = llama_cpp.llama_get_logits_ith(self._context, row)
        return np.ctypeslib.as_array(pointer, shape=(self.n_vocab,))

    def sampler(self, sampling: SamplingParams, prompt: Sequence[int]) -> _Sampler:
        """Make a fresh sampler for one request."""
        return _Sampler(self, sampling, prompt)

    def checked_sampling(self, sampling: SamplingParams) -> SamplingParams:
        """Return sampling whose logit bias is by token ids; raise where this vocabulary cannot do what is asked."""
        bias = token_bias(sampling.logit_bias, self._single, functools.partial(self.tokenize, special=False))
        for token in bias:
            if token >= self.n_vocab:
                raise InvalidArgumentError(f"logit_bias names token {token}; this model has {self.n_vocab} tokens.")
        if sampling.json_schema is not None:
            check_schema(sampling.json_schema)
        if sampling.grammar is not None:
            self.grammar(sampling.grammar).close()
        return sampling.replace(logit_bias=bias)

    def _single(self, text: str) -> Sequence[int]:
        return self._tokens_by_piece.get(text.encode(), ())

    @functools.cached_property
    def _tokens_by_piece(self) -> dict[bytes, list[int]]:
        """The tokens by their bytes: tokenising a word gives only one of those that some vocabularies have for it."""
        tokens: dict[bytes, list[int]] = {}
        for token in range(self.n_vocab):
            tokens.setdefault(self.piece(token), []).append(token)
        return tokens

    def constraint(self, sampling: SamplingParams) -> Constraint | None:
        """Return what holds an answer to a schema or a grammar, or ``None`` where it is free."""
        if sampling.json_schema is not None:
            return SchemaConstraint(self._tokenizer, sampling.json_schema)
        return None if sampling.grammar is None else self.grammar(sampling.grammar)

    @functools.cached_property
    def _tokenizer(self) -> LLTokenizer:
        """The vocabulary as llguidance knows it; made when it is first needed, which takes a third of a second."""
        first = int(llama_cpp.llama_vocab_eos(self._vocab))
        ends = [token for token in range(self.n_vocab) if self.is_end(token)]
        # A control token has no text that an answer could hold; 0xFF, which UTF-8 never has, marks one.
        pieces = [self.piece(token) or b"\xff" + self._token_text(token).encode() for token in range(self.n_vocab)]
        tokenize = ctypes.cast(llama_cpp.llama_cpp._lib.llama_tokenize, ctypes.c_void_p).value
        return LLTokenizer.from_llamacpp(  # type: ignore[attr-defined]
            tokens=pieces,
            vocab_ptr=self._vocab,
            tokenize_fptr=tokenize,
            eos_token=sorted(ends, key=lambda token: token != first),
        )

    def grammar(self, source: str) -> _Grammar:
        """Return a grammar sampler.

        Raises
        ------
        InvalidArgumentError
            The source is not valid GBNF.
        """
        check_grammar(source)
        _log_lines.clear()
        with _captured_stderr() as printed:
            grammar = llama_cpp.llama_sampler_init_grammar(self._vocab, source.encode(), b"root")
        if not grammar:
            reason = next((line for line in [*printed, *_log_lines] if line), "it has no rule 'root'")
            raise InvalidArgumentError(f"The grammar is not valid GBNF: {_reason(reason)}")
        return _Grammar(grammar)

    # -- ending -------------------------------------------------------------------------------------------------

    def abort(self) -> None:
        """Make a decode that runs return at once."""
        self._abort_flag[0] = b"\1"

    def clear_abort(self) -> None:
        """Let decodes run again."""
        self._abort_flag[0] = b"\0"

    def close(self) -> None:
        """Free the context and the model."""
        if self._context:
            llama_cpp.llama_batch_free(self._batch)
            llama_cpp.llama_free(self._context)
            self._context = None
        if self._model:
            llama_cpp.llama_model_free(self._model)
            self._model = None


class _Grammar:
    """What one answer may go on with by a GBNF grammar."""

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler

    def allows(self, token: int) -> bool:
        """Whether the answer may go on with a token."""
        return bool(self._allowed_of(np.array([token]), np.ones(1)).size)

    def allowed(self, logits: np.ndarray[Any, Any], n: int) -> np.ndarray[Any, Any]:
        """Return at least the `n` likeliest of the tokens that the answer may go on with.

        Raises
        ------
        DecodeError
            There are none.
        """
        n_vocab = len(logits)
        for size in (_FEW_CANDIDATES, 16 * _FEW_CANDIDATES, n_vocab):
            whole = size >= n_vocab
            tokens = np.arange(n_vocab) if whole else np.sort(np.argpartition(-logits, size)[:size])
            allowed = self._allowed_of(tokens, logits[tokens])
            if whole or len(allowed) >= n:
                break
        if not len(allowed):
            raise DecodeError("The grammar allows no token here that this model knows.")
        return allowed

    def _allowed_of(self, tokens: np.ndarray[Any, Any], logits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        candidates = _candidates(tokens, logits)
        array = _token_array(candidates)
        llama_cpp.llama_sampler_apply(self._sampler, ctypes.byref(array))
        return np.asarray(candidates["id"][np.isfinite(candidates["logit"])])

    def accept(self, token: int) -> None:
        """Go on with a token."""
        llama_cpp.llama_sampler_accept(self._sampler, token)

    def close(self) -> None:
        """Free it."""
        llama_cpp.llama_sampler_free(self._sampler)


class _Sampler:
    """The sampler chain of one request, in the order of llama.cpp's own default."""

    def __init__(self, native: _Native, sampling: SamplingParams, prompt: Sequence[int]) -> None:
        self._native = native
        self._constraint = native.constraint(sampling)
        self._looks_back = sampling.has_penalties or sampling.has_dry
        self._n_looked_at = self._n_deciding(sampling)
        self._chain = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
        for link in self._links(sampling):
            llama_cpp.llama_sampler_chain_add(self._chain, link)
        # Each link that looks back keeps as many of the tokens as it looks at.
        for token in prompt[-native.n_cells :] if self._looks_back else ():
            llama_cpp.llama_sampler_accept(self._chain, token)

    def _n_deciding(self, sampling: SamplingParams) -> int:
        """Return how many of the likeliest tokens decide what the chain does.

        Without top-k, which Mirostat takes the place of, or with logits that the chain changes first, all of them may.
        """
        few = 1 if sampling.greedy else sampling.top_k
        changed = bool(sampling.logit_bias) or self._looks_back
        return self._native.n_vocab if changed or sampling.has_mirostat or not few else few

    def _links(self, sampling: SamplingParams) -> list[Any]:
        links = []
        if sampling.logit_bias:
            biases = (llama_cpp.llama_logit_bias * len(sampling.logit_bias))(
                *[llama_cpp.llama_logit_bias(token, bias) for token, bias in sampling.logit_bias.items()]
            )
            links.append(llama_cpp.llama_sampler_init_logit_bias(self._native.n_vocab, len(biases), biases))
        if sampling.has_penalties:
            links.append(
                llama_cpp.llama_sampler_init_penalties(
                    self._native.n_vocab,
                    self._window(sampling.penalty_last_n),
                    sampling.repeat_penalty,
                    sampling.frequency_penalty,
                    sampling.presence_penalty,
                )
            )
        if sampling.has_dry:
            links.append(self._dry(sampling))
        if sampling.greedy:
            return [*links, llama_cpp.llama_sampler_init_greedy()]
        return [*links, *(self._mirostat(sampling) if sampling.has_mirostat else self._draw(sampling))]

    def _window(self, last_n: int) -> int:
        """Return how many tokens a link looks back over; it takes memory for each, be there a token or not."""
        return self._native.n_cells if last_n < 0 else min(last_n, self._native.n_cells)

    def _dry(self, sampling: SamplingParams) -> Any:
        breakers = [text.encode() for text in sampling.dry_sequence_breakers]
        return llama_cpp.llama_sampler_init_dry(
            self._native._vocab,
            sampling.dry_multiplier,
            sampling.dry_base,
            sampling.dry_allowed_length,
            self._window(sampling.dry_penalty_last_n),
            (ctypes.c_char_p * len(breakers))(*breakers),
            len(breakers),
        )

    @staticmethod
    def _draw(sampling: SamplingParams) -> list[Any]:
        links = []
        seed = int(sampling.seed or 0)
        if sampling.top_k:
            links.append(llama_cpp.llama_sampler_init_top_k(sampling.top_k))
        if sampling.typical_p < 1:
            links.append(llama_cpp.llama_sampler_init_typical(sampling.typical_p, 1))
        if sampling.top_p < 1:
            links.append(llama_cpp.llama_sampler_init_top_p(sampling.top_p, 1))
        if sampling.min_p > 0:
            links.append(llama_cpp.llama_sampler_init_min_p(sampling.min_p, 1))
        if sampling.has_xtc:
            # Both take numbers from a generator with their seed. With the same one, whether XTC acts on a token would
            # depend on what was drawn before it.
            own = (seed + 1) % (MAX_SEED + 1)
            links.append(
                llama_cpp.llama_sampler_init_xtc(sampling.xtc_probability, sampling.xtc_threshold, 1, own),
            )
        links.append(llama_cpp.llama_sampler_init_temp(sampling.temperature))
        links.append(llama_cpp.llama_sampler_init_dist(seed))
        return links

    @staticmethod
    def _mirostat(sampling: SamplingParams) -> list[Any]:
        return [
            llama_cpp.llama_sampler_init_temp(sampling.temperature),
            llama_cpp.llama_sampler_init_mirostat_v2(
                int(sampling.seed or 0), sampling.mirostat_tau, sampling.mirostat_eta
            ),
        ]

    def sample(self, row: int) -> int:
        """Return the token that follows a row of the last batch."""
        constraint = self._constraint
        if constraint is None:
            return int(llama_cpp.llama_sampler_sample(self._chain, self._native._context, row))
        logits = self._native.logits(row)
        token = self._choose(np.arange(len(logits)), logits)
        if not constraint.allows(token):
            # Asking a grammar about one token is cheap, and about all of them is not: llama.cpp's own programs ask
            # further only when the first choice is refused.
            allowed = constraint.allowed(logits, self._n_looked_at)
            token = self._choose(allowed, logits[allowed])
        if not self._native.is_end(token):
            constraint.accept(token)
        llama_cpp.llama_sampler_accept(self._chain, token)
        return token

    def _choose(self, tokens: np.ndarray[Any, Any], logits: np.ndarray[Any, Any]) -> int:
        candidates = _candidates(tokens, logits)
        array = _token_array(candidates)
        llama_cpp.llama_sampler_apply(self._chain, ctypes.byref(array))
        return int(array.data[array.selected].id)

    def close(self) -> None:
        """Free the chain and the grammar."""
        llama_cpp.llama_sampler_free(self._chain)
        if self._constraint is not None:
            self._constraint.close()


def _candidates(tokens: np.ndarray[Any, Any], logits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    candidates = np.zeros(len(tokens), dtype=_TOKEN_DATA)
    candidates["id"] = tokens
    candidates["logit"] = logits
    return candidates


def _token_array(candidates: np.ndarray[Any, Any]) -> Any:
    """Return a view for the library; the caller keeps `candidates` alive while it is used."""
    pointer = candidates.ctypes.data_as(llama_cpp.llama_token_data_p)
    return llama_cpp.llama_token_data_array(data=pointer, size=len(candidates), selected=-1, sorted=False)


def _loaded(path: Path, n_gpu_layers: int) -> _Native:
    """Load a model in a thread, so that an interrupt can stop it: a blocking call into the library cannot be."""
    keep_loading = threading.Event()
    keep_loading.set()
    outcome: list[_Native | BaseException] = []
    done = threading.Event()

    def load() -> None:
        try:
            outcome.append(_Native(path, n_gpu_layers, keep_loading))
        except BaseException as error:  # carried over to the thread that waits
            outcome.append(error)
        done.set()

    threading.Thread(target=load, name="llamanb-load", daemon=True).start()
    try:
        while not done.is_set():
            done.wait(0.2)  # not Thread.join: an interrupt there makes Python 3.10 to 3.12 take the thread for ended
    except BaseException:
        keep_loading.clear()
        done.wait()
        if outcome and isinstance(outcome[0], _Native):
            outcome[0].close()
        raise
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    return outcome[0]


@contextlib.contextmanager
def _captured_stderr() -> Iterator[list[str]]:
    """Collect what the library prints: its grammar parser says what is wrong on stderr, which is a cell's output."""
    lines: list[str] = []
    sys.stderr.flush()
    with _stderr_lock, tempfile.TemporaryFile() as file:
        saved = os.dup(2)
        try:
            os.dup2(file.fileno(), 2)
            yield lines
        finally:
            os.dup2(saved, 2)
            os.close(saved)
            file.seek(0)
            lines += file.read().decode("utf-8", errors="replace").splitlines()


def _reason(line: str) -> str:
    """A line of llama.cpp's log without the name of the function that wrote it."""
    text = line.split(": ", 1)[1] if line.split(":", 1)[0].replace("_", "").isalnum() and ": " in line else line
    return sentence(text)
