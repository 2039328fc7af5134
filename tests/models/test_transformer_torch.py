"""Against torch: nn.Transformer, its stacks and its layers with the same weights give the same numbers."""

import itertools
import warnings
from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

from same_numbers import assert_same_numbers, gradients_as_weights, in_dtype, shake
from tested_transformer.layers.blocks import DecoderLayer, EncoderLayer
from tested_transformer.models.convert_torch import (
    layer_pairs,
    stack_pairs,
    transformer_from_torch,
    transformer_to_torch,
)
from tested_transformer.models.transformer import (
    Transformer,
    TransformerConfig,
)

EVERY_KIND = list(itertools.product((False, True), ("relu", "gelu"), (True, False)))
SEEDS = [0, 1, 2]
pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Sizes:
    """All different, so that no axis can stand in for another."""

    batch: int
    source: int
    target: int
    d_model: int
    num_heads: int
    d_ff: int
    encoder_layers: int
    decoder_layers: int


SIZES = [Sizes(2, 7, 5, 8, 4, 12, 3, 1), Sizes(3, 4, 9, 6, 2, 10, 1, 2), Sizes(4, 6, 3, 10, 5, 9, 2, 3)]  # fmt: skip


def torch_transformer(s: Sizes, seed: int, norm_first=False, activation="relu", bias=True):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="enable_nested_tensor")
        theirs = nn.Transformer(
            s.d_model, s.num_heads, s.encoder_layers, s.decoder_layers, s.d_ff, dropout=0.0,
            activation=activation, norm_first=norm_first, bias=bias, batch_first=True,
        )  # fmt: skip
    return shake(theirs, seed)


def draw(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def real_tokens(batch: int, length: int) -> torch.Tensor:
    """Rows of different lengths, padded right; the first is full."""
    lengths = torch.tensor([max(1, length - 2 * row) for row in range(batch)])
    return torch.arange(length) < lengths[:, None]


def sparse_mask(seed: int, rows: int, columns: int) -> torch.Tensor:
    """A mask at random; column 0 stays, so that no row is empty: there torch answers NaN."""
    mask = torch.rand(rows, columns, generator=torch.Generator().manual_seed(seed)) < 0.7
    mask[:, 0] = True
    return mask


@dataclass(frozen=True)
class Masks:
    """True = may attend, as everywhere in this package."""

    source: torch.Tensor | None = None  # S S
    target: torch.Tensor | None = None  # L L, the future aside
    memory: torch.Tensor | None = None  # L S
    source_real: torch.Tensor | None = None  # B S
    target_real: torch.Tensor | None = None  # B L

    @classmethod
    def drawn(cls, s: Sizes, seed: int):
        return cls(
            sparse_mask(seed, s.source, s.source),
            sparse_mask(seed + 1, s.target, s.target),
            sparse_mask(seed + 2, s.target, s.source),
            real_tokens(s.batch, s.source),
            real_tokens(s.batch, s.target),
        )

    def ours(self) -> tuple:
        """For the encoder, the decoder's own attention, and its cross-attention."""
        source, target = (
            None if real is None else real[:, None, None] for real in (self.source_real, self.target_real)
        )  # fmt: skip
        return both(self.source, source), both(self.target, target), both(self.memory, source)

    def theirs(self, length: int) -> dict:
        """For nn.Transformer: opposite polarity, and the future hidden by hand."""
        causal = torch.ones(length, length).tril().bool()
        return {
            "src_mask": hide(self.source),
            "tgt_mask": hide(both(self.target, causal)),
            "memory_mask": hide(self.memory),
            "src_key_padding_mask": hide(self.source_real),
            "memory_key_padding_mask": hide(self.source_real),
            "tgt_key_padding_mask": hide(self.target_real),
        }


def both(first, second):
    if first is None or second is None:
        return second if first is None else first
    return first & second


def hide(mask):
    return None if mask is None else ~mask


def any_tables(s: Sizes) -> tuple[nn.Embedding, nn.Embedding]:
    return nn.Embedding(13, s.d_model), nn.Embedding(11, s.d_model)


def ours_from(theirs: nn.Transformer, s: Sizes) -> Transformer:
    tables = tuple(table.to(theirs.encoder.layers[0].linear1.weight) for table in any_tables(s))
    return transformer_from_torch(theirs, embedding=tables)


def run_stacks(s: Sizes, dtype, parameters, call) -> dict:
    """Outputs and gradients of two stacks on embedded sequences, their gradients by the pairs."""
    x = draw(10, s.batch, s.source, s.d_model).to(dtype).requires_grad_()
    y = draw(11, s.batch, s.target, s.d_model).to(dtype).requires_grad_()
    output = call(x, y)
    (output * draw(12, *output.shape).to(dtype)).sum().backward()
    return {"output": [output], "inputs' gradients": [x.grad, y.grad],
            "weights' gradients": parameters()}  # fmt: skip


def assert_stacks_agree(theirs: nn.Transformer, s: Sizes, masks: Masks):
    def run_theirs(dtype):
        module = in_dtype(theirs, dtype)
        ours = ours_from(module, s)
        return run_stacks(
            s, dtype, lambda: [g for _, g in stack_pairs(ours, gradients_as_weights(module))],
            lambda x, y: module(x, y, **masks.theirs(s.target)),
        )  # fmt: skip

    def run_ours(dtype):
        module = in_dtype(theirs, dtype)
        ours = ours_from(module, s)
        source, target, memory = masks.ours()

        def call(x, y):
            return ours.decoder(y, ours.encoder(x, mask=source), mask=target, memory_mask=memory)

        return run_stacks(
            s, dtype, lambda: [mine.grad for mine, _ in stack_pairs(ours, module)], call
        )

    return assert_same_numbers(run_ours, run_theirs)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("norm_first", "activation", "bias"), EVERY_KIND)
