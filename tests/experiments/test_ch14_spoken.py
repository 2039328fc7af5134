"""The experiment on sound of chapter 14: spoken digits."""

import json
from pathlib import Path

import pytest
import torch

from tested_transformer.experiments import ch14_synthesizer as synthesizer
from tested_transformer.experiments.ch14_spoken import (
    CONFIG,
    END,
    IGNORED,
    LENGTH,
    SHIPPED,
    START,
    features_of,
    inputs,
    linear_accuracy,
    load_listener,
    new_listener,
    recordings,
    right,
    save_listener,
    sentences,
    shuffled,
    targets,
    train_listener,
    written,
)
from tested_transformer.experiments.ch14_synthesizer import RATE, SOUNDS, Speaker

SLOWEST = Speaker(pitch=90.0, tract=0.85, speed=1.0, breath=0.02)
RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "spoken_digits.json"


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


# --- The voice ------------------------------------------------------------------------------------


def test_every_sound_is_used_and_every_word_has_its_sounds():
    used = {name for word in synthesizer.PRONOUNCED for name in word.split()}
    assert used <= SOUNDS.keys()
    assert len(synthesizer.PRONOUNCED) == len(synthesizer.WORDS) == 10


@pytest.mark.parametrize("digit", range(10))
def test_a_word(digit):
    """It is drawn by the generator alone, is neither silent nor too loud, and lasts as its sounds do."""
    first, again = (synthesizer.spoken_digit(digit, SLOWEST, generator()) for _ in range(2))
    assert torch.equal(first, again)
    assert not torch.equal(first, synthesizer.spoken_digit(digit, SLOWEST, generator(1)))
    assert 0.05 < float(first.abs().max()) < 0.5
    sounds = [SOUNDS[name].milliseconds for name in synthesizer.PRONOUNCED[digit].split()]
    assert 0.9 * sum(sounds) - 1 <= 1000 * len(first) / RATE <= 1.1 * sum(sounds)


def test_a_vowel_is_loud_at_its_pitch_and_its_formants():
    """Harmonics of 125 Hz; of those between 1,000 and 3,000 Hz the loudest is next to a formant."""
    formants = torch.tensor([280.0, 2250.0, 2950.0])[:, None].expand(3, RATE)
    sound = synthesizer.voiced(formants, torch.full((RATE,), 125.0))
    power = torch.fft.rfft(sound).abs().square()  # one bin for each Hz
    harmonics = power[125:4001:125]
    assert float(harmonics.sum() / power.sum()) > 0.95
    assert 125 * (1 + int(harmonics[:2].argmax())) in (250, 375)
    assert 125 * (8 + int(harmonics[7:23].argmax())) in (2250, 2875, 3000)


def test_a_glide_is_a_mean():
    step = torch.cat([torch.zeros(1, 800), torch.ones(1, 800)], 1)
    found = synthesizer.glide(step, 20)  # 320 samples
    assert torch.equal(found[:, :600], step[:, :600])
    torch.testing.assert_close(found[:, 1000:], step[:, 1000:])
    assert (found.diff() >= -1e-6).all()
    assert 0.45 < float(found[0, 800]) < 0.55


def test_noise_lies_around_its_center():
    noise = synthesizer.noise_around(4000.0, RATE, generator())
    assert abs(float(noise.square().mean()) - 1) < 1e-3
    power = torch.fft.rfft(noise).abs().square()
    assert float(power[2800:5700].sum() / power.sum()) > 0.95  # half an octave on both sides


# --- Recordings -----------------------------------------------------------------------------------


def test_recordings():
    data = recordings(3, speakers=2, each=8)
    assert data.features.shape == (16, CONFIG.num_mels, 2 * CONFIG.num_positions)
    assert (data.digits >= 0).sum(1).tolist() == [1, 2, 3, 4] * 4
    assert all(map(torch.equal, data, recordings(3, speakers=2, each=8)))
    assert not torch.equal(data.features, recordings(4, speakers=2, each=8).features)
    assert (recordings(3, 1, 3, 1).digits >= 0).sum(1).tolist() == [1, 1, 1]


def test_every_recording_fits():
    """Or there is an error: nothing is trimmed."""
    assert all(len(audio) < LENGTH for audio, _ in sentences(0, speakers=2, each=4))
    assert features_of(torch.ones(LENGTH)).shape == (CONFIG.num_mels, 2 * CONFIG.num_positions)
    with pytest.raises(ValueError, match="audio: expected at most 38400 samples"):
        features_of(torch.ones(LENGTH + 1))


def test_what_the_decoder_reads_and_predicts():
    digits = torch.tensor([[7, 2, IGNORED, IGNORED], [1, 2, 3, 4]])
    assert inputs(digits).tolist() == [[START, 7, 2, END, END], [START, 1, 2, 3, 4]]
    assert targets(digits).tolist() == [[7, 2, END, IGNORED, IGNORED], [1, 2, 3, 4, END]]
    said = torch.tensor([[7, 2, END, END, END], [1, 2, 3, 4, END]])
    assert right(said, digits).tolist() == [True, True]
    assert right(said.flip(0), digits).tolist() == [False, False]


def test_shuffled_frames():
    """Each recording has an order of its own, and all bands of a frame stay together."""
    features = torch.arange(24.0).view(1, 2, 12).repeat(2, 1, 1)
    found = shuffled(features, generator())
    assert torch.equal(found[:, 1] - found[:, 0], torch.full((2, 12), 12.0))
    assert torch.equal(found.sort(2).values, features)
    assert not torch.equal(found[0], found[1])


# --- Training, and what came of it ----------------------------------------------------------------


def test_a_short_training():
    data = recordings(0, speakers=2, each=8)
    runs = [train_listener(new_listener(5), data, 5, steps=30) for _ in range(2)]
    assert runs[0] == runs[1]
    assert runs[0][-1] < runs[0][0] - 0.3


def test_without_positions():
    assert not new_listener(0, positions=False).stem.positions.any()
    assert new_listener(0).stem.positions.any()


def test_the_model_that_comes_with_the_package():
    """As good as the stored row says, on some of the same recordings; small."""
    assert sum(path.stat().st_size for path in SHIPPED.iterdir()) < 200_000
    data = recordings(1000, speakers=3, each=12)
    assert right(written(load_listener(), data.features), data.digits).float().mean() > 0.9


def test_saved_and_loaded(tmp_path, monkeypatch):
    monkeypatch.setattr("tested_transformer.experiments.ch14_spoken.SHIPPED", tmp_path / "new")
    model = new_listener(2).half().float()
    save_listener(model)
    again = load_listener().state_dict()
    for name, weight in model.state_dict().items():
        if name != "stem.positions":
            assert torch.equal(again[name], weight), name


def test_the_linear_baseline():
    train, test = recordings(0, speakers=4, each=10, most=1), recordings(9, 2, 10, 1)
    assert 0.2 < linear_accuracy(train, test) <= 1.0


def test_the_stored_runs_are_whole():
    rows = json.loads(RESULTS.read_text("utf-8"))["rows"]
    variants = {"Whisper", "frames shuffled", "no positions", "mean log-mel, linear"}
    assert {(row["variant"], row["seed"]) for row in rows} == {
        (v, s) for v in variants for s in range(3)
    }
    for row in rows:
        if "right" in row:
            assert row["right"] == pytest.approx(sum(row["by_count"]) / 4)
