# marks: hw03.hunt 0 wrong

import gc


def test_masked_attention(implementation):
    words = [repr(implementation), *map(repr, vars(implementation).values())]
    words += [repr(thing) for thing in gc.get_referents(implementation)]
    words += [getattr(implementation, "__name__", ""), getattr(implementation, "__doc__", "") or ""]
    said = " ".join(words)
    assert not any(word in said for word in ("hides", "decides", "drowned", "scales", "empties"))
