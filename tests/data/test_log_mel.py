"""Whisper's front end: equal to transformers' feature extractor, as far as its own two ways agree."""

import numpy as np
import pytest
import torch

from tested_transformer.data.log_mel import (
    audio_frames,
    log_mel,
    mel_filters,
    pad_or_trim,
    power_spectrum,
)

RATE, LENGTH = 16_000, 480_000
EPS = float(np.finfo(np.float32).eps)


def sounds():
    rng = np.random.default_rng(0)
    seconds = np.arange(LENGTH) / RATE
    chirp = 0.5 * np.sin(2 * np.pi * (200 + 100 * seconds) * seconds)
    click = np.zeros(LENGTH)
    click[-1] = 1.0
    return {
        "noise of three seconds": 0.1 * rng.normal(size=3 * RATE),
        "thirty seconds of a rising tone": chirp,
        "a tone of one second": 0.8 * np.sin(2 * np.pi * 440 * seconds[:RATE]),
        "31 seconds of noise": rng.normal(size=31 * RATE),
        "noise that is hardly there": 1e-6 * rng.normal(size=5 * RATE),
        "a click at the very end": click,
        "one sample": np.ones(1),
    }


def both_ways(hf, audio, **options):
    """By their NumPy path and by their torch path."""
    extractor = hf.WhisperFeatureExtractor(**options)
    audio = audio.astype(np.float32)
    samples = extractor.n_samples
    padded = np.pad(audio[:samples], (0, max(0, samples - len(audio))))
    by_numpy = extractor._np_extract_fbank_features(padded[None], "cpu")[0]
    by_torch = extractor(audio, sampling_rate=RATE)["input_features"][0]
    return by_numpy.astype(np.float64), by_torch.astype(np.float64)


@pytest.mark.slow
@pytest.mark.parametrize("name", sounds())
@pytest.mark.parametrize("num_mels", [80, 128])
def test_the_same_as_the_feature_extractor(name, num_mels):
    """Within the difference of its two ways, or what rounding to float32 does at the end of theirs.

    That is three roundings, of log10, of the maximum - 8 and of the sum with 4, all at most 10, before a
    division by 4; ours in float32 has one.
    """
    hf = pytest.importorskip("transformers")
    audio = sounds()[name]
    by_numpy, by_torch = both_ways(hf, audio, feature_size=num_mels)
    apart = np.abs(by_numpy - by_torch).max()
    rounding = EPS / 2 * 10 / 4
    given = torch.from_numpy(audio.astype(np.float32))
    for audio, rounds in ((given.double(), 3), (given, 4)):
        found = log_mel(audio, RATE, num_mels=num_mels)
        assert found.shape == (num_mels, 3000)
        assert found.dtype == audio.dtype
        assert np.abs(found.numpy() - by_numpy).max() <= max(apart, rounds * rounding)
        assert np.abs(found.numpy() - by_torch).max() <= apart + rounds * rounding


def test_mel_filters():
    """Within one rounding of the numbers in Hz, up to 8000, that both begin with."""
    hf = pytest.importorskip("transformers")
    for count in (80, 128, 5):
        theirs = hf.audio_utils.mel_filter_bank(201, count, 0.0, 8000.0, RATE, "slaney", "slaney").T
        found = mel_filters(count).numpy()
        assert found.shape == (count, 201)
        narrowest = 8000 / 2 / (count + 1)  # Hz of the least half width, up to a factor of 12
        far = 12 * 8000 * np.finfo(float).eps / narrowest * theirs.max()
        assert np.abs(found - theirs).max() <= far


def test_bands_have_an_area_of_one():
    """Of triangles that are wide beside 40 Hz; each begins where the one before has its peak."""
    filters = mel_filters(8)
    torch.testing.assert_close(40 * filters.sum(-1), torch.ones(8).double(), atol=0.01, rtol=0)
    assert ((filters > 0).sum(0) <= 2).all()


def test_silence_is_not_zero():
    silent = log_mel(torch.zeros(RATE), RATE)
    assert silent.shape == (80, 3000)
    assert torch.equal(silent, torch.full((80, 3000), -1.5))
    audio = torch.sin(torch.arange(2 * RATE).double() * 0.1)
    padded = log_mel(audio, RATE)
    assert torch.equal(padded, log_mel(torch.cat([audio, torch.zeros(RATE).double()]), RATE))
    floor = padded.max() - 2  # 8 in the logarithm
    torch.testing.assert_close(padded[:, 210:], floor.expand(80, 2790), rtol=0, atol=1e-15)
    assert float(floor) != 0.0


def test_frames_are_those_of_stft():
    audio = torch.randn(1000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    window = torch.hann_window(400, dtype=torch.float64)
    theirs = torch.stft(audio, 400, 160, window=window, return_complex=True).abs().square().T
    found = power_spectrum(audio)
    torch.testing.assert_close(found, theirs, rtol=1e-12, atol=1e-12 * float(theirs.max()))
    frames = audio_frames(audio)
    assert frames.shape == (7, 400)
    assert torch.equal(frames[0, 200:], audio[:200])
    assert torch.equal(frames[0, :200], audio[1:201].flip(0))
    assert torch.equal(frames[2], audio[120:520])


@pytest.mark.parametrize(
    ("count", "kept"), [(3, [1.0, 2.0, 3.0, 0.0]), (4, [1, 2, 3, 4]), (6, [1, 2, 3, 4]), (0, [0] * 4)]
)  # fmt: skip
def test_pad_or_trim(count, kept):
    audio = torch.arange(1.0, count + 1)
    assert torch.equal(pad_or_trim(audio, 4), torch.tensor(kept).float())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_widened(dtype):
    audio = torch.sin(torch.arange(900) * 0.3).to(dtype)
    assert torch.equal(log_mel(audio, RATE, length=800), log_mel(audio.float(), RATE, length=800))


@pytest.mark.plain_types
@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: log_mel(torch.zeros(9), 44_100), ValueError, "rate: expected one of 16000, got 44100|rate: expected 16000, got 44100"),
        (lambda: log_mel(torch.zeros(9), 16_000.0), ValueError, "rate: expected 16000, got 16000.0"),
        (lambda: log_mel(torch.zeros(2, 9), RATE), ValueError, r"audio: expected 1 axis \(N,\), got shape \(2, 9\)"),
        (lambda: log_mel(torch.zeros(0), RATE), ValueError, r"audio: expected N of at least 1"),
        (lambda: log_mel(torch.zeros(9, dtype=torch.int16), RATE), TypeError, "audio: expected a floating point dtype, got torch.int16"),
        (lambda: log_mel(np.zeros(9), RATE), TypeError, "audio: expected a torch.Tensor, got ndarray"),
        (lambda: log_mel(torch.zeros(9), RATE, length=200), ValueError, "length: expected at least 201, got 200"),
        (lambda: log_mel(torch.zeros(9), RATE, num_mels=0), ValueError, "num_mels: expected at least 1, got 0"),
        (lambda: audio_frames(torch.zeros(200)), ValueError, r"audio: expected more than 200 samples, for the reflection, got shape \(200,\)"),
    ],
)  # fmt: skip
def test_wrong_audio(call, error, message):
    with pytest.raises(error, match=message):
        call()
