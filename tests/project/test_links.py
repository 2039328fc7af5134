"""Links that the build adds: chapters and API, boxes and gallery, terms and glossary."""

import json
import re
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "book" / "_ext"))
nodes = pytest.importorskip("docutils.nodes")
glossary_links = pytest.importorskip("glossary_links")
package_links = pytest.importorskip("package_links")
pitfall_links = pytest.importorskip("pitfall_links")

import generate  # noqa: E402
from chapters import chapter_paths  # noqa: E402
from tested_transformer.reader.public_names import public_names  # noqa: E402
from tested_transformer.specs import SPECS  # noqa: E402

# -------------------------------------------------------------------------------- public names


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("from tested_transformer import attention", []),
        (
            "from tested_transformer import attention\nattention(q, k, v)",
            ["functional.attention.attention"],
        ),
        (
            "from tested_transformer import attention as look\nlook(q, k, v)",
            ["functional.attention.attention"],
        ),
        (
            "from tested_transformer.functional import masks\nmasks.causal_mask(3)",
            ["functional.masks.causal_mask"],
        ),
        (
            "import tested_transformer\ntested_transformer.functional.masks.causal_mask(3)",
            ["functional.masks.causal_mask"],
        ),
        (
            "import tested_transformer.functional.masks as m\nm.causal_mask(3)",
            ["functional.masks.causal_mask"],
        ),
        ("from torch import softmax\nsoftmax(x, -1)", []),
        ("torch.softmax(x, -1)", []),
        ("entropy = 3\nentropy", []),
        ("from tested_transformer.functional.scaling import entropy\nentropy = 3", []),
        (
            "%matplotlib inline\n!ls\nfrom tested_transformer.data import pad\npad",
            ["special_tokens.pad"],
        ),
    ],
)
def test_names_that_code_uses(code, names):
    assert package_links.Names().read(code) == [f"tested_transformer.{name}" for name in names]


def test_names_are_remembered_from_cell_to_cell():
    names = package_links.Names()
    assert names.read("from tested_transformer import masked_softmax") == []
    assert names.read("masked_softmax(scores)") == [
        "tested_transformer.functional.masks.masked_softmax"
    ]


def test_inline_code_means_a_public_name_only_where_it_can_mean_nothing_else():
    full = "tested_transformer.functional.masks.masked_softmax"
    assert package_links.meant("masked_softmax", ()) == full
    assert package_links.meant("masked_softmax()", ()) == full
    assert package_links.meant("masked_softmax(scores)", ()) is None
    assert package_links.meant("softmax", ()) is None
    used = {"tested_transformer.functional.scaling.softmax"}
    assert package_links.meant("softmax", used) == "tested_transformer.functional.scaling.softmax"
    assert package_links.meant("torch.softmax", used) is None
    assert package_links.meant("LayerNorm", ()) == "tested_transformer.layers.norms.LayerNorm"
    assert package_links.meant("nn.LayerNorm", ()) is None
    assert package_links.meant("no_such_name", ()) is None


def test_a_name_imported_from_elsewhere_is_the_one_that_is_documented():
    assert (
        package_links.entry("tested_transformer", "causal_mask")
        == "tested_transformer.functional.masks.causal_mask"
    )
    assert (
        package_links.entry("tested_transformer.data.batches", "make_batch")
        == "tested_transformer.data.batches.make_batch"
    )
    assert package_links.entry("tested_transformer.functional.masks", "torch") is None
    assert package_links.entry("tested_transformer.nothing", "at_all") is None


def test_an_anchor_is_a_public_name_and_means_one_entry():
    assert (
        package_links.anchor("tested_transformer.layers.cache.DecoderCache.extend")
        == "api-DecoderCache.extend"
    )
    assert package_links.anchor("torch.softmax") is None
    anchors = [package_links.anchor(full) for full in package_links.public()]
    assert len(anchors) == len(set(anchors))


def test_every_public_name_has_an_entry():
    folders = generate.folders(public_names())
    page = "".join(generate.entries(*each) for each in folders.items())
    entries = re.findall(r"^\.\. auto(?:function|class|data):: ([\w.]+)$", page, re.MULTILINE)
    assert sorted(entries) == sorted(package_links.public())
    assert len(entries) == sum(map(len, public_names().values()))


def test_an_entry_stands_on_the_page_of_its_folder():
    full = "tested_transformer.layers.cache.DecoderCache"
    assert package_links.page_of(full) == "book/generated/api_layers"


def test_an_old_link_to_a_name_or_method_leads_to_its_line_in_the_list():
    modules = {"tested_transformer.layers.cache": ["DecoderCache", "KeyValueCache"]}
    page = generate.api(modules, {"api-KeyValueCache", "api-KeyValueCache.append", "api-Other"})
    assert (
        '<span id="api-KeyValueCache"></span><span id="api-KeyValueCache.append"></span>'
        '<a href="api_layers.html#api-KeyValueCache"><code>KeyValueCache</code></a>'
    ) in page
    assert '<a href="api_layers.html#api-DecoderCache"><code>DecoderCache</code></a>' in page
    assert "Other" not in page


