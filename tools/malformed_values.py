"""A right value for every argument of the package's public functions, from which malformed calls are made.

Most come from the annotation: a tensor from its shape, a number from its bounds, an object from its
class. What an annotation does not say stands in VALUES, by `callable.argument` or by `argument`.
"""

from __future__ import annotations

import json
import tempfile
import types
import typing
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
import torch.distributed as dist
from tokenizers import Tokenizer
from torch import Tensor, nn

from tested_transformer import data
from tested_transformer.analysis import cache_sizes, roofline
from tested_transformer.analysis.counts import Counts
from tested_transformer.analysis.scale import Layout, ModelSize
from tested_transformer.bounds import Bound
from tested_transformer.data.byte_bpe import ByteBPE
from tested_transformer.data.subwords import Subwords
from tested_transformer.data.word_piece import WordPiece
from tested_transformer.exercises import EXERCISES
from tested_transformer.experiments.ch10_number_models import load_first_model
from tested_transformer.functional.composed_heads import Composition, HeadMixing
from tested_transformer.functional.online_softmax import Partial, partial_softmax
from tested_transformer.generation.browser import Browser, Page
from tested_transformer.generation.continuous import ContinuousBatch, Request
from tested_transformer.generation.decoding_state import CausalState, DecodingState, Seq2SeqState
from tested_transformer.generation.generate import Generated
from tested_transformer.generation.masked_state import MaskedCausalState
from tested_transformer.generation.sampling import Sampling
from tested_transformer.homework.assignments import assignment
from tested_transformer.homework.jail.bubblewrap import Limits
from tested_transformer.homework.submissions.finding import Submission, find_submissions
from tested_transformer.homework.tasks import Assignment, Hunt
from tested_transformer.layers.bit_linear import BitLinear
from tested_transformer.layers.block_manager import BlockManager, BlockPool, BlockTable
from tested_transformer.layers.blocks import DecoderLayer, Embedding, EncoderLayer
from tested_transformer.layers.cache import (
    AttentionCache,
    DecoderCache,
    KeyValueCache,
    LayerCache,
    LayerState,
    WindowCache,
)
from tested_transformer.layers.config import BlockConfig, EncoderDecoderConfig
from tested_transformer.layers.feed_forward import FeedForward
from tested_transformer.layers.gated_retention import RetentionState
from tested_transformer.layers.hyper_connections import (
    HyperConnection,
    HyperStack,
    use_hyper_connections,
)
from tested_transformer.layers.indexed_latent_attention import IndexerConfig, LightningIndexer
from tested_transformer.layers.moe import ExpertsConfig
from tested_transformer.layers.multi_head import MultiHeadAttention
from tested_transformer.layers.norms import LayerNorm
from tested_transformer.layers.paged_cache import PagedCache
from tested_transformer.layers.recurrent_state import RecurrentState
from tested_transformer.layers.resi_dual import ResiDual, ResiDualStack
from tested_transformer.layers.residual import Residual
from tested_transformer.layers.segment_memory import SegmentMemory
from tested_transformer.layers.stack import Stack
from tested_transformer.mixers.fixed_patterns import Local
from tested_transformer.mixers.patterns import Part, Pattern
from tested_transformer.models.bert import BertConfig
from tested_transformer.models.bitnet import BitNetConfig
from tested_transformer.models.bloom import BloomConfig
from tested_transformer.models.falcon import FalconConfig
from tested_transformer.models.gpt_oss import GptOssConfig
from tested_transformer.models.language_model import LanguageModel, LanguageModelConfig
from tested_transformer.models.loading import save_pretrained
from tested_transformer.models.mamba import Mamba2Config, MambaConfig
from tested_transformer.models.mpt import MptConfig
from tested_transformer.models.parallel import ParallelLanguageModelConfig
from tested_transformer.models.recurrent import (
    RecurrentCache,
    RecurrentConfig,
    RecurrentTranslator,
)
from tested_transformer.models.recurrent_language_model import (
    RecurrentLanguageModel,
    RecurrentLanguageModelConfig,
)
from tested_transformer.models.retro import RetroConfig
from tested_transformer.models.roformer import RoFormerConfig
from tested_transformer.models.rwkv import Rwkv, RwkvConfig
from tested_transformer.models.t5 import T5, T5Config
from tested_transformer.models.transformer import Transformer, TransformerConfig
from tested_transformer.models.transformer_xl import TransformerXL, TransformerXLConfig
from tested_transformer.models.transnar import TransNarConfig
from tested_transformer.models.vit import VisionTransformer, VisionTransformerConfig
from tested_transformer.models.whisper import Whisper, WhisperConfig
from tested_transformer.models.xlnet import XLNet, XLNetConfig
from tested_transformer.models.yoco import Yoco, YocoConfig
from tested_transformer.plotting.interactive import (
    NumberPicture,
    NumberTranslation,
    Setting,
    SettingsPicture,
    number_picture,
)
from tested_transformer.positions.alibi import ALiBi
from tested_transformer.positions.relative import RelativeAttention, RelativePositions
from tested_transformer.positions.rotary import RotaryPositions
from tested_transformer.positions.scaled_rotary import (
    LinearScaling,
    Llama3Scaling,
    ScaledRotaryPositions,
    YarnScaling,
)
from tested_transformer.positions.t5_buckets import T5Positions
from tested_transformer.positions.xpos import XPos
from tested_transformer.reader.own_model import Parts
from tested_transformer.training.checkpoint import save_checkpoint, save_trained
from tested_transformer.training.trainer import Recipe, Trainer

