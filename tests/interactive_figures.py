"""The figures with settings as their chapters make them, for the tests of data and of pages."""

import functools

import torch

from tested_transformer.data import BOS, EOS, PAD
from tested_transformer.experiments.ch10_number_models import load_number_model
from tested_transformer.experiments.ch11_spoken_numbers import load_spoken_model
from tested_transformer.plotting.interactive import mask_switches, sampling_sliders, scale_slider

MORPHEMES = "vier und zwanzig drei hundert fünf acht zehn zwei hundert".split()
READ = ("vier", "und", "zwanzig", "end", "pad", "pad")


@functools.cache
def scale_inputs():
    """Queries and keys of the untrained layer of chapter 3, in float64."""
    rng = torch.Generator().manual_seed(0)
    table = {word: torch.randn(512, generator=rng) for word in dict.fromkeys(MORPHEMES)}
    x = torch.stack([table[word] for word in MORPHEMES]).double()
    w_query, w_key = (torch.randn(2, 512, 512, generator=rng) / 512**0.5).double()
    return x[:9] @ w_query, x @ w_key


@functools.cache
def mask_inputs():
    """Scores of one head of the translator's first layer, for a row with two places of padding."""
    model, german, _ = load_number_model()
    row = torch.tensor([[*german.encode(READ[:3]), EOS, PAD, PAD]])
    with torch.no_grad():
        model.double()
        embedded = model.embed(model.source_embedding, row, row != PAD)
        _, weights = model.encoder(embedded, return_weights=True)
    return weights[0][0, 1].log()


@functools.cache
def sampling_inputs():
    """The scores of the first word of a number, and the words."""
    model, words = load_spoken_model()
    with torch.no_grad():
        return model.double()(torch.tensor([[BOS]]))[0, -1], words.words


def scale(noise=0.0):
    query, key = scale_inputs()
    return scale_slider(query * (1 + noise), key, MORPHEMES[:9], MORPHEMES, start=(6, 3))


def masks(noise=0.0):
    return mask_switches(mask_inputs() * (1 + noise), READ, length=4)


def sampling(noise=0.0):
    logits, words = sampling_inputs()
    return sampling_sliders(logits * (1 + noise), words, start=(4, 10, 5))


FIGURES = {"deeper/03_saturation": scale, "deeper/04_more_masks": masks, "11_generating": sampling}
