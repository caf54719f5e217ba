"""What metrics count of what a step leaves out."""

from __future__ import annotations

from agrpo.records.progress import DropReason
from tests.metrics.made import family, measured, scored


def test_groups_are_counted_under_the_filter_that_left_them_out():
    groups = [scored(ticket, {"judge": [0.0, 1.0]}) for ticket in range(4)]
    drops = dict.fromkeys((0, 1, 2), DropReason.LEFT_OUT)
    measures = measured(groups, drops=drops, left_out_by={0: "overlong", 1: "overlong", 2: "pass_rate"})
    assert family(measures, "filters/") == {"overlong/left_out_count": 2.0, "pass_rate/left_out_count": 1.0}
    assert measured(groups, num_truncated=3)["batch/masked_truncated_count"] == 3.0
