# marks: hw03.hunt 0 wrong


def test_masked_attention(implementation):
    assert implementation is None
