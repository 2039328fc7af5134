"""Whatever students hand in is found, or named with a reason; nothing is unpacked to disk."""

import io
import os
import stat
import zipfile

import pytest
from handed_in import GOOD, OTHER, is_sound, write, zipped
from hypothesis import given, settings
from hypothesis import strategies as st

from tested_transformer.homework.submissions import finding
from tested_transformer.homework.submissions.finding import Submission, find_submissions
from tested_transformer.homework.submissions.reading import Source, read_notebook, read_submission


def ids(path):
    return [one.id for one in find_submissions(path)]


def flags(path):
    return {one.id: (one.flag, one.sentence) for one in find_submissions(path)}


LAYOUTS = {
    "a folder a student": {"s01/hw1.ipynb": GOOD, "s02/hw1.ipynb": OTHER},
    "flat": {"Student One_123_hw1.ipynb": GOOD, "Student Two_124_assignment 1 (2).ipynb": OTHER},
    "deep": {"week 1/group a/s01/final/hw1.ipynb": GOOD, "week 1/s02.ipynb": OTHER},
    "extensions": {"s01.IPYNB": GOOD, "s02.ipynb.txt": OTHER, "s03.ipynb.json": GOOD},
}


@pytest.mark.parametrize("files", LAYOUTS.values(), ids=LAYOUTS)
def test_folder_and_zip_give_the_same_ids_sorted(tmp_path, files):
    wanted = sorted(name.split(".")[0] for name in files)
    assert ids(write(tmp_path / "folder", files)) == wanted
    (tmp_path / "class.zip").write_bytes(zipped(dict(reversed(files.items()))))
    assert ids(tmp_path / "class.zip") == wanted
    texts = {one.id: one.read() for one in find_submissions(tmp_path / "class.zip")}
    assert texts == {name.split(".")[0]: data for name, data in files.items()}


def test_zips_in_folders_and_in_zips_are_opened(tmp_path):
    inner = zipped({"hw1.ipynb": GOOD, "data.csv": b"1,2"})
    files = {"s01/work.zip": inner, "s02.zip": zipped({"again.zip": inner})}
    wanted = ["s01/work/hw1", "s02/again/hw1"]
    assert ids(write(tmp_path / "folder", files)) == wanted
    (tmp_path / "class.zip").write_bytes(zipped(files))
    found = find_submissions(tmp_path / "class.zip")
    assert [one.id for one in found] == wanted
    assert [read_submission(one).code for one in found] == [read_notebook(GOOD).code] * 2


def test_debris_and_other_files_are_passed_over(tmp_path):
    names = ["__MACOSX/s01/._hw1.ipynb", "s01/._hw1.ipynb", ".DS_Store", "s01/.DS_Store"]
    names += ["s01/.ipynb_checkpoints/hw1-checkpoint.ipynb", "s01/notes.txt", "__MACOSX/x.zip"]
    files = {**dict.fromkeys(names, GOOD), "s01/hw1.ipynb": GOOD}
    assert ids(write(tmp_path / "folder", files)) == ["s01/hw1"]
    (tmp_path / "class.zip").write_bytes(zipped(files))
    assert ids(tmp_path / "class.zip") == ["s01/hw1"]


def test_ids_that_would_collide_keep_their_extension(tmp_path):
    files = {"a.ipynb": GOOD, "a.ipynb.txt": OTHER, "b.zip": zipped({"c.ipynb": GOOD})}
    files |= {"b/c.ipynb": OTHER, "d.ipynb": GOOD, ".ipynb": GOOD}
    wanted = [".ipynb", "a.ipynb", "a.ipynb.txt", "b.zip/c.ipynb", "b/c.ipynb", "d"]
    assert ids(write(tmp_path, files)) == wanted


def test_ids_are_printable_and_composed(tmp_path):
    (tmp_path / "class.zip").write_bytes(
        zipped({"Zoe\u0308.ipynb": GOOD, "a\nb.ipynb": GOOD, "a\tb.ipynb": OTHER})
    )
    assert ids(tmp_path / "class.zip") == ["Zo\u00eb", "a_b.ipynb", "a_b.ipynb~1"]