# --------------------------------------------------------------------------------------- boxes


def chapter_boxes() -> list[tuple[str, str]]:
    """The chapter and title of each box, read from the notebooks."""
    found = []
    for path in chapter_paths():
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            titles = re.findall(
                r"\{admonition\} Pitfall: (.+)\n:class: pitfall", "".join(cell["source"])
            )
            found += [(path.stem, title.replace("`", "")) for title in titles]
    return found


def test_every_box_tells_of_a_mistake_in_the_gallery():
    names = {mutant.name for spec in SPECS.values() for mutant in spec.mutants}
    known = {pitfall_links.anchor(name) for name in names}
    other = yaml.safe_load(pitfall_links.OTHER_NAMES.read_text(encoding="utf-8"))
    boxes = chapter_boxes()
    assert len(boxes) > 50
    lost = [(chapter, title) for chapter, title in boxes
            if not {pitfall_links.anchor(name) for name in other.get(title, [title])} <= known]  # fmt: skip
    assert lost == []
    assert set(other) <= {title for _, title in boxes}  # no name of a box that is gone
    assert [title for title, mistakes in other.items() if not mistakes] == [
        "a point that sees itself", "orthogonal directions without their signs",
        "padding counts in the mean of a text",  # rejected by the Spec of an exercise
    ]  # fmt: skip


def test_a_former_name_is_that_of_one_mistake_and_of_none_today():
    former = yaml.safe_load(pitfall_links.FORMER_NAMES.read_text(encoding="utf-8"))
    names = {mutant.name for spec in SPECS.values() for mutant in spec.mutants}
    old = [each for given in former.values() for each in given]
    assert set(former) <= names
    assert not {*old} & names
    assert len(old) == len({*old})


def test_the_anchor_of_a_mistake_is_the_gallerys():
    for spec in SPECS.values():
        for mutant in spec.mutants:
            assert pitfall_links.anchor(mutant.name) == generate._anchor(mutant.name)


# ------------------------------------------------------------------------------------ glossary


@pytest.mark.parametrize(
    ("term", "place"),
    [
        ("缩放因子", "term-缩放因子"),
        ("键值缓存（KV 缓存）", "term-键值缓存-KV-缓存"),
        ("在线 softmax", "term-在线-softmax"),
    ],
)
def test_the_anchor_of_a_chinese_term_is_the_term(term, place):
    assert glossary_links.anchor(term) == place


def test_a_term_is_found_in_the_plural_and_in_capitals():
    known = {"mask": "term-mask", "logits": "term-logits"}
    assert glossary_links.look_up("Masks", known) == "term-mask"
    assert glossary_links.look_up("logits", known) == "term-logits"
    assert glossary_links.look_up("masking", known) is None


def test_terms_are_in_the_order_of_the_alphabet():
    """Word by word: key/value cache comes after key, and before kernel."""
    text = (ROOT / "book" / "glossary.md").read_text(encoding="utf-8")
    entries = text.partition("```{glossary}\n")[2].split("\n\n")
    words = [re.findall(r"\w+", entry.partition("\n")[0].casefold()) for entry in entries]
    assert len(words) > 100
    assert words == sorted(words)


def test_no_two_terms_share_an_anchor():
    text = (ROOT / "book" / "glossary.md").read_text(encoding="utf-8")
    terms = [
        line
        for line in text.partition("```{glossary}")[2].splitlines()
        if line and line[0] not in " `"
    ]
    places = [glossary_links.anchor(term) for term in terms]
    twice = {place for place in places if places.count(place) > 1}
    assert twice == set()
    assert len(places) > 240


HUB = "https://github.com"


@pytest.mark.parametrize(
    ("seen", "shown"),
    [
        ("made for this book", "Not in public: it was made for this book."),
        ("source notes, 001:644", "source notes, 001:644."),
        (
            "rasbt/LLMs-from-scratch issues 697 and 1013, a/b.c pull request 8",
            f"rasbt/LLMs-from-scratch issues [697]({HUB}/rasbt/LLMs-from-scratch/issues/697) and "
            f"[1013]({HUB}/rasbt/LLMs-from-scratch/issues/1013), "
            f"a/b.c pull request [8]({HUB}/a/b.c/issues/8).",
        ),
        ("pytorch PRs 1, 2", f"pytorch PRs [1]({HUB}/pytorch/pytorch/issues/1), "
         f"[2]({HUB}/pytorch/pytorch/issues/2)."),
        ("BERT-pytorch issue 78", "BERT-pytorch issue 78."),  # whose? not guessed
        ("NTM-tensorflow issue 2", "NTM-tensorflow issue 2."),
    ],
)  # fmt: skip
def test_where_a_mistake_was_seen_is_a_link(seen, shown):
    assert generate._seen(seen) == shown
