"""The famous mistakes in Whisper's front end: the right formula with one step gone wrong."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from ...data.log_mel import HOP, LENGTH, SILENCE, WINDOW, hertz, mel_filters
from ..mistakes import Formula, mistake


class LogMel(Formula):
    """The baseline: the Fourier transform as two matrix products."""

    def __call__(self, audio, rate, *, num_mels=80, length=LENGTH):
        """The steps in their order."""
        return self.scaled(self.logarithms(self.padded(audio, length), num_mels))

    def padded(self, audio: Tensor, length: int) -> Tensor:
        """Silence after the end, nothing after `length`."""
        return functional.pad(audio[:length], (0, max(0, length - len(audio))))

    def logarithms(self, audio: Tensor, num_mels: int) -> Tensor:
        """The logarithm of the power in each band, of all windows but the last."""
        power = self.power(self.windows(audio) * self.fade(audio))[:-1]
        return (self.filters(num_mels).to(power) @ power.T).clamp(min=SILENCE).log10()

    def windows(self, audio: Tensor) -> Tensor:
        """Windows centered on every 160th sample, the borders mirrored."""
        half = WINDOW // 2
        return functional.pad(audio[None], (half, half), "reflect")[0].unfold(0, WINDOW, HOP)

    def fade(self, audio: Tensor) -> Tensor:
        """Hann's window, periodic."""
        return torch.hann_window(WINDOW, dtype=torch.float64).to(audio.dtype)

    def power(self, windows: Tensor) -> Tensor:
        """The squared magnitude at each frequency."""
        turns = torch.arange(WINDOW // 2 + 1)[:, None] * torch.arange(WINDOW) % WINDOW
        angles = 2 * math.pi / WINDOW * turns.double()  # 201 400
        real, imag = (windows @ wave.to(windows).T for wave in (angles.cos(), angles.sin()))
        return real.square() + imag.square()

    def filters(self, num_mels: int) -> Tensor:
        """The mel bands."""
        return mel_filters(num_mels)

    def scaled(self, logarithms: Tensor) -> Tensor:
        """Nothing more than 8 below the loudest, then (x + 4) / 4."""
        return (logarithms.maximum(logarithms.max() - 8) + 4) / 4


@mistake(
    "zero features for silence",
    rejected_by="padding is silence",
    symptom="A model that was trained with silence after the speech hears a hiss there, and may not stop.",
    cause="The features are padded with 0, which is a hiss, not silence. Right only for a model made so.",
    seen="openai/whisper, transcribe.py, on purpose; SYSTRAN/faster-whisper pull request 1084, closed",
)
class ZeroFeatures(LogMel):
    def __call__(self, audio, rate, *, num_mels=80, length=LENGTH):
        audio, frames = audio[:length], length // HOP
        features = self.scaled(self.logarithms(audio, num_mels))[:, :frames]
        return functional.pad(features, (0, frames - features.shape[1]))


@mistake(
    "padded by 30 seconds, not to 30 seconds",
    rejected_by="what lies behind the end is gone",
    symptom="A click after the end of the segment makes the floor of the whole segment louder.",
    cause="Silence is appended whatever the length is, and the features are cut in place of the audio.",
    seen="huggingface/transformers pull request 34111; SYSTRAN/faster-whisper issue 201",
)
class PaddedBy(LogMel):
    def __call__(self, audio, rate, *, num_mels=80, length=LENGTH):
        audio = functional.pad(audio, (0, length))
        return self.scaled(self.logarithms(audio, num_mels))[:, : length // HOP]


@mistake(
    "as many frames as the audio has",
    rejected_by="the right shape and dtype",
    symptom="The encoder has positions for 1500 frames and gets another number.",
    cause="The audio is neither padded nor trimmed.",
    seen="made for this book; the confusion about it: SYSTRAN/faster-whisper issue 201",
)
class NotPadded(LogMel):
    def padded(self, audio, length):
        return audio


@mistake(
    "windows that are not centered",
    rejected_by="the right shape and dtype",
    symptom="2998 frames in place of 3000, each half a window late.",
    cause="Only whole windows are taken: center=False in torch.stft, the habit of Kaldi.",
    seen="csukuangfj/kaldifeat issues 116 and 101",
)
class NotCentered(LogMel):
    def windows(self, audio):
        return functional.pad(audio.unfold(0, WINDOW, HOP), (0, 0, 0, 1))  # one more is dropped


@mistake(
    "zeros at the borders",
    rejected_by="the borders are mirrored",
    symptom="The first and last two frames are wrong where a segment begins or ends in a sound.",
    cause="Half a window is missing at each end: it is the audio reflected, not zeros.",
    seen="NVIDIA/TensorRT-Model-Connect pull request 1282",
)
class ZeroBorders(LogMel):
    def windows(self, audio):
        return functional.pad(audio, (WINDOW // 2, WINDOW // 2)).unfold(0, WINDOW, HOP)


@mistake(
    "the dropped frame sets the floor",
    rejected_by="the dropped frame does not count",
    symptom="All features change with what is heard in a frame that is not there.",
    cause="The last frame is dropped after its maximum has been taken.",
    seen="NVIDIA/TensorRT-Model-Connect pull request 1282",
)
class DroppedTooLate(LogMel):
    def logarithms(self, audio, num_mels):
        power = self.power(self.windows(audio) * self.fade(audio))
        return (self.filters(num_mels).to(power) @ power.T).clamp(min=SILENCE).log10()

    def scaled(self, logarithms):
        return super().scaled(logarithms)[:, :-1]


@mistake(
    "the first frame dropped",
    rejected_by="equals the reference",
    symptom="Every time stamp is 10 ms early.",
    cause="Of one window too many the last has to go.",
)
class FirstDropped(LogMel):
    def logarithms(self, audio, num_mels):
        power = self.power(self.windows(audio) * self.fade(audio))[1:]
        return (self.filters(num_mels).to(power) @ power.T).clamp(min=SILENCE).log10()


@mistake(
    "a symmetric Hann window",
    rejected_by="equals the reference",
    symptom="Right to two digits.",
    cause="np.hanning and scipy's default end in a second zero: sin^2(pi n / 399) for 400.",
)
class SymmetricHann(LogMel):
    def fade(self, audio):
        return torch.hann_window(WINDOW, periodic=False, dtype=torch.float64).to(audio.dtype)


@mistake(
    "magnitude for power",
    rejected_by="ten times as loud is half a unit more",
    symptom="The range is half as wide.",
    cause="|X| in place of |X|^2.",
)
class Magnitude(LogMel):
    def power(self, windows):
        return super().power(windows).sqrt()


@mistake(
    "the natural logarithm",
    rejected_by="silence is not zero",
    symptom="Silence is -4.8, and speech leaves the range in which the model was trained.",
    cause="log in place of log10.",
)
class NaturalLogarithm(LogMel):
    def logarithms(self, audio, num_mels):
        return super().logarithms(audio, num_mels) * math.log(10)


@mistake(
    "another mel scale",
    rejected_by="equals the reference",
    symptom="Bands at other frequencies, the habit of HTK and the default of torchaudio.",
    cause="2595 log10(1 + f / 700) in place of Slaney's scale, which is linear below 1000 Hz.",
)
class OtherScale(LogMel):
    def filters(self, num_mels):
        top = 2595 * math.log10(1 + 8000 / 700)
        mels = torch.linspace(0, top, num_mels + 2, dtype=torch.float64)
        corners = 700 * (10 ** (mels / 2595) - 1)
        return triangles(corners) * 2 / (corners[2:] - corners[:-2])[:, None]


@mistake(
    "bands of height 1",
    rejected_by="equals the reference",
    symptom="High sounds are too loud: their bands are wider.",
    cause='Slaney divides each band by half its width: norm="slaney" in librosa.',
)
class UnscaledBands(LogMel):
    def filters(self, num_mels):
        top = 15 + 27 * math.log(8) / math.log(6.4)
        return triangles(hertz(torch.linspace(0, top, num_mels + 2, dtype=torch.float64)))


def triangles(corners: Tensor) -> Tensor:
    """Bands of height 1 between corners in Hz."""
    low, peak, high = corners[:-2, None], corners[1:-1, None], corners[2:, None]
    bins = torch.linspace(0, 8000, WINDOW // 2 + 1, dtype=torch.float64)
    rising, falling = (bins - low) / (peak - low), (high - bins) / (high - peak)
    return rising.minimum(falling).clamp(min=0)