def test_the_stacks_with_every_mask(norm_first, activation, bias, seed):
    s = SIZES[seed]
    theirs = torch_transformer(s, seed, norm_first, activation, bias)
    assert_stacks_agree(theirs.train(seed != 1), s, Masks.drawn(s, seed))


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("kept", ["none", "source", "target", "memory", "source_real", "target_real"])  # fmt: skip
def test_the_stacks_with_one_mask(norm_first, kept):
    s, drawn = SIZES[0], Masks.drawn(SIZES[0], 5)
    masks = Masks(**{} if kept == "none" else {kept: getattr(drawn, kept)})
    assert_stacks_agree(torch_transformer(s, 3, norm_first), s, masks)


def test_source_padding_may_stand_anywhere():
    s = SIZES[1]
    for turned in (real_tokens(s.batch, s.source).flip(1), torch.tensor([[1, 0, 1, 0], [0, 1, 1, 0], [0, 0, 0, 1]]).bool()):  # fmt: skip
        assert_stacks_agree(torch_transformer(s, 4), s, Masks(source_real=turned))


@pytest.mark.parametrize("norm_first", [False, True])
def test_torchs_fast_path(norm_first):
    """Without gradients and in evaluation torch runs other code, and leaves zeros at padding."""
    s = SIZES[0]
    theirs = torch_transformer(s, 5, norm_first).eval()
    masks = Masks(source_real=real_tokens(s.batch, s.source))
    x, y = draw(0, s.batch, s.source, s.d_model), draw(1, s.batch, s.target, s.d_model)

    def run_theirs(dtype):
        module = in_dtype(theirs, dtype)
        with torch.no_grad(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*nested tensors is in prototype")
            memory = module.encoder(x.to(dtype), src_key_padding_mask=~masks.source_real)
            output = module(x.to(dtype), y.to(dtype), **masks.theirs(s.target))
        return {"memory": [memory[masks.source_real]], "output": [output]}

    def run_ours(dtype):
        ours = ours_from(in_dtype(theirs, dtype), s)
        source, target, memory_mask = masks.ours()
        with torch.no_grad():
            memory = ours.encoder(x.to(dtype), mask=source)
            output = ours.decoder(y.to(dtype), memory, mask=target, memory_mask=memory_mask)
        return {"memory": [memory[masks.source_real]], "output": [output]}

    assert_same_numbers(run_ours, run_theirs)


# --- One layer, one stack -------------------------------------------------------------------------


def config_of(s: Sizes, norm_first, activation, bias, final_norm=None) -> TransformerConfig:
    return TransformerConfig(
        13, d_model=s.d_model, num_heads=s.num_heads, d_ff=s.d_ff, dropout=0.0, bias=bias,
        activation=activation, norm_placement="pre" if norm_first else "post", final_norm=final_norm,
        num_encoder_layers=s.encoder_layers, num_decoder_layers=s.decoder_layers,
    )  # fmt: skip


def copied(ours: nn.Module, theirs: nn.Module, dtype) -> nn.Module:
    ours = ours.to(dtype)
    with torch.no_grad():
        for mine, yours in layer_pairs(ours, theirs):
            mine.copy_(yours)
    return ours


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("norm_first", "activation", "bias"), EVERY_KIND)
def test_an_encoder_layer(norm_first, activation, bias, seed):
    s, kind = SIZES[seed], (norm_first, activation, bias)
    theirs = shake(nn.TransformerEncoderLayer(
        s.d_model, s.num_heads, s.d_ff, 0.0, activation, batch_first=True, norm_first=norm_first, bias=bias,
    ), seed)  # fmt: skip
    real = real_tokens(s.batch, s.source)
    mask = sparse_mask(seed, s.source, s.source)

    def run_theirs(dtype):
        module = in_dtype(theirs, dtype)
        ours = copied(EncoderLayer(config_of(s, *kind)), module, dtype)
        return run_stacks(
            s, dtype, lambda: [g for _, g in layer_pairs(ours, gradients_as_weights(module))],
            lambda x, y: module(x, ~mask, ~real) + 0 * y.sum(),
        )  # fmt: skip

    def run_ours(dtype):
        module = in_dtype(theirs, dtype)
        ours = copied(EncoderLayer(config_of(s, *kind)), module, dtype)
        return run_stacks(
            s, dtype, lambda: [mine.grad for mine, _ in layer_pairs(ours, module)],
            lambda x, y: ours(x, mask=mask & real[:, None, None]) + 0 * y.sum(),
        )  # fmt: skip

    assert_same_numbers(run_ours, run_theirs)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("norm_first", "activation", "bias"), EVERY_KIND)