SIZES = {"B": 2, "H": 2, "G": 2, "L": 3, "S": 5, "d": 4, "dv": 6, "dq": 4, "dk": 7, "D": 8, "V": 11,
         "T": 3, "T_keys": 5, "D_context": 8, "D_memory": 8, "two_D": 16, "hidden": 9, "rows": 7,
         "ends": 3, "N": 2, "*batch": (2,), "*batch_kv": (2,), "*kv_batch": (2,), "*ids": (),
         "*shape": (4, 4), "*any": (2, 3), "...": ()}  # fmt: skip
WORDS = ("one", "two", "three", "four", "five", "six", "seven")
PAIRS = [data.Pair(("eins", "zwei"), ("one", "two")), data.Pair(("drei",), ("three",))] * 2


def open_browser() -> Browser:
    """A browser with an open page, whose second line can be quoted."""
    browser = Browser([Page("page", ("one", "two"))])
    browser.search("two")
    browser.open(0)
    return browser


def small_config(**changes: Any) -> TransformerConfig:
    """A Transformer that is made at once."""
    kept = {"d_model": 8, "num_heads": 2, "d_ff": 16, "num_encoder_layers": 1}
    return TransformerConfig(11, 11, **kept, num_decoder_layers=1, dropout=0.0, **changes)


def small_language_model() -> LanguageModel:
    """A language model that is made at once."""
    return LanguageModel(LanguageModelConfig(11, d_model=8, num_heads=2, d_ff=16, num_layers=1))


def small_gpt() -> LanguageModel:
    """A GPT-2 that is made at once."""
    sizes = {"d_model": 8, "num_heads": 2, "num_layers": 1, "max_length": 9}
    kind = {"norm_placement": "pre", "positions": "learned", "scale_embedding": False}
    return LanguageModel(LanguageModelConfig(11, **sizes, **kind, pad_id=None))


def small_vit_config() -> VisionTransformerConfig:
    """A Vision Transformer that is made at once, for images of 2 x 4 pixels."""
    sizes = {"num_channels": 4, "d_model": 8, "num_heads": 2, "num_layers": 1}
    return VisionTransformerConfig((2, 4), (2, 2), **sizes, pooler=True)


def small_whisper_config() -> WhisperConfig:
    """A Whisper that is made at once, for four frames of four bands."""
    sizes = {"d_model": 8, "num_heads": 2, "num_encoder_layers": 1, "num_decoder_layers": 1}
    return WhisperConfig(11, num_mels=4, num_positions=2, max_length=9, **sizes)


def small_t5_config() -> T5Config:
    """A T5 that is made at once."""
    sizes = {"d_model": 8, "num_heads": 2, "d_head": 4, "d_ff": 16, "num_encoder_layers": 1}
    return T5Config(source_vocab=11, num_decoder_layers=1, **sizes)


def pretrained_folder() -> Path:
    """A folder with a model as transformers writes them."""
    place = folder() / "model"
    save_pretrained(small_gpt(), place)
    return place


def vocabulary() -> data.Vocabulary:
    """Seven words, and the four special ones."""
    return data.Vocabulary(WORDS)


def trainer() -> Trainer:
    """A trainer of few steps."""
    recipe = Recipe(steps=2, batch_size=2)
    return Trainer(Transformer(small_config()), PAIRS, vocabulary(), vocabulary(), recipe)


def folder() -> Path:
    """A new folder, deleted with the others when the process ends."""
    return Path(tempfile.mkdtemp(dir=TEMPORARY.name))


def trained_folder() -> Path:
    """A folder with a model."""
    place = folder() / "model"
    save_trained(place, Transformer(small_config()), vocabulary(), vocabulary())
    return place


def checkpoint_folder() -> Path:
    """A folder with a checkpoint."""
    place = folder()
    save_checkpoint(place, trainer())
    return place


def pairs_file() -> Path:
    """A file with a pair of sentences."""
    place = folder() / "pairs.txt"
    place.write_text("eins\tone\n", encoding="utf-8")
    return place


def filled_cache(empty: Callable[[], KeyValueCache] = KeyValueCache) -> KeyValueCache:
    """A cache of two tokens."""
    cache = empty()
    cache.append(torch.rand(2, 2, 2, 4), torch.rand(2, 2, 2, 4))
    return cache


def filled_paged_cache() -> PagedCache:
    """The pages of a model that has read two tokens of two sequences."""
    cache, model = PagedCache(1, num_blocks=4, block_size=2), small_language_model()
    with torch.no_grad():
        model(IDS[:, :2], cache=cache)
    return cache


def filled_retention_state() -> RetentionState:
    """The state after two tokens."""
    state = RetentionState()
    state.update(torch.rand(2, 2, 4, 4), 2)
    return state


def filled_segment_memory() -> SegmentMemory:
    """A memory of the two last of three tokens."""
    memory = SegmentMemory(2)
    memory.append(torch.rand(2, 3, 8))
    return memory


def small_transformer_xl_config() -> TransformerXLConfig:
    """A Transformer-XL of one layer."""
    return TransformerXLConfig(11, d_model=8, num_heads=2, num_layers=1, memory_length=2)


def small_xlnet_config() -> XLNetConfig:
    """An XLNet of one layer."""
    return XLNetConfig(11, d_model=8, num_heads=2, num_layers=1)


def small_yoco_config() -> YocoConfig:
    """A YOCO of two layers."""
    return YocoConfig(11, d_model=8, num_heads=2, num_layers=2)


def used_pool() -> BlockPool:
    """A pool with block 0 in use."""
    pool = BlockPool(3)
    pool.allocate()
    return pool