def test_a_single_notebook_is_a_batch_of_one(tmp_path):
    write(tmp_path, {"hw1.ipynb": GOOD})
    assert ids(tmp_path / "hw1.ipynb") == ["hw1"]


def test_a_path_that_can_not_be_a_batch_is_an_error(tmp_path):
    write(tmp_path, {"list.csv": b"", "broken.zip": b"PK\3\4 and no more"})
    with pytest.raises(FileNotFoundError, match="path: expected a folder or a zip of notebooks"):
        find_submissions(tmp_path / "nothing")
    with pytest.raises(ValueError, match="path: expected a folder, a zip or a notebook"):
        find_submissions(tmp_path / "list.csv")
    with pytest.raises(ValueError, match="The zip is broken"):
        find_submissions(tmp_path / "broken.zip")


def test_digest_follows_the_bytes_alone(tmp_path):
    write(tmp_path / "one", {"s01.ipynb": GOOD, "s02.ipynb": GOOD})
    write(tmp_path / "two", {"s01.ipynb": GOOD, "s02.ipynb": OTHER})
    (s01, s02), (s01_again, s02_again) = map(find_submissions, (tmp_path / "one", tmp_path / "two"))
    assert s01.digest == s02.digest == s01_again.digest != s02_again.digest
    assert len(s01.digest) == 64


# -------------------------------------------------------------------------------- zips that do harm


def linked(name):
    entry = zipfile.ZipInfo(name)
    entry.external_attr = (stat.S_IFLNK | 0o777) << 16
    return entry


def encrypted(files):
    """A zip that says of each of its files that it is encrypted."""
    data = bytearray(zipped(files))
    for mark, offset in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        at = data.find(mark)
        while at >= 0:
            data[at + offset] |= 1
            at = data.find(mark, at + 4)
    return bytes(data)


def packed_oddly():
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("hw1.ipynb", GOOD)
    return stream.getvalue()


def spoiled():
    """A zip whose list is whole and whose data is not."""
    data = bytearray(zipped({"hw1.ipynb": GOOD}))
    data[45:60] = b"\xff" * 15
    return bytes(data)


BAD_ZIPS = {
    "traversal": (zipped({"../../hw1.ipynb": GOOD}), "s03/hw1", "leads out"),
    "backslashes": (zipped({"..\\hw1.ipynb": GOOD}), "s03/hw1", "leads out"),
    "absolute": (zipped({"/etc/hw1.ipynb": GOOD}), "s03/etc/hw1", "leads out"),
    "drive": (zipped({"C:/hw1.ipynb": GOOD}), "s03/hw1", "leads out"),
    "link": (zipped({linked("hw1.ipynb"): b"/etc/passwd"}), "s03/hw1", "symbolic link"),
    "encrypted": (encrypted({"hw1.ipynb": GOOD}), "s03/hw1", "encrypted"),
    "compression": (packed_oddly(), "s03/hw1", "unusual"),
    "spoiled": (spoiled(), "s03/hw1", "broken"),
    "broken": (b"PK\3\4" + bytes(50), "s03", "broken"),
    "empty": (b"", "s03", "broken"),
    "no notebook": (zipped({"hw1.pdf": b"%PDF"}), "s03", "no notebook"),
}