def test_a_decoder_layer(norm_first, activation, bias, seed):
    s, kind = SIZES[seed], (norm_first, activation, bias)
    theirs = shake(nn.TransformerDecoderLayer(
        s.d_model, s.num_heads, s.d_ff, 0.0, activation, batch_first=True, norm_first=norm_first, bias=bias,
    ), seed)  # fmt: skip
    masks = Masks.drawn(s, seed)
    _, target, memory = masks.ours()
    hidden = {k: v for k, v in masks.theirs(s.target).items() if not k.startswith("src")}

    def run_theirs(dtype):
        module = in_dtype(theirs, dtype)
        ours = copied(DecoderLayer(config_of(s, *kind)), module, dtype)
        return run_stacks(
            s, dtype, lambda: [g for _, g in layer_pairs(ours, gradients_as_weights(module))],
            lambda x, y: module(y, x, **hidden),
        )  # fmt: skip

    def run_ours(dtype):
        module = in_dtype(theirs, dtype)
        ours = copied(DecoderLayer(config_of(s, *kind)), module, dtype)
        return run_stacks(
            s, dtype, lambda: [mine.grad for mine, _ in layer_pairs(ours, module)],
            lambda x, y: ours(y, x, mask=target, memory_mask=memory),
        )  # fmt: skip

    assert_same_numbers(run_ours, run_theirs)


def test_a_decoder_that_may_see_the_future():
    s = SIZES[0]
    theirs = torch_transformer(s, 6)
    y, memory = draw(0, s.batch, s.target, s.d_model), draw(1, s.batch, s.source, s.d_model)
    ours = ours_from(theirs, s)
    torch.testing.assert_close(ours.decoder(y, memory, causal=False), theirs.decoder(y, memory))


@pytest.mark.parametrize("norm_first", [False, True])
def test_stacks_without_a_final_norm(norm_first):
    """torch's class always makes one; a stack given by hand may have none."""
    s = SIZES[1]
    theirs = torch_transformer(s, 7, norm_first)
    theirs.encoder.norm = theirs.decoder.norm = None
    ours = ours_from(theirs, s)
    assert not ours.config.final_norm
    assert ours.encoder.norm is None
    assert ours.decoder.norm is None
    assert_stacks_agree(theirs, s, Masks.drawn(s, 7))


# --- With embeddings and an output layer ----------------------------------------------------------


def by_hand(theirs, tables, generator, source, target, pad_id):
    """What a user of nn.Transformer writes around it: scaled embeddings, positions, masks, output."""
    width, dtype = theirs.d_model, tables[0].weight.dtype

    def embed(ids, table):
        places = torch.from_numpy(sinusoids(ids.shape[1], width)).to(dtype)
        return table(ids) * width**0.5 + places

    length = target.shape[1]
    answer = theirs(
        embed(source, tables[0]), embed(target, tables[1]),
        tgt_mask=torch.ones(length, length).triu(1).bool(), src_key_padding_mask=source == pad_id,
        tgt_key_padding_mask=target == pad_id, memory_key_padding_mask=source == pad_id,
    )  # fmt: skip
    return answer @ tables[1].weight.T if generator is None else generator(answer)


def sinusoids(length, width):
    angles = torch.arange(length).double()[:, None] * 10000 ** (
        -torch.arange(0, width, 2).double() / width
    )
    return torch.stack((angles.sin(), angles.cos()), -1).flatten(1)[:, :width].numpy()


