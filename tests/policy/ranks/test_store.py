"""Where the ranks of a learner find each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from agrpo.policy.ranks.group import Place, store_of

LISTENING = "0A"


@pytest.mark.skipif(not Path("/proc/net/tcp").is_file(), reason="Linux says there who listens where")
def test_the_store_listens_at_its_own_address_alone():
    place = Place(rank=0, size=2, local_rank=0, address="127.0.0.1", port=0)
    store = store_of(place, 10.0)
    lines = [line.split() for kind in ("tcp", "tcp6") for line in Path("/proc/net", kind).read_text().splitlines()[1:]]
    addresses = [line[1].split(":") for line in lines if line[3] == LISTENING]
    assert [address for address, port in addresses if int(port, 16) == store.port] == ["0100007F"]


def test_a_further_rank_finds_the_store_where_the_first_one_says():
    first = store_of(Place(rank=0, size=2, local_rank=0, address="127.0.0.1", port=0), 10.0)
    second = store_of(Place(rank=1, size=2, local_rank=1, address="127.0.0.1", port=first.port), 10.0)
    second.set("word", "heard")
    assert first.get("word") == b"heard"
