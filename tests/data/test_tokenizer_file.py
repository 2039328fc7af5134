"""tokenizer.json: what transformers writes is read, as ids and masks that a model takes."""

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from tested_transformer.data.byte_bpe import ByteBPE
from tested_transformer.data.tokenizer_file import FILE, encode_batch, load_tokenizer
from tested_transformer.models.language_model import LanguageModel, LanguageModelConfig

TEXTS = ["low and lower", "the lowest of all the towers", "", "newer \n 中国"]
PAIRS = [*zip(TEXTS, reversed(TEXTS), strict=True)]
BPE = ByteBPE.train(TEXTS * 3, size=280)


@pytest.fixture
def theirs():
    """A byte-level tokenizer with a special token before and after each text."""
    ends = {"<s>": BPE.vocab_size, "</s>": BPE.vocab_size + 1}
    tokenizer = Tokenizer(models.BPE(vocab=BPE.ids, merges=BPE.merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(ends))
    tokenizer.post_processor = TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> $B:1 </s>:1", special_tokens=list(ends.items())
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=BPE.vocabulary[0])


@pytest.fixture
def folder(theirs, tmp_path):
    theirs.save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("texts", [TEXTS, PAIRS, TEXTS[:1]], ids=["texts", "pairs", "one"])
def test_a_batch_is_that_of_transformers(theirs, folder, texts, side):
    theirs.padding_side = side
    wanted = theirs(texts, padding=True, return_tensors="pt", return_token_type_ids=True)
    for tokenizer in (load_tokenizer(folder), load_tokenizer(str(folder))):
        batch = encode_batch(tokenizer, texts, padding_side=side)
        for name, tensor in batch._asdict().items():
            assert torch.equal(tensor, wanted[name]), name


def test_ids_and_text_of_one(theirs, folder):
    tokenizer = load_tokenizer(folder)
    for text in TEXTS:
        ids = tokenizer.encode(text).ids
        assert ids == [BPE.vocab_size, *BPE.encode(text), BPE.vocab_size + 1]
        assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("side", ["left", "right"])
def test_the_mask_hides_padding_from_a_model(folder, side):
    """A text in a batch has the logits that it has alone."""
    torch.manual_seed(0)
    config = LanguageModelConfig(
        vocab_size=BPE.vocab_size + 2, d_model=8, num_heads=2, num_layers=2
    )
    model, tokenizer = LanguageModel(config).double().eval(), load_tokenizer(folder)
    batch = encode_batch(tokenizer, TEXTS, padding_side=side)
    together = model(batch.input_ids, attention_mask=batch.attention_mask)
    for row, text in enumerate(TEXTS):
        alone = model(encode_batch(tokenizer, [text]).input_ids)[0]
        torch.testing.assert_close(together[row][batch.attention_mask[row].bool()], alone)


def test_settings_of_the_file_neither_cut_nor_pad(theirs, tmp_path):
    tokenizer = theirs.backend_tokenizer
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=40)
    tokenizer.save(str(tmp_path / FILE))
    ids = load_tokenizer(tmp_path).encode(TEXTS[1]).ids
    assert ids[1:-1] == BPE.encode(TEXTS[1])


@pytest.mark.parametrize("kept", [0, 1, 0.3, 0.999])
def test_a_file_that_is_cut_short(folder, kept):
    whole = (folder / FILE).read_bytes()
    (folder / FILE).write_bytes(whole[: kept if kept in (0, 1) else int(kept * len(whole))])
    with pytest.raises(
        ValueError, match=r"tokenizer.json: expected a whole tokenizer, got a file w"
    ):
        load_tokenizer(folder)


@pytest.mark.parametrize("text", [b'{"model_type": "gpt2"}', b"[1, 2]", b"\xff\xfe", b"a b\nc d"])
def test_a_file_of_something_else(tmp_path, text):
    (tmp_path / FILE).write_bytes(text)
    with pytest.raises(
        ValueError, match=r"tokenizer.json: expected a whole tokenizer, got a file w"
    ):
        load_tokenizer(tmp_path)


def test_bad_arguments(folder, tmp_path):
    (tmp_path / "empty").mkdir()
    for place in (tmp_path / "empty", tmp_path / "nowhere"):
        with pytest.raises(FileNotFoundError, match="folder: expected a tokenizer.json in it, got"):
            load_tokenizer(place)
    with pytest.raises(TypeError, match="folder: expected a string or a Path, got int"):
        load_tokenizer(3)
    tokenizer = load_tokenizer(folder)
    for texts, error, message in [
        ("low", TypeError, "texts: expected a sequence"),
        ([], ValueError, "texts: expected at least one text"),
        (["low", 3], TypeError, r"texts\[1\]: expected a string or a tuple, got int"),
        (["\ud800"], ValueError, r"texts\[0\]: expected text without lone surrogates"),
    ]:
        with pytest.raises(error, match=message):
            encode_batch(tokenizer, texts)
    with pytest.raises(TypeError, match="tokenizer: expected a Tokenizer, got ByteBPE"):
        encode_batch(BPE, TEXTS)
    with pytest.raises(ValueError, match='padding_side: expected "left" or "right", got'):
        encode_batch(tokenizer, TEXTS, padding_side="both")
