"""A bit that flips in the cache is never trained on: agents make the thing anew, ranks name the file."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path

import pytest
from tests.trainer.texts import a_spec, a_store, quiet

from trainer.data import row_plan
from trainer.data.errors import StoreDamaged
from trainer.data.packing import BEST_FIT, NONE
from trainer.data.prepare import PreparedData, prepare, prepared
from trainer.data.row_plan import Rows, make_rows, open_rows
from trainer.data.store import TokenStore

LENGTHS = [5, 6, 7, 30, 2, 9]
PLAN_FILES = ["starts.bin", "lengths.bin", "rows.bin", "plan.json"]


def flip(file: Path, at: int, bit: int = 0) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 1 << bit
    file.write_bytes(data)


def rows_of(rows: Rows) -> list[list[tuple[int, int]]]:
    return [[(span.start, span.end) for span in rows.spans(row)] for row in range(rows.count)]


@pytest.mark.parametrize("packing", [BEST_FIT, NONE])
@pytest.mark.parametrize("name", PLAN_FILES)
def test_a_bit_that_flips_anywhere_in_a_plan_is_found_and_the_plan_made_anew(
    name: str, packing: str, tmp_path: Path
) -> None:
    store = a_store(tmp_path / "s", LENGTHS)
    wanted = rows_of(make_rows(store, 16, packing, tmp_path))
    (file,) = (tmp_path / "rows").glob(f"*/{name}")
    whole = file.read_bytes()
    for at in range(len(whole)):
        flip(file, at, bit=at % 8)
        with pytest.raises(StoreDamaged, match=rf"{name}: byte \d+: .*Fix: ") as raised:
            open_rows(store, 16, packing, tmp_path)
        if name != "plan.json":
            assert raised.value.file == file
        file.write_bytes(whole)
    flip(file, len(whole) // 2)
    assert rows_of(make_rows(store, 16, packing, tmp_path)) == wanted
    assert rows_of(open_rows(store, 16, packing, tmp_path)) == wanted
    assert file.read_bytes() == whole
    assert [path.name for path in (tmp_path / "rows").iterdir() if path.is_dir()] == [file.parent.name]


@pytest.mark.parametrize("missing", PLAN_FILES)
def test_a_plan_without_one_of_its_files_is_made_anew(missing: str, tmp_path: Path) -> None:
    store = a_store(tmp_path / "s", LENGTHS)
    wanted = rows_of(make_rows(store, 16, BEST_FIT, tmp_path))
    (file,) = (tmp_path / "rows").glob(f"*/{missing}")
    file.unlink()
    with pytest.raises(StoreDamaged, match=missing):
        open_rows(store, 16, BEST_FIT, tmp_path)
    assert rows_of(make_rows(store, 16, BEST_FIT, tmp_path)) == wanted


def test_a_plan_of_a_version_without_hashes_is_made_anew(tmp_path: Path) -> None:
    store = a_store(tmp_path / "s", LENGTHS)
    wanted = rows_of(make_rows(store, 16, BEST_FIT, tmp_path))
    (plan,) = (tmp_path / "rows").glob("*/plan.json")
    sizes = {path.name: path.stat().st_size for path in plan.parent.glob("*.bin")}
    plan.write_text(json.dumps({"packing": BEST_FIT, "bytes": sizes}))
    flip(plan.parent / "starts.bin", 8)
    with pytest.raises(StoreDamaged, match=r"plan.json: byte 0: its sha256 is not that of its facts"):
        open_rows(store, 16, BEST_FIT, tmp_path)
    assert rows_of(make_rows(store, 16, BEST_FIT, tmp_path)) == wanted


def test_a_whole_plan_is_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = a_store(tmp_path / "s", LENGTHS)
    wanted = rows_of(make_rows(store, 16, BEST_FIT, tmp_path))
    monkeypatch.delattr(row_plan, "_write")
    assert rows_of(make_rows(store, 16, BEST_FIT, tmp_path)) == wanted


def test_a_plan_that_is_made_anew_leaves_those_who_read_the_old_one_alone(tmp_path: Path) -> None:
    store = a_store(tmp_path / "s", LENGTHS)
    reading = make_rows(store, 16, BEST_FIT, tmp_path)
    wanted = rows_of(reading)
    (plan,) = (tmp_path / "rows").glob("*/plan.json")
    plan.write_text("{}")
    make_rows(store, 16, BEST_FIT, tmp_path)
    assert rows_of(reading) == wanted


def _plan(folder: Path) -> None:
    make_rows(TokenStore.at(folder / "s"), 16, BEST_FIT, folder)


def test_agents_that_share_a_cache_mend_a_plan_together(tmp_path: Path) -> None:
    store = a_store(tmp_path / "s", LENGTHS * 50)
    wanted = rows_of(make_rows(store, 16, BEST_FIT, tmp_path))
    (file,) = (tmp_path / "rows").glob("*/starts.bin")
    flip(file, 9)
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_plan, args=(tmp_path,)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=60)
    assert [process.exitcode for process in processes] == [0] * 4
    assert rows_of(open_rows(store, 16, BEST_FIT, tmp_path)) == wanted
    assert len([path for path in (tmp_path / "rows").iterdir() if path.is_dir()]) == 1


def what_it_holds(data: PreparedData) -> tuple[object, ...]:
    tokens = data.train.read(0, data.train.tokens).tolist()
    tokenizer = {path.name: path.read_bytes() for path in data.tokenizer_dir.iterdir()}
    return tokens, data.train.end_token, data.vocabulary_size, data.fingerprint, tokenizer


@pytest.mark.parametrize(
    ("name", "found_by_ranks"),
    [
        ("tokenizer/tokenizer.json", True),
        ("tokenizer/tokenizer_config.json", True),
        ("train/index.json", True),
        ("prepared.json", True),
        ("train/00000.documents", False),  # of the store's structure, which the agent reads for its ranks
        ("train/00000.checksums", False),
    ],
)
def test_a_bit_that_flips_in_tokenised_text_is_found_and_the_folder_made_anew(
    name: str, found_by_ranks: bool, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text("the same words again and again\n" * 20)
    spec, cache = a_spec((tmp_path / "a.txt").as_uri()), tmp_path / "cache"
    wanted = what_it_holds(prepare(spec, cache, quiet))
    (file,) = (cache / "data").glob(f"*/{name}")
    size = file.stat().st_size
    for at in {0, size // 3, size // 2, size - 1}:
        flip(file, at)
        if found_by_ranks:
            with pytest.raises(StoreDamaged, match=f"{file.name}: byte "):
                prepared(spec, cache)
        said: list[str] = []
        assert what_it_holds(prepare(spec, cache, said.append)) == wanted
        assert any(f"{file}: " in text and "made anew" in text for text in said), said
        assert what_it_holds(prepared(spec, cache)) == wanted
    assert len([path for path in (cache / "data").iterdir() if path.is_dir()]) == 1


def test_a_bit_that_flips_in_what_the_agent_left_for_its_ranks_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("the same words again and again\n" * 20)
    spec, cache = a_spec((tmp_path / "a.txt").as_uri()), tmp_path / "cache"
    prepare(spec, cache, quiet)
    (file,) = (cache / "requests").iterdir()
    whole = file.read_bytes()
    for at in range(len(whole)):
        flip(file, at)
        with pytest.raises(StoreDamaged, match=rf"{file.name}: byte 0: "):
            prepared(spec, cache)
        file.write_bytes(whole)
    prepare(spec, cache, quiet)
    prepared(spec, cache)
