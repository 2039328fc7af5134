"""Calls that look malformed and are served, each with the reason, and records that nobody calls."""

LENIENT: dict[str, str] = {}

# The tools of those who write Specs: what they are given is checked by the tests of every Spec.
UNASKED = ("specs.spec", "specs.mistakes", "specs.compare")

# Results and descriptions: the package makes them and hands them out.
RECORDS = set(
    "AttentionWeights Case Check Counted Counts DeepNormConstants Evaluation Generated History Hunt "
    "HuntVerdict Look Marks NumberPicture SettingsPicture Parts MaskReport Mistake Mutant Pair Partial PartMarks Picture Problem "
    "ScoreStatistics Source Spec Split Submission Task Verdict Written Assignment Device".split()
)
