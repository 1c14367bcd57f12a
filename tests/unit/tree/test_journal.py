"""The journal survives any kind of death and refuses what it did not write."""

import tracemalloc

import pytest

from alphazero_llm_trainer.errors import DataError
from alphazero_llm_trainer.tree.journal import Journal, read

RECORDS = [{"key": f"0/{i}", "text": f"Zeile {i}\n\u2028 #### {i}", "W": 0.1 * i} for i in range(5)]


def written(path):
    journal = Journal(path)
    for record in RECORDS:
        journal.append(record)
        # A process that is killed now has lost nothing: the operating system has the line.
        assert list(read(path))[-1] == record
    journal.close()
    return path


def test_what_is_appended_is_read_back(tmp_path):
    path = written(tmp_path / "new" / "journal.jsonl")
    assert list(read(path)) == RECORDS
    again = Journal(path)
    assert list(again.values()) == RECORDS
    assert "0/3" in again and "0/9" not in again
    assert again.get("0/3") == RECORDS[3] and again.get("0/9") is None
    again.append({"key": "later"})
    again.close()
    assert [record["key"] for record in read(path)] == ["0/0", "0/1", "0/2", "0/3", "0/4", "later"]


def test_records_stay_in_the_file_and_are_checked_when_read(tmp_path):
    """A journal of 20 MB takes less than 2 MB to open, to read record by record and to add to."""
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    for i in range(200):
        journal.append({"key": f"0/{i}", "text": str(i) * 50_000})
    journal.close()
    assert path.stat().st_size > 20e6
    tracemalloc.start()
    again = Journal(path)
    assert len(again) == 200 and list(again)[7] == "0/7"
    assert all(record["key"] == key for key, record in again.items())
    again.append({"key": "1/0", "text": "later"})
    assert again.get("1/0") == {"key": "1/0", "text": "later"} and again.get("2/0") is None
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2e6
    with path.open("r+b") as file:  # changed behind its back
        file.seek(7)
        file.write(b"x")
    with pytest.raises(DataError, match="at byte 0 is not JSON"):
        again.get("0/0")
    again.close()


@pytest.mark.parametrize("cut", [1, 7, 20])
def test_a_half_written_last_line_is_dropped(tmp_path, cut):
    path = written(tmp_path / "journal.jsonl")
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    assert list(read(path)) == RECORDS[:-1]  # a reader leaves it out
    assert path.read_bytes() == whole[:-cut]  # and the file alone
    journal = Journal(path)
    lines = whole.splitlines(keepends=True)
    # Truncated, so that the next line starts on its own.
    assert path.read_bytes() == b"".join(lines[:-1])
    assert "0/4" not in journal
    journal.append(RECORDS[-1])
    journal.close()
    assert path.read_bytes() == whole


@pytest.mark.parametrize(
    "broken, words",
    [
        (b"{not json}", "is not JSON"),
        (b'{"key":"half a line', "is not JSON"),
        (b'{"key": 3}', "has no key"),
    ],
)
def test_a_broken_line_elsewhere_is_an_error(tmp_path, broken, words):
    path = written(tmp_path / "journal.jsonl")
    lines = path.read_bytes().splitlines()
    lines[2] = broken
    damaged = b"\n".join(lines) + b"\n"
    path.write_bytes(damaged)
    for use in (lambda: Journal(path), lambda: list(read(path))):
        with pytest.raises(DataError, match=words) as caught:
            use()
        assert (
            str(path) in str(caught.value)
            and "line 3" in str(caught.value)
            and "\n" not in str(caught.value)
        )
    assert path.read_bytes() == damaged  # nothing was thrown away


def test_a_key_is_written_once(tmp_path):
    path = written(tmp_path / "journal.jsonl")
    before = path.read_bytes()
    journal = Journal(path)
    with pytest.raises(DataError, match="'0/2'"):
        journal.append({"key": "0/2", "text": "again"})
    journal.close()
    assert path.read_bytes() == before
