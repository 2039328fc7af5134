"""A small BERT on number words in two languages: masked tokens, and few labels (chapter 12)."""

from __future__ import annotations

import torch
from jaxtyping import Int
from torch import Tensor, nn
from torch.nn import functional

from .. import minimal
from ..data.masked_tokens import IGNORE, mask_tokens
from ..data.number_words import english_words, german_words
from ..models import bert as models
from ..special_tokens import pad
from . import ch04_leak

PAD, CLS, MASK = range(3)
SPECIAL = ["[PAD]", "[CLS]", "[MASK]"]
NUMBERS = range(1, 1000)


def words_of(german: int, english: int | None = None) -> list[str]:
    """A number in German = a number in English; without the second one, the same."""
    first = german_words(german, segmentation="coarse")
    return [*first, "=", *english_words(german if english is None else english), "."]


WORDS = SPECIAL + sorted({word for number in NUMBERS for word in words_of(number)})
TOKEN_ID = {word: number for number, word in enumerate(WORDS)}
LENGTH = 1 + max(len(words_of(number)) for number in NUMBERS)


def encode(sentences: list[list[str]]) -> Int[Tensor, "N L"]:
    """[CLS] and the words, as token IDs, padded on the right."""
    return pad([[CLS, *(TOKEN_ID[word] for word in sentence)] for sentence in sentences])


def sentences() -> Int[Tensor, "72 8"]:
    """The 72 sentences of chapter 4, with [CLS] in front."""
    return encode(ch04_leak.SENTENCES)


# --- The model ------------------------------------------------------------------------------------


class Bert(nn.Module):
    """An encoder over token and position embeddings: one vector for each token."""

    def __init__(self, vocab_size, max_length, d_model=32, num_heads=4, num_layers=2):
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, d_model)
        self.positions = nn.Embedding(max_length, d_model)
        self.norm = minimal.LayerNorm(d_model)
        sizes = d_model, num_heads, 4 * d_model, 0.0  # no dropout
        self.layers = nn.ModuleList(minimal.EncoderLayer(*sizes) for _ in range(num_layers))

    def forward(self, ids, mask):
        """(B, L) -> (B, L, D)."""
        x = self.norm(self.tokens(ids) + self.positions.weight[: ids.shape[1]])  # B L D
        for layer in self.layers:
            x = layer(x, mask)
        return x  # B L D


class MaskedLM(nn.Module):
    """A Bert and the head that predicts tokens; its last matrix is the embedding matrix."""

    def __init__(self, bert, std=0.02):
        super().__init__()
        vocab_size, d_model = bert.tokens.weight.shape
        self.bert, self.bias = bert, nn.Parameter(torch.zeros(vocab_size))
        linear, norm = nn.Linear(d_model, d_model), minimal.LayerNorm(d_model)
        self.head = nn.Sequential(linear, nn.ReLU(), norm)
        for weight in self.parameters():
            if weight.dim() == 2:
                nn.init.normal_(weight, std=std)

    def forward(self, ids, mask):
        """(B, L) -> (B, L, V)."""
        x = self.head(self.bert(ids, mask))  # B L D
        return x @ self.bert.tokens.weight.T + self.bias  # B L V


def masked_lm(num_layers: int = 2, std: float = 0.02) -> MaskedLM:
    """A MaskedLM for the number words, with layers of its own, initialized with this standard deviation."""
    return MaskedLM(Bert(len(WORDS), LENGTH, num_layers=num_layers), std)


def shared_masked_lm(num_layers: int = 4) -> MaskedLM:
    """A MaskedLM that runs one and the same layer num_layers times, as ALBERT does."""
    model = masked_lm(num_layers=1)
    model.bert.layers = nn.ModuleList([model.bert.layers[0]] * num_layers)
    return model


NAMES = {  # ours: the package's
    "bert.tokens": "embedding.token", "bert.positions": "embedding.position",
    "bert.norm": "embedding.norm", "bert.layers": "layers",
    "head.0": "masked_lm.dense", "head.2": "masked_lm.norm",
}  # fmt: skip


def in_package(model: MaskedLM) -> models.Bert:
    """The package's Bert with the same weights; its segment embeddings are zero."""
    bert = model.bert
    d_model, num_layers = bert.tokens.embedding_dim, len(bert.layers)
    config = models.BertConfig(
        bert.tokens.num_embeddings, d_model=d_model, d_ff=4 * d_model, num_layers=num_layers,
        num_heads=bert.layers[0].attention.num_heads, max_length=bert.positions.num_embeddings,
        activation="relu", norm_eps=1e-5, dropout=0.0, pad_id=PAD, head="masked_lm",
    )  # fmt: skip
    state = {"masked_lm.output.bias": model.bias, "masked_lm.output.weight": bert.tokens.weight}
    state["embedding.segment.weight"] = torch.zeros(config.num_segments, d_model)
    for name, value in model.state_dict().items():
        ours = next((ours for ours in NAMES if name.startswith(f"{ours}.")), None)
        if ours is not None:
            state[NAMES[ours] + name.removeprefix(ours)] = value
    answer = models.Bert(config)
    answer.load_state_dict(state)
    return answer.eval()