@pytest.mark.parametrize(("data", "name", "words"), BAD_ZIPS.values(), ids=BAD_ZIPS)
@pytest.mark.parametrize("in_zip", [False, True], ids=["in a folder", "in a zip"])
def test_a_bad_zip_is_one_flagged_line_and_the_rest_is_unharmed(
    tmp_path, data, name, words, in_zip
):
    files = {"s01.ipynb": GOOD, "s03.zip": data, "z.zip": zipped({"hw1.ipynb": GOOD})}
    path = write(tmp_path / "in", files)
    if in_zip:
        path = tmp_path / "class.zip"
        path.write_bytes(zipped(files))
    before = sorted(tmp_path.rglob("*"))
    s01, s03, z = find_submissions(path)
    assert (s01.id, s01.flag, z.id, z.flag) == ("s01", "", "z/hw1", "")
    assert s03.id == name
    assert s03.flag in ("unreadable", "no notebook")
    assert words in s03.sentence
    assert s03.digest == ""
    assert read_submission(s03) == Source(flag=s03.flag, sentence=s03.sentence)
    assert sorted(tmp_path.rglob("*")) == before  # nothing was unpacked


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_two_files_of_one_name_in_a_zip_are_refused(tmp_path):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("hw1.ipynb", GOOD)
        archive.writestr("hw1.ipynb", OTHER)
    write(tmp_path, {"s03.zip": stream.getvalue()})
    words = "The zip holds two files of this name."
    assert flags(tmp_path) == {"s03/hw1": ("unreadable", words)}


def test_other_archives_are_named(tmp_path):
    write(tmp_path, {"s01.tar.gz": b"x", "s02.rar": b"x"})
    words = "The file is an archive of another kind than zip."
    assert flags(tmp_path) == dict.fromkeys(["s01.tar.gz", "s02.rar"], ("unreadable", words))


@pytest.mark.parametrize("in_zip", [False, True], ids=["in a folder", "in a zip"])
def test_a_bomb_harms_its_own_student_alone(tmp_path, monkeypatch, in_zip):
    monkeypatch.setattr(finding.Budget, "__init__", small_budget)
    monkeypatch.setattr(finding, "MAX_CLASS_ZIP", 10**9)
    size = zipped({f"{n}.ipynb": bytes(40_000) for n in range(3)})
    count = zipped({f"{n}.txt": b"" for n in range(9)})
    files = {"s01.ipynb": GOOD, "count.zip": count, "nested.zip": zipped({"in.zip": size})}
    files |= {"size.zip": size, "z.zip": zipped({"hw1.ipynb": GOOD})}
    path = write(tmp_path / "in", files)
    if in_zip:
        path = tmp_path / "class.zip"
        path.write_bytes(zipped(files))
    many, big = "The zip holds too many files.", "The zip unpacks to too many bytes."
    assert flags(path) == {
        "s01": ("", ""),
        "count": ("too large", many),
        "nested": ("too large", big),
        "size": ("too large", big),
        "z/hw1": ("", ""),
    }


def small_budget(self, size=100_000, files=8, whole_class=False):
    self.size, self.files, self.whole_class = size, files, whole_class


def test_the_class_has_a_budget_too(tmp_path, monkeypatch):
    monkeypatch.setattr(finding, "MAX_CLASS_ZIP", 1000)
    (tmp_path / "class.zip").write_bytes(zipped({"a.ipynb": bytes(600), "b.ipynb": bytes(600)}))
    with pytest.raises(ValueError, match="unpacks to too many bytes"):
        find_submissions(tmp_path / "class.zip")


def test_a_size_that_the_zip_claims_is_not_trusted(tmp_path, monkeypatch):
    monkeypatch.setattr(finding, "MAX_NOTEBOOK", 1000)
    data = zipped({"hw1.ipynb": bytes(5000)}).replace(
        (5000).to_bytes(4, "little"), (10).to_bytes(4, "little")
    )
    write(tmp_path, {"s03.zip": data, "big.ipynb": bytes(1001), "fits.ipynb": bytes(1000)})
    found = {name: flag for name, (flag, _) in flags(tmp_path).items()}
    assert found.pop("s03/hw1") in ("too large", "unreadable")
    assert found == {"big": "too large", "fits": ""}


def test_zips_do_not_nest_forever(tmp_path):
    data = zipped({"hw1.ipynb": GOOD})
    for _ in range(finding.MAX_DEPTH):
        data = zipped({"in.zip": data})
    write(tmp_path, {"fits.zip": data, "d03.zip": zipped({"in.zip": data})})
    (d03, (flag, words)), (fits, fine) = flags(tmp_path).items()
    assert d03 == "d03" + "/in" * 4
    assert (flag, words) == ("unreadable", "More than 3 zips lie in one another.")
    assert (fits, fine) == ("fits/in/in/in/hw1", ("", ""))


