"""Published versions: each stays as long as it can be named, and goes then."""

from __future__ import annotations

from pathlib import Path

import pytest

from agrpo.queue.filesystems.local import LocalFilesystem
from agrpo.queue.run_folder import RunFolder
from agrpo.queue.versions import newest_version
from agrpo.records.progress import Base
from agrpo.weights.filesystem import check_weights
from tests.checkpoints.keepers import Kept, join, keep, new_run


class Watched(LocalFilesystem):
    """Tells how many versions lie there whenever one has been added."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.most = 0

    def put_folder(self, key: str, folder: Path) -> bool:
        published = super().put_folder(key, folder)
        self.most = max(self.most, len(self.list("weights")))
        return published


def published(kept: Kept, versions: range) -> Kept:
    for version in versions:
        kept.move()
        kept.keeper.publish(version, version, ordinal=version)
    return kept


@pytest.mark.spec("K12")
def test_a_version_stays_while_a_request_may_name_it(tiny_model: Path, tmp_path: Path):
    store = Watched(tmp_path / "run")
    kept = keep(new_run(store), tiny_model, asynchronous={"max_staleness": 4})
    published(kept, range(8))
    assert kept.weights() == [3, 4, 5, 6, 7]
    published(kept, range(8, 9))
    assert kept.weights() == [4, 5, 6, 7, 8]
    assert store.most == 4 + 2


def test_lockstep_keeps_one_version_beside_the_newest(tiny_model: Path, tmp_path: Path):
    kept = keep(new_run(tmp_path / "run"), tiny_model, asynchronous={"max_staleness": 0})
    assert published(kept, range(4)).weights() == [2, 3]


def test_a_resumed_learner_counts_the_versions_of_the_history(tiny_model: Path, tmp_path: Path):
    folder = new_run(tmp_path / "run")
    published(keep(folder, tiny_model, asynchronous={"max_staleness": 2}), range(4))
    join(folder, Base(attempt=1, parent=0, base_step=3, adopted_through=3))
    resumed = keep(folder, tiny_model, attempt=1, asynchronous={"max_staleness": 2})
    assert published(resumed, range(4, 5)).weights() == [2, 3, 4]


def test_going_back_keeps_the_newest_of_the_history_and_drops_what_was_left(tiny_model: Path, tmp_path: Path):
    folder = new_run(tmp_path / "run")
    published(keep(folder, tiny_model, asynchronous={"max_staleness": 4}), range(9))
    join(folder, Base(attempt=1, parent=0, base_step=5, adopted_through=5))
    back = keep(folder, tiny_model, attempt=1, asynchronous={"max_staleness": 1})
    assert newest_version(folder).version == 5
    back.move()
    back.keeper.publish(9, 6, ordinal=6)
    assert back.weights() == [5, 9]
    back.move()
    back.keeper.publish(10, 7, ordinal=7)
    assert back.weights() == [9, 10]


def test_weights_whose_record_was_never_written_are_published_again(tiny_model: Path, tmp_path: Path):
    folder = new_run(tmp_path / "run")
    kept = published(keep(folder, tiny_model), range(2))
    folder.filesystem.delete("versions/000000/00000001.json")
    join(folder, Base(attempt=1, parent=0, base_step=1, adopted_through=1))
    resumed = keep(folder, tiny_model, attempt=1)
    resumed.trainee.model = kept.trainee.model
    resumed.keeper.publish(1, 1, ordinal=1)
    newest = newest_version(folder)
    assert (newest.version, newest.attempt) == (1, 1)
    check_weights(folder.filesystem.local_folder(newest.folder), newest.digest)


def test_a_retired_learner_removes_no_version_of_its_successors(tiny_model: Path, tmp_path: Path):
    folder = new_run(tmp_path / "run")
    retired = published(keep(folder, tiny_model, asynchronous={"max_staleness": 1}), range(3))
    join(folder, Base(attempt=1, parent=0, base_step=2, adopted_through=2))
    published(keep(folder, tiny_model, attempt=1, asynchronous={"max_staleness": 1}), range(3, 5))
    published(retired, range(3, 4))
    assert 4 in retired.weights()


@pytest.mark.parametrize("harm", ["gone", "flipped"])
def test_damaged_weights_of_the_newest_version_are_written_again_to_the_same_bytes(
    harm: str, tiny_model: Path, tmp_path: Path
):
    folder: RunFolder = new_run(tmp_path / "run")
    kept = published(keep(folder, tiny_model), range(2))
    newest = newest_version(folder)
    file = Path(folder.url, newest.folder, "model.safetensors")
    written = file.read_bytes()
    assert kept.keeper.damaged_version() is None
    if harm == "gone":
        folder.filesystem.delete(newest.folder)
    else:
        file.write_bytes(written[:-1] + bytes([written[-1] ^ 1]))
    assert kept.keeper.damaged_version() == newest
    kept.keeper.mend(newest)
    assert file.read_bytes() == written