# --- Training -------------------------------------------------------------------------------------


def train(model, loss_of, steps: int, lr: float) -> float:
    """Adam, with a learning rate that rises for 50 steps and then falls to 0; returns the last loss."""
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1, (step + 1) / 50) * (1 - step / steps)
    )
    for _ in range(steps):
        loss = loss_of()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return loss.item()


def masked_loss(model, rows: Int[Tensor, "B L"], generator: torch.Generator, masked=mask_tokens):
    """Cross-entropy of the chosen tokens of each sentence, by BERT's 15 % and 80/10/10."""
    known = {"mask_id": MASK, "vocab_size": len(WORDS)}
    inputs, labels = masked(rows, rows <= CLS, generator, **known)
    logits = model(inputs, minimal.padding_mask(rows))
    return functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def pretrain(
    numbers: list[int], seed: int, steps: int = 2000, masked=mask_tokens, build=masked_lm
) -> MaskedLM:
    """A MaskedLM trained on these numbers in both languages, 64 in each step."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = build()
    rows = encode([words_of(number) for number in numbers])

    def loss():
        batch = rows[torch.randint(len(rows), (64,), generator=generator)]
        return masked_loss(model, batch, generator, masked)

    train(model, loss, steps, lr=5e-3)
    return model


def mask_by_shares(ids, special, generator, *, mask_id, vocab_size, shares=(0.8, 0.1)):
    """`mask_tokens` with other shares than 80 % for [MASK] and 10 % for a random token."""
    _, labels = mask_tokens(ids, special, generator, mask_id=mask_id, vocab_size=vocab_size)
    draw = torch.rand(ids.shape, generator=generator)  # B L
    random_ids = torch.randint(vocab_size, ids.shape, generator=generator)  # B L
    chosen, (to_mask, to_random) = labels != IGNORE, shares
    inputs = ids.masked_fill(chosen & (draw < to_mask), mask_id)
    return torch.where(chosen & (draw >= 1 - to_random), random_ids, inputs), labels


@torch.no_grad()
def restored(model: MaskedLM, numbers: list[int], what: str) -> float:
    """How often the right token has the largest logit at a masked, unchanged or replaced position."""
    rows = encode([words_of(number) for number in numbers])
    others = torch.randint(
        CLS + 2, len(WORDS), rows.shape, generator=torch.Generator().manual_seed(7)
    )
    right, count = 0, 0
    for i in range(1, LENGTH):
        inputs = rows.clone()
        inputs[:, i] = {
            "masked": torch.tensor(MASK),
            "unchanged": rows[:, i],
            "replaced": others[:, i],
        }[what]
        logits = model(inputs, minimal.padding_mask(rows))[:, i]
        counted = (rows[:, i] != PAD) & ((what != "replaced") | (others[:, i] != rows[:, i]))
        right += int((logits.argmax(-1) == rows[:, i])[counted].sum())
        count += int(counted.sum())
    return right / count


# --- A task with labels: is the translation right? ------------------------------------------------


def split_numbers(held_out: int = 200) -> tuple[list[int], list[int]]:
    """The numbers to learn from and those to test on, the same in every run."""
    order = (torch.randperm(len(NUMBERS), generator=torch.Generator().manual_seed(0)) + 1).tolist()
    return order[held_out:], order[:held_out]


def labeled_pairs(numbers: list[int], count: int, generator: torch.Generator):
    """Translations, of which every second one is of another number: token IDs (N, L), labels (N)."""
    texts = []
    for index in range(count):
        first, second = torch.randperm(len(numbers), generator=generator)[:2].tolist()
        texts.append(words_of(numbers[first], numbers[second] if index % 2 else None))
    return encode(texts), torch.arange(count) % 2


class Classifier(nn.Module):
    """A Bert and the head for a whole text: a layer and a tanh on the vector of [CLS], then the logits."""

    def __init__(self, bert, num_labels=2):
        super().__init__()
        d_model = bert.tokens.embedding_dim
        self.bert, self.pooler = bert, nn.Linear(d_model, d_model)
        self.output = nn.Linear(d_model, num_labels)

    def forward(self, ids):
        """Logits of the labels, (B, C)."""
        vector = self.bert(ids, minimal.padding_mask(ids))[:, 0]  # B D: [CLS] comes first
        return self.output(torch.tanh(self.pooler(vector)))  # B C


def fine_tune(bert: Bert, ids, labels, seed: int, steps: int = 300) -> Classifier:
    """Train all weights, those of the new head and those of bert, on labeled texts."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = Classifier(bert)

    def loss():
        batch = torch.randint(len(ids), (64,), generator=generator)
        return functional.cross_entropy(model(ids[batch]), labels[batch])

    train(model, loss, steps, lr=2e-3)
    return model


@torch.no_grad()
def accuracy(model: Classifier, ids, labels) -> float:
    """The fraction of texts with the right label."""
    return (model(ids).argmax(-1) == labels).float().mean().item()
