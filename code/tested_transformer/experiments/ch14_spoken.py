"""The experiment on sound of chapter 14: a small Whisper writes down digits of a synthesized voice.

A speaker says every digit once; a recording is one to four of these words with gaps between them, at a
loudness and with background noise of its own. Speakers of the test are never those of the training.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from ..bounds import PositiveInt, Seed
from ..data.log_mel import HOP, log_mel
from ..errors import argument_error, shape_of
from ..models.whisper import Whisper, WhisperConfig
from ..shapes import checked
from .ch14_synthesizer import RATE, new_speaker, spoken_digit

LENGTH = 240 * HOP  # samples of a recording with its padding: 2.4 seconds
START, END, IGNORED = 10, 11, -100  # the tokens 0 to 9 are the digits
MOST = 4  # digits in a recording
CONFIG = WhisperConfig(
    12, num_mels=32, num_positions=120, max_length=MOST + 1, d_model=48, num_heads=3, d_ff=96,
    num_encoder_layers=2, num_decoder_layers=1,
)  # fmt: skip
SPEAKERS, EACH, BATCH, STEPS, PEAK = 100, 40, 32, 600, 3e-3
SHIPPED = Path(__file__).parents[1] / "data" / "trained" / "spoken_digits"


class Recordings(NamedTuple):
    """Log-mel spectrograms, and which digits were said: -100 after the last of them."""

    features: Float[Tensor, "N 32 240"]
    digits: Int[Tensor, "N 4"]


@checked
def recording(words: list[Tensor], rng: torch.Generator) -> Float[Tensor, " N"]:
    """Words with gaps of 20 to 80 ms, after up to 120 ms, louder or softer, over white noise."""
    gap = [int(RATE * (0.02 + 0.06 * draw)) for draw in torch.rand(len(words), generator=rng)]
    gap[0] = int(0.12 * RATE * torch.rand(1, generator=rng))
    audio = torch.cat([functional.pad(w, (n, 0)) for w, n in zip(words, gap, strict=True)])
    loudness, noise = 10 ** -torch.rand(2, generator=rng)  # 0.1 to 1
    return loudness * audio + 0.004 * noise * torch.randn(len(audio), generator=rng)


@checked
def sentences(
    seed: Seed, speakers: PositiveInt, each: PositiveInt, most: PositiveInt = MOST
) -> Iterator[tuple[Tensor, Tensor]]:
    """So much audio of each of so many speakers, and which digits it says: 1 to `most`, each number as often."""
    rng = torch.Generator().manual_seed(seed)
    for _ in range(speakers):
        speaker = new_speaker(rng)
        words = [spoken_digit(digit, speaker, rng) for digit in range(10)]
        for row in range(each):
            digits = torch.randint(10, (1 + row % most,), generator=rng)
            yield recording([words[digit] for digit in digits], rng), digits


def features_of(audio: Float[Tensor, " N"]) -> Float[Tensor, "32 240"]:
    """The log-mel spectrogram of a recording, with silence up to its full length.

    Raises: ValueError for a longer one, which would be trimmed.
    """
    if len(audio) > LENGTH:
        raise argument_error(ValueError, "audio", shape_of(audio), f"at most {LENGTH} samples")
    return log_mel(audio, RATE, num_mels=CONFIG.num_mels, length=LENGTH)


@checked
def recordings(
    seed: Seed, speakers: PositiveInt = SPEAKERS, each: PositiveInt = EACH, most: PositiveInt = MOST
) -> Recordings:
    """The same as arrays, for training or test."""
    features, digits = [], torch.full((speakers * each, MOST), IGNORED)
    for row, (audio, said) in enumerate(sentences(seed, speakers, each, most)):
        features.append(features_of(audio))
        digits[row, : len(said)] = said
    return Recordings(torch.stack(features), digits)


def shuffled(features: Float[Tensor, "N M F"], rng: torch.Generator) -> Float[Tensor, "N M F"]:
    """The frames of each recording in an order of its own."""
    order = torch.rand(len(features), features.shape[2], generator=rng).argsort(1)
    return features.gather(2, order[:, None].expand_as(features))


@checked
def train_listener(
    model: Whisper,
    data: Recordings,
    seed: Seed,
    *,
    steps: PositiveInt = STEPS,
    shuffle: bool = False,
) -> list[float]:
    """Adam on batches of 32 recordings; the losses in nats per token. The rate rises and falls by a cosine."""
    rng = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.train().parameters(), lr=PEAK)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, PEAK, total_steps=steps)
    losses = []
    for _ in range(steps):
        rows = torch.randint(len(data.digits), (BATCH,), generator=rng)
        features, digits = data.features[rows], data.digits[rows]
        features = shuffled(features, rng) if shuffle else features
        loss = functional.cross_entropy(model(features, inputs(digits)).mT, targets(digits))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    model.eval()
    return losses


def inputs(digits: Int[Tensor, "N 4"]) -> Int[Tensor, "N 5"]:
    """What the decoder reads: START and the digits; after the last one something that nobody reads."""
    return functional.pad(digits.masked_fill(digits == IGNORED, END), (1, 0), value=START)


def targets(digits: Int[Tensor, "N 4"]) -> Int[Tensor, "N 5"]:
    """What it is to predict: the digits, then END, then nothing."""
    answer = functional.pad(digits, (0, 1), value=IGNORED)
    counts = (digits != IGNORED).sum(1, keepdim=True)
    return answer.scatter(1, counts, END)


@torch.no_grad()
def written(model: Whisper, features: Float[Tensor, "N M F"]) -> Int[Tensor, "N 5"]:
    """Greedy decoding: the most probable token, five times; what comes after END is END too."""
    memory = model.encode(features)
    ids = torch.full((len(features), 1), START)
    for _ in range(MOST + 1):
        best = model.decode(ids, memory)[:, -1].argmax(-1, keepdim=True)
        ids = torch.cat([ids, best.masked_fill(ids[:, -1:] == END, END)], 1)
    return ids[:, 1:]


def right(found: Int[Tensor, "N 5"], digits: Int[Tensor, "N 4"]) -> Tensor:
    """Which recordings were written down without a mistake."""
    wanted = functional.pad(digits.masked_fill(digits == IGNORED, END), (0, 1), value=END)
    return (found == wanted).all(1)


# --- The trained model, and a linear one ----------------------------------------------------------


def new_listener(seed: int, *, positions: bool = True) -> Whisper:
    """An untrained model; without positions its encoder states do not know when they were."""
    torch.manual_seed(seed)
    model = Whisper(CONFIG)
    if not positions:
        model.stem.positions.zero_()
    return model


def save_listener(model: Whisper) -> None:
    """Into the package, in half precision; the sinusoids and the tied output layer are left out."""
    SHIPPED.mkdir(parents=True, exist_ok=True)
    weights = {name: weight.half() for name, weight in model.named_parameters()}
    save_file(weights, SHIPPED / "model.safetensors")


def load_listener() -> Whisper:
    """The trained model that comes with the package, in eval mode."""
    model = Whisper(CONFIG)
    weights = {name: w.float() for name, w in load_file(SHIPPED / "model.safetensors").items()}
    names = model.load_state_dict(weights, strict=False)
    if names.unexpected_keys or set(names.missing_keys) - {"stem.positions", "output.weight"}:
        raise ValueError(f"{SHIPPED}: {names}")
    return model.eval()


def linear_accuracy(train: Recordings, test: Recordings) -> float:
    """Of logistic regression on a recording's mean, over its frames, of each mel band; one digit each."""
    means = [data.features.mean(2).double() for data in (train, test)]  # N 32
    center, spread = means[0].mean(0), means[0].std(0)
    inputs, asked = ((each - center) / spread for each in means)
    layer = nn.Linear(inputs.shape[1], 10, dtype=torch.float64)
    optimizer = torch.optim.LBFGS(layer.parameters(), max_iter=500, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = functional.cross_entropy(layer(inputs), train.digits[:, 0])
        loss = loss + 1e-4 * layer.weight.square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    return float((layer(asked).argmax(1) == test.digits[:, 0]).double().mean())
