"""Where the ranks of a learner find each other."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest
import torch.distributed as dist

from agrpo.errors import DeadlineExceeded
from agrpo.policy.ranks.group import Place, host_store, store_of

LISTENING = "0A"


@pytest.mark.skipif(not Path("/proc/net/tcp").is_file(), reason="Linux says there who listens where")
def test_the_store_listens_at_its_own_address_alone():
    store = host_store("127.0.0.1", 2, 10.0)
    lines = [line.split() for kind in ("tcp", "tcp6") for line in Path("/proc/net", kind).read_text().splitlines()[1:]]
    addresses = [line[1].split(":") for line in lines if line[3] == LISTENING]
    assert [address for address, port in addresses if int(port, 16) == store.port] == ["0100007F"]


def test_all_ranks_find_the_store_where_the_host_says():
    host = host_store("127.0.0.1", 2, 10.0)
    first, second = (store_of(rank(number, host.port), 10.0) for number in range(2))
    second.set("word", "heard")
    assert first.get("word") == b"heard"


def test_whoever_waits_in_a_store_fails_when_it_goes():
    host = host_store("127.0.0.1", 2, 120.0)
    waiting = store_of(rank(0, host.port), 120.0)
    timer = threading.Timer(0.2, [host].clear)
    timer.start()
    del host
    with pytest.raises(dist.DistNetworkError):
        waiting.get("a word that nobody says")
    timer.join()


def test_a_rank_that_reaches_no_store_says_where_it_looked():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(
            DeadlineExceeded, match=rf"rank 1 of 2 waited 1 s for rank 0 at 127.0.0.1:{port} .*see that"
        ):
            store_of(rank(1, port), 1.0)


def rank(number: int, port: int) -> Place:
    return Place(rank=number, size=2, local_rank=number, address="127.0.0.1", port=port)