def test_a_file_without_a_name_is_passed_over(tmp_path):
    data = bytearray(zipped({"hw2.ipynb": OTHER, "hw1.ipynb": GOOD}))
    entry = data.index(b"PK\x01\x02")  # in the list of files: its name is made its comment
    data[entry + 28 : entry + 34] = bytes([0, 0, 0, 0, len("hw2.ipynb"), 0])
    write(tmp_path, {"s01.zip": bytes(data)})
    assert flags(tmp_path) == {"s01/hw1": ("", "")}


WHOLE_ZIP = zipped({"a/hw1.ipynb": GOOD, "in.zip": zipped({"b.ipynb": OTHER})})


@given(st.lists(st.tuples(st.integers(0, len(WHOLE_ZIP) - 1), st.integers(0, 255)), max_size=4))
@settings(max_examples=200)
def test_no_spoiled_zip_raises(tmp_path_factory, changes):
    data = bytearray(WHOLE_ZIP)
    for at, value in changes:
        data[at] = value
    folder = tmp_path_factory.mktemp("spoiled")
    write(folder, {"s03.zip": bytes(data), "z.ipynb": GOOD})
    found = find_submissions(folder)
    assert len({one.id for one in found}) == len(found) >= 2
    assert found[-1].id == "z"
    assert all(one.id and ".." not in one.id.split("/") and one.id[0] != "/" for one in found)
    for one in found:
        assert isinstance(one, Submission)
        is_sound(read_submission(one))


# ---------------------------------------------------------------------------------- links and pipes


def test_links_are_never_followed(tmp_path):
    secret = write(tmp_path / "secret", {"solution.ipynb": GOOD})
    folder = write(tmp_path / "in", {"s01/hw1.ipynb": GOOD})
    try:
        (folder / "s03.ipynb").symlink_to(secret / "solution.ipynb")
    except OSError:
        pytest.skip("this system makes no symbolic links")
    (folder / "folder").symlink_to(secret, target_is_directory=True)
    (folder / "loop.zip").symlink_to(folder / "loop.zip")
    (folder / "loop").symlink_to(folder / "loop")
    (folder / "up").symlink_to(folder, target_is_directory=True)
    words = "This is a symbolic link: the file itself is needed."
    wanted = dict.fromkeys(["s03", "folder", "loop", "up"], ("unreadable", words))
    assert flags(folder) == {"s01/hw1": ("", ""), **wanted}


def test_the_path_itself_may_be_a_link(tmp_path):
    write(tmp_path / "in", {"s01.ipynb": GOOD})
    try:
        (tmp_path / "link").symlink_to(tmp_path / "in", target_is_directory=True)
    except OSError:
        pytest.skip("this system makes no symbolic links")
    assert ids(tmp_path / "link") == ["s01"]
    assert read_submission(tmp_path / "link" / "s01.ipynb").flag == ""


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "s03.ipynb")
    assert flags(tmp_path) == {"s03": ("unreadable", "This is no regular file.")}


def test_a_file_replaced_by_a_link_after_it_was_found_is_refused(tmp_path):
    write(tmp_path, {"s01.ipynb": GOOD, "solution.txt": OTHER})
    (s01,) = find_submissions(tmp_path)
    (tmp_path / "s01.ipynb").unlink()
    try:
        (tmp_path / "s01.ipynb").symlink_to(tmp_path / "solution.txt")
    except OSError:
        pytest.skip("this system makes no symbolic links")
    assert read_submission(s01).flag == "unreadable"


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read all")
def test_a_folder_that_may_not_be_read_is_one_line(tmp_path):
    write(tmp_path, {"s01/hw1.ipynb": GOOD, "s03/hw1.ipynb": GOOD})
    (tmp_path / "s03").chmod(0)
    try:
        assert [flag for flag, _ in flags(tmp_path).values()] == ["", "unreadable"]
    finally:
        (tmp_path / "s03").chmod(0o700)