def with_generator(kind: str, s: Sizes, dtype, pad_id):
    """Tables and an output layer of every kind that from_torch takes."""
    torch.manual_seed(20)
    tables = [nn.Embedding(v, s.d_model, padding_idx=pad_id).to(dtype) for v in (13, 11)]
    if "one table" in kind:
        tables[1] = tables[0]
    generator = None
    if "untied" in kind or "bias" in kind:
        generator = nn.Linear(s.d_model, tables[1].num_embeddings, bias="bias" in kind).to(dtype)
    if "shared" in kind:
        generator.weight = tables[1].weight
    return tables, generator


KINDS = ["two tables", "one table", "two tables, untied", "one table, untied with bias",
         "two tables, bias and shared", "one table, bias and shared"]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("norm_first", [False, True])
def test_the_whole_model_from_token_ids(kind, norm_first):
    s, pad_id = SIZES[0], 2
    theirs = torch_transformer(s, 8, norm_first)
    generator = torch.Generator().manual_seed(9)
    source, target = (torch.randint(3, 11, (s.batch, n), generator=generator) for n in (s.source, s.target))  # fmt: skip
    source[~real_tokens(s.batch, s.source)] = pad_id
    target[~real_tokens(s.batch, s.target)] = pad_id

    def run(dtype, use_ours):
        module = in_dtype(theirs, dtype)
        tables, last = with_generator(kind, s, dtype, pad_id)
        embedding = tables[0] if tables[0] is tables[1] else tuple(tables)
        ours = transformer_from_torch(module, embedding=embedding, generator=last)
        assert ours.config.tied_output == ("untied" not in kind)
        assert ours.config.output_bias == ("bias" in kind)
        logits = ours(source, target) if use_ours else by_hand(module, tables, last, source, target, pad_id)  # fmt: skip
        logits = logits[target != pad_id]  # what stands at padding is nobody's business
        (logits * draw(12, *logits.shape).to(dtype)).sum().backward()
        if use_ours:
            grads = [mine.grad for mine, _ in stack_pairs(ours, module)]
            tables, last = (ours.source_embedding.table, ours.target_embedding.table), ours.output
        else:
            grads = [g for _, g in stack_pairs(ours, gradients_as_weights(module))]
        grads += [table.weight.grad for table in tables]
        if "untied" in kind:
            grads.append(last.weight.grad)
        if "bias" in kind:
            grads.append(last.bias.grad)
        return {"logits": [logits], "gradients": grads}

    assert_same_numbers(lambda d: run(d, True), lambda d: run(d, False))


# --- Copies, there and back -----------------------------------------------------------------------


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("norm_first", "activation", "bias"), EVERY_KIND)
@pytest.mark.parametrize("final_norm", [False, True])
def test_there_and_back(norm_first, activation, bias, final_norm):
    s = SIZES[2]
    ours = shake(Transformer(config_of(s, norm_first, activation, bias, final_norm)), 1).double()
    theirs = transformer_to_torch(ours)
    assert theirs.encoder.layers[0].linear1.weight.dtype == torch.float64
    assert theirs.batch_first
    assert (theirs.encoder.norm is not None) == final_norm
    back = transformer_from_torch(theirs, embedding=ours.source_embedding.table)
    assert back.config == replace(ours.config, pad_id=0)
    for (name, mine), (other, copy) in zip(ours.state_dict().items(), back.state_dict().items(), strict=True):  # fmt: skip
        assert name == other
        assert torch.equal(mine, copy), name
    x, y = draw(0, 2, 5, s.d_model).double(), draw(1, 2, 4, s.d_model).double()
    hidden = nn.Transformer.generate_square_subsequent_mask(4, dtype=torch.float64)
    expected = theirs(x, y, tgt_mask=hidden)
    torch.testing.assert_close(ours.decoder(y, ours.encoder(x)), expected)


def test_copies_share_nothing():
    s = SIZES[1]
    theirs = torch_transformer(s, 1)
    tables = any_tables(s)
    ours = transformer_from_torch(theirs, embedding=tables)
    back = transformer_to_torch(ours)
    owned = {p.data_ptr() for p in ours.parameters()}
    for module in (theirs, back, *tables):
        assert not owned & {p.data_ptr() for p in module.parameters()}


def test_the_modes_and_the_dropout_are_copied():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = nn.Transformer(6, 2, 1, 1, 8, dropout=0.25).eval()
    ours = transformer_from_torch(theirs, embedding=nn.Embedding(5, 6))
    assert not ours.training
    assert ours.config.dropout == 0.25
    assert not transformer_to_torch(ours).training
    assert transformer_to_torch(ours.train()).decoder.layers[0].dropout2.p == 0.25


