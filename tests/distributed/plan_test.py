# SPDX-License-Identifier: Apache-2.0
"""flash-transducer plan --ranks: balance and predicted time of a corpus."""

from __future__ import annotations

import json

import numpy as np
import pytest
from flash_transducer import _ranks_plan, demo
from flash_transducer.cli import main

LENGTHS = np.array(demo.read_lengths(demo.find_lengths_file()), np.int64)
ROWS = LENGTHS[:, 0] * (LENGTHS[:, 1] + 1)


def test_loads_are_sums_over_the_assignment():
    model = _ranks_plan.CostModel(2.0, 5.0)
    plan = _ranks_plan.divide(np.array([10, 4, 3]), 2, model)
    assert (plan["rows_largest"], plan["rows_mean"]) == (10, 8.5)
    assert plan["imbalance"] == pytest.approx(10 / 8.5)
    assert (plan["seconds_largest"], plan["seconds_mean"]) == (25.0, 24.5)


def test_batches_hold_each_utterance_once_and_fit():
    packed = _ranks_plan.batches(LENGTHS[:, 0], 3000)
    assert sorted(np.concatenate(packed).tolist()) == list(range(len(LENGTHS)))
    assert max(int(LENGTHS[batch, 0].sum()) for batch in packed) <= 3000
    split = _ranks_plan.divide_batches(LENGTHS[:, 0], ROWS, 3000, 4)
    whole = _ranks_plan.divide(ROWS, 4, _ranks_plan.CostModel(1.0, 0.0))
    assert 1.0 <= whole["imbalance"] <= split["imbalance"] <= split["imbalance_worst"]


def test_bytes_follow_the_account():
    assert _ranks_plan.bytes_per_rank(3, 500, 512, reproducible=False) == 24 + 48 + 8 * 500 * 513
    assert _ranks_plan.bytes_per_rank(0, 500, 512, reproducible=True) == 24 + 28 * 500 * 513
    assert _ranks_plan.bytes_per_rank(1, 500, None, reproducible=True) == 40


def test_the_command_prints_json(capsys):
    lengths = str(demo.find_lengths_file())
    assert main(["plan", "--ranks", "2", "8", "--lengths", lengths, "--columns", "20", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["rows"] == ROWS.sum()
    assert found["seconds_per_row"] > 0
    assert [plan["ranks"] for plan in found["plans"]] == [2, 8]
    assert all(plan["imbalance"] <= 1.01 for plan in found["plans"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plan"], "plan needs --shape B T U V"),
        (["plan", "--ranks", "2"], "--ranks and --lengths go together"),
        (["plan", "--ranks", "2", "--lengths", "none.csv"], "none.csv: No such file"),
    ],
)
def test_mistakes_are_one_line(capsys, arguments, message):
    assert main(arguments) == 2
    assert message in capsys.readouterr().err