def filled_decoder_cache() -> DecoderCache:
    """The cache of a decoder that has read two tokens."""
    model = Transformer(small_config())
    cache = model.new_cache()
    with torch.no_grad():
        model.decode(IDS[:, :2], torch.rand(2, 5, 8), cache=cache)
    return cache


def filled_recurrent_cache() -> RecurrentCache:
    """The cache of a recurrent translator that has read two tokens."""
    model = RecurrentTranslator(RecurrentConfig(11, 11, d_model=8))
    cache = model.new_cache()
    with torch.no_grad():
        model.decode(IDS[:, :2], torch.rand(2, 5, 8), cache=cache)
    return cache


def fed(state: DecodingState) -> DecodingState:
    """The state after a token of each sequence."""
    state.feed(IDS[:, :1])
    return state


def tokenizer_folder() -> Path:
    """A folder with a tokenizer.json."""
    place = folder()
    data_subwords().tokenizer.save(str(place / "tokenizer.json"))
    return place


def data_subwords() -> Subwords:
    """Byte-pair encoding of a few words."""
    return Subwords.train([["neun"], ["neunzig"]], size=9)


def submissions_folder() -> Path:
    """A folder with one notebook."""
    place = folder()
    cell = {"cell_type": "code", "source": ["x = 1"], "metadata": {}, "outputs": []}
    text = json.dumps({"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5})
    (place / "anna.ipynb").write_text(text, encoding="utf-8")
    return place


TEMPORARY = tempfile.TemporaryDirectory(prefix="malformed-")
GPU_ROW = {
    "method": "ours",
    "length": 1024,
    "tflops": 200.0,
    "d": 128,
    "causal": False,
    "features": "",
}
GPU_RECORD = {
    "made": {"device": "some device"},
    "rows": [GPU_ROW | {"pass": "forward"}, GPU_ROW | {"pass": "forward+backward"}],
}
IDS = torch.tensor([[4, 5, 6], [7, 8, 9]])


def small_composition() -> Composition:
    """For 2 sequences of 3 tokens, 2 heads and rank 1."""
    side = HeadMixing(torch.rand(2, 3, 1, 2), torch.rand(2, 3, 1, 2), torch.rand(2, 3, 2))
    return Composition(torch.eye(2), side, side)


OBJECTS: dict[Any, Callable[[], Any]] = {
    BlockConfig: small_config,
    Browser: open_browser,
    Page: lambda: Page("page", ("one", "two")),
    TransNarConfig: lambda: TransNarConfig(d_model=8, num_heads=2, num_layers=1, d_states=4),
    EncoderDecoderConfig: small_config,
    TransformerConfig: small_config,
    T5Config: small_t5_config,
    T5: lambda: T5(small_t5_config()),
    LanguageModelConfig: lambda: LanguageModelConfig(11, d_model=8, num_heads=2, num_layers=1),
    BloomConfig: lambda: BloomConfig(11, d_model=8, num_heads=2, num_layers=1),
    FalconConfig: lambda: FalconConfig(11, d_model=8, num_heads=2, norm_placement="pre"),
    BitNetConfig: lambda: BitNetConfig(11, d_model=8, num_heads=2, num_layers=1),
    MptConfig: lambda: MptConfig(11, d_model=8, num_heads=2, num_layers=1),
    ParallelLanguageModelConfig: lambda: ParallelLanguageModelConfig(
        11, d_model=8, num_heads=2, num_layers=1, norm_placement="pre"
    ),
    RetroConfig: lambda: RetroConfig(vocab_size=11, chunk_size=2, d_model=8, num_heads=2),
    RoFormerConfig: lambda: RoFormerConfig(11, d_model=8, num_heads=2, num_layers=1),
    RecurrentConfig: lambda: RecurrentConfig(11, 11, d_model=8),
    VisionTransformerConfig: small_vit_config,
    VisionTransformer: lambda: VisionTransformer(small_vit_config()),
    WhisperConfig: small_whisper_config,
    Whisper: lambda: Whisper(small_whisper_config()),
    Transformer: lambda: Transformer(small_config()),
    LanguageModel: small_language_model,
    DecodingState: lambda: CausalState(small_language_model()),
    AttentionCache: KeyValueCache,
    LayerState: KeyValueCache,
    RetentionState: filled_retention_state,
    RecurrentState: RecurrentState,
    MambaConfig: lambda: MambaConfig(vocab_size=11, d_model=8, num_layers=1, num_states=4),
    Mamba2Config: lambda: Mamba2Config(
        vocab_size=11, d_model=8, num_layers=1, num_heads=4, d_head=4, num_states=4
    ),
    RwkvConfig: lambda: RwkvConfig(vocab_size=11, d_model=8, num_layers=1),
    RecurrentLanguageModelConfig: lambda: MambaConfig(vocab_size=11, d_model=8, num_layers=1),
    RecurrentLanguageModel: lambda: Rwkv(RwkvConfig(vocab_size=11, d_model=8, num_layers=1)),
    Pattern: lambda: Local(2),
    Part: lambda: Local(2).parts(3)[0],
    XLNetConfig: small_xlnet_config,
    XLNet: lambda: XLNet(small_xlnet_config()),
    SegmentMemory: filled_segment_memory,
    TransformerXLConfig: small_transformer_xl_config,
    TransformerXL: lambda: TransformerXL(small_transformer_xl_config()),
    YocoConfig: small_yoco_config,
    Yoco: lambda: Yoco(small_yoco_config()),
    MultiHeadAttention: lambda: MultiHeadAttention(8, 2),
    FeedForward: lambda: FeedForward(8, 16),
    Sampling: Sampling,
    Recipe: lambda: Recipe(steps=2, batch_size=2),
    Trainer: trainer,
    Counts: lambda: Counts("parameters", {"all": 3}),
    roofline.Device: lambda: next(iter(roofline.DEVICES.values())),
    cache_sizes.CachedModel: lambda: cache_sizes.CACHED_MODELS["LLaMA-13B"],
    Tokenizer: lambda: data_subwords().tokenizer,
    Subwords: data_subwords,
    ByteBPE: lambda: ByteBPE([("a", "b")]),
    WordPiece: lambda: WordPiece(["[UNK]", "a", "##b"]),
    LinearScaling: lambda: LinearScaling(2.0),
    Llama3Scaling: lambda: Llama3Scaling(2.0, 1.0, 4.0, 8),
    YarnScaling: lambda: YarnScaling(2.0, 8),
    LightningIndexer: lambda: LightningIndexer(8, 4, 2, OBJECTS[IndexerConfig]()),
    IndexerConfig: lambda: IndexerConfig(num_heads=2, d_head=4, num_keys=2),
    BitLinear: lambda: BitLinear(8, 8),
    ExpertsConfig: lambda: ExpertsConfig(num_experts=4, num_chosen=2, d_expert=3),
    GptOssConfig: lambda: GptOssConfig(
        11, d_model=8, num_heads=2, num_layers=2, num_experts=4, num_chosen=2, positions="rotary"
    ),
    ScaledRotaryPositions: lambda: ScaledRotaryPositions(4, LinearScaling(2.0)),
    MaskedCausalState: lambda: fed(MaskedCausalState(small_gpt(), visible(2, 1))),
    KeyValueCache: filled_cache,
    PagedCache: filled_paged_cache,
    BlockPool: used_pool,
    BlockManager: lambda: BlockManager(4, 2, copy=lambda old, new: None),
    BlockTable: BlockTable,
    ModelSize: lambda: ModelSize(1000, layers=2, d_model=8, d_kv=4),
    Layout: lambda: Layout(data=2),
    ContinuousBatch: lambda: ContinuousBatch(
        small_language_model(), PagedCache(1, num_blocks=4), max_batch=2
    ),
    Request: lambda: Request([4, 5], max_new=1),
    WindowCache: lambda: filled_cache(lambda: WindowCache(2)),
    Embedding: lambda: Embedding(11, small_config()),
    LayerCache: lambda: LayerCache(KeyValueCache()),
    RelativeAttention: lambda: RelativeAttention(4, 2),
    RelativePositions: lambda: RelativePositions(4, 2),
    T5Positions: lambda: T5Positions(2, num_buckets=8, max_distance=20),
    XPos: lambda: XPos(4),
    RotaryPositions: lambda: RotaryPositions(4),
    DecoderCache: filled_decoder_cache,
    RecurrentCache: filled_recurrent_cache,
    CausalState: lambda: fed(CausalState(small_language_model())),
    Seq2SeqState: lambda: fed(Seq2SeqState(Transformer(small_config()), IDS)),
    BertConfig: lambda: BertConfig(11, d_model=8, num_heads=2, num_layers=2, max_length=9),
    nn.ModuleList: lambda: nn.ModuleList([nn.Linear(8, 8)]),
    torch.Generator: lambda: torch.Generator().manual_seed(0),
    Stack: lambda: Stack([DecoderLayer(small_config())]),
    ResiDualStack: lambda: ResiDualStack([DecoderLayer(small_config(norm_placement="resi_dual"))]),
    Partial: lambda: partial_softmax(torch.rand(2, 3, 5), torch.rand(2, 5, 6)),
    SettingsPicture: lambda: SettingsPicture(
        "title",
        [Setting("name", ("a", "b"))],
        lambda choice: {"slot": str(choice)},
        name="scale",
        size=(9, 9),
        draw=str,
        words=str,
        table=str,
    ),
    Composition: small_composition,
    ResiDual: lambda: ResiDual(LayerNorm(8)),
    HyperConnection: lambda: HyperConnection(LayerNorm(8), 8, 2),
    HyperStack: lambda: use_hyper_connections(
        Stack([DecoderLayer(small_config(norm_placement="pre"))]), 2
    ),
    Residual: lambda: Residual(LayerNorm(8)),
    Parts: lambda: Parts.of({}),
    NumberPicture: lambda: number_picture([number_translation()], start=1, examples=[1]),
    Limits: Limits,
    Assignment: lambda: Assignment("hw01", "title", "1", (1,), ()),
    Submission: lambda: find_submissions(submissions_folder())[0],
    data.Vocabulary: vocabulary,
    data.Batch: lambda: data.make_batch(PAIRS, vocabulary(), vocabulary()),
    Generated: lambda: Generated(IDS, torch.rand(2)),
    nn.Module: lambda: Transformer(small_config()),
    nn.Linear: lambda: nn.Linear(8, 11),
    nn.Embedding: lambda: nn.Embedding(11, 8),
    nn.MultiheadAttention: lambda: nn.MultiheadAttention(8, 2, batch_first=True),
    nn.Transformer: lambda: nn.Transformer(8, 2, 1, 1, 16, batch_first=True),
    torch.Generator: torch.Generator,
    torch.dtype: lambda: torch.float64,
    torch.device: lambda: "cpu",
    data.Pair: lambda: PAIRS[0],
    Path: folder,
}


def visible(*shape: int) -> Tensor:
    """A mask that masks nothing."""
    return torch.ones(shape, dtype=torch.bool)


def number_translation() -> NumberTranslation:
    """What a model attends to as it translates 1."""
    return NumberTranslation(1, ("ein",), ("one", "EOS"), np.ones((2, 1)))


ALSO = {  # what a right call needs besides its required arguments
    "batch_norm": ("mean", "variance"),
    "deepnorm_constants": ("num_encoder_layers",),
    "RelativePositions.bias": ("query",),
    "number_picture": ("start", "examples"),
    "sampling_sliders": ("shown",),
    "ResiDualStack.forward": ("inputs",),
    "HyperStack.forward": ("inputs",),
    "Stack.forward": ("inputs",),
    "packed_attention": ("cu_seqlens_k",),
    "SettingsPicture.at": ("choice",),
}
# A group of one process, in which a worker's functions can be called.
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)

VALUES: dict[str, Callable[[], Any]] = {
    "shard_model.units": lambda: nn.Linear,
    "save_sharded.optimizer": lambda: torch.optim.SGD([torch.rand(2, requires_grad=True)]),
    "load_sharded.optimizer": lambda: torch.optim.SGD([torch.rand(2, requires_grad=True)]),
    "save_sharded.folder": lambda: folder() / "sharded",
    "load_sharded.folder": lambda: folder() / "sharded",
    "clip_gradients.gradients": lambda: [torch.rand(2, 3)],
    "activation": lambda: "gelu",
    "d_edge": lambda: 4,
    "d_nodes": lambda: 4,
    "Browser.open.result": lambda: 0,
    "Browser.quote.text": lambda: "two",
    "norm_placement": lambda: "pre",
    "norm": lambda: "rms",
    "layout": lambda: "halves",
    "position_layout": lambda: "halves",
    "backend": lambda: "plain",
    "kind": lambda: "list",
    "d_model": lambda: 8,
    "d_in": lambda: 8,
    "query_size": lambda: 4,
    "key_size": lambda: 7,
    "vocab_size": lambda: 11,
    "source_vocab": lambda: 11,
    "target_vocab": lambda: 11,
    "num_heads": lambda: 2,
    "max_length": lambda: 9,
    "num_encoder_layers": lambda: 1,
    "num_decoder_layers": lambda: 1,
    "num_layers": lambda: 1,
    "pairs": lambda: PAIRS,
    "held_out": lambda: PAIRS,
    "sentences": lambda: [["one", "two"], ["three"]],
    "vocabulary": vocabulary,
    "device": lambda: "cpu",
    "mask": lambda: visible(3, 5),
    "allowed": lambda: visible(3, 5),
    "masks": lambda: visible(3, 5),
    "bias": lambda: torch.zeros(3, 5),
    "cu_seqlens": lambda: torch.tensor([0, 2, 3]),
    "cu_seqlens_k": lambda: torch.tensor([0, 2, 5]),
    "RelativeAttention.forward.query": lambda: torch.rand(2, 3, 4),
    "RelativeAttention.forward.key": lambda: torch.rand(2, 5, 4),
    "RelativeAttention.forward.value": lambda: torch.rand(2, 5, 4),
    "Embedding.forward.position_ids": lambda: torch.arange(3)[None],
    "Embedding.forward.num_positions": lambda: 3,
    "Stack.forward.x": lambda: torch.rand(2, 3, 8),
    "ResiDualStack.forward.x": lambda: torch.rand(2, 3, 8),
    "ResiDualStack.forward.inputs": lambda: torch.rand(2, 5, 8),
    "SettingsPicture.at.choice": lambda: 0,
    "alpha": lambda: 1.0,
    "positions": lambda: ALiBi(2),
    "start": lambda: torch.ones(2, 3, dtype=torch.long),
    "labels": lambda: ["a", "b"],
    "d_head": lambda: 4,
    "own": lambda: KeyValueCache,
    "KeyValueCache.append.value": lambda: torch.rand(2, 2, 3, 4),
    "WindowCache.truncate.length": lambda: 1,
    "BlockManager.truncate.length": lambda: 0,
    "copy": lambda: lambda old, new: None,
    "block": lambda: 0,
    "block_table": lambda: torch.tensor([[0, 1], [1, 0]]),
    "lengths": lambda: torch.tensor([1, 2]),
    "slots": lambda: torch.tensor([[0, 1], [1, 0]]),
    "token_ids": lambda: torch.tensor([[0, 1], [1, 0]]),
    "tables": lambda: [BlockTable()],
    "new": lambda: [1],
    "PagedCache.extend.real": lambda: visible(2, 1),
    "WindowCache.append.value": lambda: torch.rand(2, 2, 3, 4),
    "ConvFeedForward.transform.x": lambda: torch.rand(2, 3, 8),
    "FeedForward.transform.x": lambda: torch.rand(2, 3, 8),
    "batch_norm.bias": lambda: torch.rand(8),
    "layer_norm.bias": lambda: torch.rand(8),
    "sampling_sliders.shown": lambda: 3,
    "score_statistics.d_head": lambda: 4,
    "num_queries": lambda: 2,
    "position_ids": lambda: torch.arange(3),
    "SegmentedEmbedding.forward.position_ids": lambda: torch.arange(3),
    "Residual.forward.sublayer": lambda: lambda x: x,
    "hyper_connection.sublayer": lambda: lambda x: x,
    "hyper_connection.streams": lambda: torch.rand(3, 2, 8),
    "hyper_connection.alpha": lambda: torch.rand(2, 3),
    "hyper_connection.beta": lambda: torch.rand(2),
    "read_streams.streams": lambda: torch.rand(3, 2, 8),
    "read_streams.alpha": lambda: torch.rand(2, 3),
    "write_streams.streams": lambda: torch.rand(3, 2, 8),
    "write_streams.output": lambda: torch.rand(3, 8),
    "write_streams.beta": lambda: torch.rand(2),
    "HyperConnection.norm": lambda: LayerNorm(8),
    "HyperConnection.d_model": lambda: 8,
    "HyperConnection.forward.sublayer": lambda: lambda x: x,
    "HyperConnection.forward.x": lambda: torch.rand(3, 2, 8),
    "HyperConnection.inputs.x": lambda: torch.rand(3, 2, 8),
    "HyperConnection.add.x": lambda: torch.rand(3, 2, 8),
    "HyperConnection.add.output": lambda: torch.rand(3, 8),
    "HyperStack.forward.x": lambda: torch.rand(2, 3, 8),
    "HyperStack.forward.inputs": lambda: torch.rand(2, 5, 8),
    "HyperStack.forward.norm": lambda: LayerNorm(8),
    "use_hyper_connections.stack": lambda: Stack(
        [EncoderLayer(small_config(norm_placement="pre"))]
    ),
    "composed_attention.query": lambda: torch.rand(2, 2, 3, 4),
    "composed_attention.key": lambda: torch.rand(2, 2, 3, 4),
    "composed_attention.value": lambda: torch.rand(2, 2, 3, 4),
    "Residual.norm": lambda: lambda x: x,
    "ResiDual.norm": lambda: LayerNorm(8),
    "ResiDualStack.forward.norm": lambda: LayerNorm(8),
    "ResiDual.add.output": lambda: torch.rand(2, 8),
    "Residual.add.output": lambda: torch.rand(2, 8),
    "deepnorm_init.sublayers": lambda: FeedForward(8, 16),
    "Decoder.forward.mask": lambda: visible(3, 3),
    "Decoder.forward.memory_mask": lambda: visible(3, 5),
    "DecoderLayer.forward.mask": lambda: visible(3, 3),
    "DecoderLayer.forward.memory_mask": lambda: visible(3, 5),
    "MultiHeadAttention.forward.mask": lambda: visible(3, 3),
    "MultiHeadAttention.forward.bias": lambda: torch.zeros(3, 3),
    "SelfAttention.forward.mask": lambda: visible(3, 3),
    "LanguageModel.forward.mask": lambda: visible(3, 3),
    "Encoder.forward.mask": lambda: visible(5, 5),
    "Transformer.forward.source_mask": lambda: visible(2, 1, 1, 5),
    "Transformer.forward.target_mask": lambda: visible(3, 3),
    "Transformer.forward.memory_mask": lambda: visible(2, 1, 1, 5),
    "Transformer.encode.mask": lambda: visible(2, 1, 1, 5),
    "Transformer.decode.mask": lambda: visible(3, 3),
    "Transformer.decode.memory_mask": lambda: visible(2, 1, 1, 5),
    "relative_attention.mask": lambda: visible(3, 5),
    "LanguageModelConfig.norm": lambda: "rms",
    "interpolate_positions.grid": lambda: (1, 2),
    "log_mel.length": lambda: 480,
    "audio_frames.audio": lambda: torch.rand(300),
    "power_spectrum.audio": lambda: torch.rand(300),
    "DecoderCache.extend.real": lambda: visible(2, 1),
    "Stack.forward.caches": lambda: [LayerCache(KeyValueCache())],
    "Stack.forward.norm": lambda: LayerNorm(8),
    "Stack.forward.inputs": lambda: torch.rand(2, 5, 8),
    "numbers": lambda: [1, 2],
    "read_pairs.path": pairs_file,
    "read_pairs.separator": lambda: "\t",
    "Subwords.train.size": lambda: 30,
    "ByteBPE.merges": lambda: [("a", "b")],
    "ByteBPE.train.size": lambda: 260,
    "WordPiece.vocabulary": lambda: ["[UNK]", "a", "##b"],
    "WordPiece.train.size": lambda: 60,
    "load_tokenizer.folder": tokenizer_folder,
    "load_checkpoint.folder": checkpoint_folder,
    "load_trained.folder": trained_folder,
    "from_pretrained.folder": pretrained_folder,
    "save_pretrained.model": small_gpt,
    "LightningIndexer.positions": lambda: RotaryPositions(2),
    "IndexedLatentAttention.index_positions": lambda: RotaryPositions(2),
    "Llama3Scaling.high_freq_factor": lambda: 4.0,
    "LanguageModelConfig.latent": lambda: (
        None
    ),  # another option's right value would be wrong with one
    **dict.fromkeys(
        (
            f"{name}Config.indexer"
            for name in ("LanguageModel", "ParallelLanguageModel", "GptOss", "Yoco", "Mpt", "Bloom")
        ),
        lambda: None,
    ),
    "chunked_cross_attention.key": lambda: torch.rand(2, 2, 1, 5, 4),
    "chunked_cross_attention.value": lambda: torch.rand(2, 2, 1, 5, 6),
    "chunked_cross_attention.mask": lambda: visible(2, 1, 5),
    "chunked_cross_attention.chunk_size": lambda: 2,
    "ChunkedCrossAttention.chunk_size": lambda: 2,
    "ChunkedCrossAttention.forward.neighbors": lambda: torch.rand(2, 1, 5, 8),
    "ChunkedCrossAttention.forward.mask": lambda: visible(2, 1, 5),
    "Retro.forward.neighbors": lambda: torch.ones(2, 1, 2, 4, dtype=torch.long),
    "ChunkDatabase.documents": lambda: [torch.tensor([4, 5, 6])],
    "ChunkDatabase.encode": lambda: lambda chunks: chunks.float(),
    "ChunkDatabase.chunk_size": lambda: 2,
    "ChunkDatabase.search.chunks": lambda: torch.tensor([[4, 5], [6, 7]]),
    "ChunkDatabase.neighbors_of.chunks": lambda: torch.tensor([[[4, 5]], [[6, 7]]]),
    "RetroConfig.max_length": lambda: 9,
    "RetroConfig.num_retrieval_layers": lambda: 1,
    "Merged.patterns": lambda: (Local(2), Local(3)),
    "attention_per_head.patterns": lambda: [Local(2), Local(3)],
    "Summaries.block": lambda: 2,
    "DilatedBranch.dilation": lambda: 1,
    "DilatedBranch.offset": lambda: 0,
    "segments": lambda: (2, 4),
    "dilations": lambda: (1, 2),
    "BloomConfig.latent": lambda: None,
    "t5_buckets.num_buckets": lambda: 8,
    "t5_buckets.max_distance": lambda: 20,
    "T5Positions.num_buckets": lambda: 8,
    "T5Config.num_buckets": lambda: 8,
    "T5Config.max_distance": lambda: 20,
    "T5Positions.max_distance": lambda: 20,
    "FalconConfig.latent": lambda: None,
    "MptConfig.latent": lambda: None,
    "BitNetConfig.latent": lambda: None,
    "BitNetConfig.indexer": lambda: None,
    "BitNetConfig.bias": lambda: False,
    "ParallelLanguageModelConfig.latent": lambda: None,
    "GptOssConfig.latent": lambda: None,
    "YocoConfig.latent": lambda: None,
    "YocoConfig.experts": lambda: None,
    "XLNetConfig.pad_id": lambda: None,
    "relative_shift.by_distance": lambda: torch.rand(2, 3, 7),
    "relative_shift.num_keys": lambda: 5,
    "transformer_xl_attention.position_key": lambda: torch.rand(2, 7, 4),
    "TwoStreamAttention.forward.encodings": lambda: torch.rand(5, 8),
    "permutation_masks.order": lambda: torch.tensor([[1, 0, 2], [2, 1, 0]]),
    "TransformerXLConfig.latent": lambda: None,
    "TransformerXLConfig.experts": lambda: None,
    "primal_ttt.norm": lambda: None,
    "dual_ttt.norm": lambda: None,
    "YocoConfig.num_layers": lambda: 2,
    "SharedKeyValues.norm": lambda: LayerNorm(8),
    "GptOssConfig.windowed": lambda: (True, False) * 3,
    "MscaleYarnScaling.fast_turns": lambda: 32.0,
    "sigmoid_routing.num_groups": lambda: 1,
    "sigmoid_routing.num_kept_groups": lambda: 1,
    "softmax_routing.num_groups": lambda: 1,
    "softmax_routing.num_kept_groups": lambda: 1,
    "route.num_groups": lambda: 1,
    "route.num_kept_groups": lambda: 1,
    "ExpertsConfig.num_groups": lambda: 1,
    "ExpertsConfig.num_kept_groups": lambda: 1,
    "YarnScaling.fast_turns": lambda: 32.0,
    "Recipe.patience": lambda: None,
    "batches": lambda: [data.make_batch(PAIRS, vocabulary(), vocabulary())],
    "describe_mask.mask": lambda: visible(3, 5),
    "describe_mask.rows": lambda: list("abc"),
    "describe_mask.columns": lambda: list("abcde"),
    "read_gpu_results.path": lambda: folder() / "none.json",
    "record": lambda: GPU_RECORD,
    "results_table.d": lambda: 128,
    "results_table.causal": lambda: False,
    "tflops_by_length.d": lambda: 128,
    "tflops_by_length.causal": lambda: False,
    "measure_traffic.function": lambda: lambda *tensors: [-each for each in tensors],
    "side_by_side.columns": lambda: Counts("parameters", {"all": 3}),
    "number_trainer.split": lambda: data.Split(PAIRS, PAIRS),
    "number_trainer.build": lambda: Transformer,
    "pitfall.name": lambda: "1 - p for p",
    "judge.spec": lambda: EXERCISES["ch03.softmax"],
    "judge.candidate": lambda: lambda scores: torch.softmax(scores, -1),
    "check.name": lambda: "ch03.softmax",
    "check.function": lambda: lambda scores: torch.softmax(scores, -1),
    "OwnTransformer.parts": lambda: Parts.of({}),
    "Parts.of.functions": dict,
    "judge_hunt.hunt": lambda: next(p for p in assignment("hw01").parts if isinstance(p, Hunt)),
    "judge_hunt.test": lambda: lambda function: None,
    "find_submissions.path": submissions_folder,
    "read_submission.file": lambda: submissions_folder() / "anna.ipynb",
    "grade.path": submissions_folder,
    "grade.out": folder,
    "Submission.read.file": pairs_file,
    "weights": lambda: torch.rand(3, 5),
    "heat_map.mask": lambda: visible(3, 5),
    "heat_map.vmin": lambda: 0.0,
    "heat_map.vmax": lambda: 1.0,
    "heat_maps.weights": lambda: torch.rand(2, 3, 5),
    "heat_maps.masks": lambda: visible(2, 3, 5),
    "heat_maps.vmin": lambda: 0.0,
    "heat_maps.vmax": lambda: 1.0,
    "color_bar": lambda: False,
    "mask_pictures.masks": lambda: visible(2, 3, 5),
    "titles": lambda: ["one", "two"],
    "rows": lambda: list("abc"),
    "columns": lambda: list("abcde"),
    "sources": lambda: list("abcde"),
    "targets": lambda: list("abc"),
    "x": lambda: [1, 2, 3],
    "lines": lambda: {"a": [1.0, 2.0, 3.0]},
    "marks": dict,
    "bands": dict,
    "colors": dict,
    "heights": lambda: [1.0, 2.0],
    "Question.lines": lambda: Counter(a=1),
    "Setting.labels": lambda: ("a", "b"),
    "Setting.start": lambda: 1,
    "translation": number_translation,
    "translations": lambda: [number_translation()],
    "number_picture.start": lambda: 1,
    "number_picture.examples": lambda: [1],
    "number_picture.shown": lambda: [1],
    "translate_numbers.model": lambda: load_first_model()[0],
    "translate_numbers.source": lambda: load_first_model()[1],
    "translate_numbers.target": lambda: load_first_model()[2],
    "mask_switches.scores": lambda: torch.rand(3, 3),
    "mask_switches.words": lambda: list("abc"),
    "mask_switches.start": lambda: (0, 0, 0, 1),
    "sampling_sliders.words": lambda: list("abcdefghijk"),
    "sampling_sliders.start": lambda: (4, 10, 11),
    "scale_slider.queries": lambda: list("abc"),
    "scale_slider.keys": lambda: list("abcde"),
    "scale_slider.start": lambda: (0, 0),
}


def value_of(label: str, name: str, hint: Any) -> Any:
    """A right value for an argument; LookupError if nothing says one."""
    for key in (f"{label}.{name}", name):
        if key in VALUES and (key != name or fits(VALUES[key](), hint)):
            return VALUES[key]()
    return by_hint(hint)


def by_hint(hint: Any) -> Any:
    """A right value for an annotation."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return bounded(hint)
    if origin in (typing.Union, types.UnionType):
        return by_hint(next(one for one in inner if one is not type(None)))
    if origin is Literal:
        return inner[0]
    if is_shape(hint):
        return tensor_of(hint)
    if hint in OBJECTS:
        return OBJECTS[hint]()
    plain = {bool: True, int: 2, float: 0.5, str: "name", Tensor: torch.rand(2, 3)}
    if hint in plain:
        return plain[hint]
    if origin is dict or origin is Mapping or hint is dict:
        return {"a": by_hint(inner[1])} if inner else {}
    if origin in (list, Sequence, Iterable):
        return [by_hint(inner[0])] * 2 if inner[0] is not str else ["one", "two"]
    if origin is set:
        return {by_hint(inner[0])}
    if origin is Callable or hint is Callable:
        return lambda *values: values[0]
    if origin is tuple:
        return tuple(by_hint(one) for one in inner if one is not ...)
    raise LookupError(f"no value for {hint}")


def bounded(hint: Any) -> Any:
    """The first of a few values that keeps the bounds of an annotation."""
    kind, *bounds = typing.get_args(hint)
    if is_shape(kind) or typing.get_origin(kind) in (typing.Union, types.UnionType):
        return by_hint(kind)
    candidates = {int: (2, 1, 4, 0), float: (0.5, 2.0, 1.0)}
    return next(each for each in candidates.get(kind) or [by_hint(kind)] if within(each, bounds))


def within(value: Any, bounds: Iterable[Any]) -> bool:
    """Whether a number keeps the bounds; a limit that is another argument bounds nothing here."""
    rules = [one for one in bounds if isinstance(one, Bound) and not isinstance(one.limit, str)]
    return all(one.holds(value, one.limit) for one in rules)


def is_shape(hint: Any) -> bool:
    """Whether an annotation is jaxtyping's, of a tensor."""
    return typing.get_origin(hint) is None and getattr(hint, "array_type", None) is Tensor


def tensor_of(hint: Any) -> Tensor:
    """A tensor of the shape that an annotation gives."""
    shape: list[int] = []
    for axis in hint.dim_str.replace("#", "").split():
        size = int(axis) if axis.isdigit() else SIZES.get(axis, 4)
        shape += size if isinstance(size, tuple) else (size,)
    if hint.dtype.__name__ == "Bool":
        return torch.ones(shape, dtype=torch.bool)
    return (
        torch.ones(shape, dtype=torch.long) if hint.dtype.__name__ == "Int" else torch.rand(shape)
    )


def fits(value: Any, hint: Any) -> bool:
    """Whether a value has a type that an annotation allows; shapes and bounds aside."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any or isinstance(hint, typing.TypeVar):
        return True
    if origin is Annotated:
        return fits(value, inner[0])
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, one) for one in inner)
    if origin is Literal:
        return any(type(value) is type(one) and value == one for one in inner)
    if is_shape(hint):
        return isinstance(value, Tensor) and has_dtype(value.dtype, hint)
    if hint in (int, float):
        kind = int if hint is int else (int, float)
        return isinstance(value, kind) and not isinstance(value, bool)
    if hint is Callable or origin is Callable:
        return callable(value)
    cls = origin or hint
    if getattr(cls, "_is_protocol", False):
        return False
    if not isinstance(cls, type) or not isinstance(value, cls):
        return hint is None and value is None
    if isinstance(value, str):
        return cls in (str, object)
    if origin in (list, Sequence, Iterable) and inner and not isinstance(value, Tensor):
        return all(fits(one, inner[0]) for one in value)
    if origin is tuple and ... not in inner:
        return len(value) == len(inner) and all(map(fits, value, inner))
    if origin is Mapping and inner:
        return all(fits(key, inner[0]) and fits(one, inner[1]) for key, one in value.items())
    return True


def has_dtype(dtype: torch.dtype, hint: Any) -> bool:
    """Whether the dtype is of the kind that a shape's annotation names."""
    kind = "Bool" if dtype == torch.bool else "Float" if dtype.is_floating_point else "Int"
    return not dtype.is_complex and hint.dtype.__name__ in (kind, "Shaped", "Num")