def test_a_torch_model_with_the_batch_second():
    """Its weights are the same: only its calls differ."""
    s = SIZES[1]
    theirs = torch_transformer(s, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        second = nn.Transformer(
            s.d_model, s.num_heads, s.encoder_layers, s.decoder_layers, s.d_ff, 0.0
        )
    second.load_state_dict(theirs.state_dict())
    ours = ours_from(second, s)
    x, y = draw(0, s.batch, s.source, s.d_model), draw(1, s.batch, s.target, s.d_model)
    expected = second.decoder(y.mT.permute(2, 0, 1), second.encoder(x.mT.permute(2, 0, 1)))
    got = ours.decoder(y, ours.encoder(x), causal=False)
    torch.testing.assert_close(got, expected.transpose(0, 1))


def test_changes_reach_the_configuration():
    theirs = torch_transformer(SIZES[1], 3)
    options = {"pad_id": None, "positions": "learned", "max_length": 9, "scale_embedding": False}
    ours = transformer_from_torch(theirs, embedding=nn.Embedding(5, 6, padding_idx=3), **options)
    assert {name: getattr(ours.config, name) for name in options} == options
    assert transformer_from_torch(theirs, embedding=nn.Embedding(5, 6, padding_idx=3)).config.pad_id == 3  # fmt: skip


THEIRS = torch_transformer(SIZES[1], 0)
TABLE = nn.Embedding(5, 6)


def odd_torch(**changes):
    theirs = torch_transformer(SIZES[1], 0)
    for name, value in changes.items():
        setattr(theirs.encoder, name, value)
    return theirs


def with_activation(function):
    theirs = torch_transformer(SIZES[1], 0)
    theirs.encoder.layers[0].activation = function
    return theirs


@pytest.mark.plain_types
@pytest.mark.parametrize(
    ("theirs", "options", "error", "words"),
    [
        (nn.Linear(2, 2), {"embedding": TABLE}, TypeError, ["theirs", "Linear", "nn.Transformer"]),
        (THEIRS, {"embedding": TABLE.weight}, TypeError, ["embedding", "Parameter", "nn.Embedding"]),
        (THEIRS, {"embedding": (TABLE,) * 3}, ValueError, ["embedding", "2 values"]),
        (THEIRS, {"embedding": ()}, ValueError, ["embedding", "got 0 values"]),
        (THEIRS, {"embedding": nn.Embedding(5, 4)}, ValueError, ["embedding", "(5, 4)", "width 6"]),
        (THEIRS, {"embedding": TABLE, "generator": nn.ReLU()}, TypeError, ["generator", "ReLU", "nn.Linear"]),
        (THEIRS, {"embedding": TABLE, "generator": nn.Linear(6, 4)}, ValueError, ["generator", "(4, 6)", "(5, 6)"]),
        (THEIRS, {"embedding": TABLE, "d_ff": 3}, TypeError, ["multiple values", "d_ff"]),
        (THEIRS, {"embedding": TABLE, "color": 3}, TypeError, ["unexpected keyword", "color"]),
        (THEIRS, {"embedding": TABLE, "pad_id": 5}, ValueError, ["pad_id", "below source_vocab = 5"]),
        (odd_torch(norm=None), {"embedding": TABLE}, ValueError, ["theirs", "final norm"]),
        (with_activation(torch.tanh), {"embedding": TABLE}, ValueError, ["theirs", "activation", "relu or gelu"]),
    ],
)  # fmt: skip
def test_what_has_no_place_here(theirs, options, error, words):
    with pytest.raises(error) as caught:
        transformer_from_torch(theirs, **options)
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.plain_types
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"norm_placement": "deepnorm"},
            ["ours.config.norm_placement", "deepnorm", '"post" or "pre"'],
        ),
        (
            {"norm_placement": "resi_dual"},
            ["ours.config.norm_placement", "resi_dual", '"post" or "pre"'],
        ),
        ({"norm": "rms"}, ["norm", "rms", "layer"]),
        ({"activation": "swiglu"}, ["ours.config.activation", "swiglu", '"relu" or "gelu"']),
    ],
)
def test_what_torchs_class_does_not_have(change, words):
    model = Transformer(TransformerConfig(5, d_model=4, num_heads=2, **change))
    with pytest.raises(ValueError, match=words[0]) as caught:
        transformer_to_torch(model)
    assert all(word in str(caught.value) for word in words), caught.value
