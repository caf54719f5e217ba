"""Tags by which a flow run is found."""

from __future__ import annotations

from flows.artifacts import artifact_key
from flows.tags import tags_of
from tests.flows.points import document


def test_a_flow_run_keeps_its_tags_and_gets_those_of_its_run() -> None:
    assert tags_of(document(), ["nightly", "agrpo"]) == [
        "nightly",
        "agrpo",
        "sums",
        "thinking-seed1/model",
        "thinking-seed1/prompts.parquet",
    ]


def test_a_hub_id_is_a_tag_as_it_is_and_a_dataset_goes_before_a_path() -> None:
    run = document()
    run["settings"]["tree"] |= {"model": {"path": "Qwen/Qwen3-0.6B"}, "prompts": {"dataset": "chain_sum", "size": 9}}
    assert tags_of(run) == ["agrpo", "sums", "Qwen/Qwen3-0.6B", "chain_sum"]


def test_a_run_that_says_nothing_is_tagged_with_the_project() -> None:
    assert tags_of({"settings": {"tree": {}}}) == ["agrpo"]


def test_a_page_is_found_by_what_prefect_allows_in_a_key() -> None:
    assert artifact_key("progress", "Sums of-three_1") == "progress-sums-of-three-1"
