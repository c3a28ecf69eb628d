"""Two processes that share their batches, compared with one process."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from toys import stage_config

from embedkit.errors import ConfigError
from embedkit.training import processes
from embedkit.training.loop import RunControl, train
from embedkit.training.method import View
from embedkit.training.optim import OptimConfig

pytestmark = pytest.mark.timeout(900)  # three processes train everything; a busy machine takes its time
SCRIPT = Path(__file__).parent / "shared_training.py"
ONE, TWO, OTHER = "1-0", "2-0", "2-1"


def cases():
    specification = importlib.util.spec_from_file_location("shared_training", SCRIPT)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return list(module.EXACT), list(module.RANDOM)


EXACT, RANDOM = cases()


@pytest.fixture(scope="module")
def trained(tmp_path_factory, toy_tokenizer_json):
    """A folder in which one process trained everything, and two processes did so together."""
    folder = tmp_path_factory.mktemp("shared")
    (folder / "tokenizer.json").write_text(toy_tokenizer_json, encoding="utf-8")
    generator = np.random.default_rng(0)
    words = ["the", "cat", "dog", "king", "sea", "garden", "red", "old", "reads", "swims"]
    rows = [(generator.choice(words, 2 + i % 9), generator.choice(words, 2 + i % 5)) for i in range(48)]
    lines = [f"{' '.join(first)} {i}\t{' '.join(second)} {i}\n" for i, (first, second) in enumerate(rows)]
    (folder / "texts.tsv").write_text("".join(lines), encoding="utf-8")
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else None
    done = subprocess.run(
        [sys.executable, SCRIPT, folder],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        timeout=800,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


def state(folder, label, whose):
    return load_file(folder / f"{label}-{whose}.safetensors")


def records(folder, label, count):
    lines = (folder / f"{label}-{count}" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [{key: value for key, value in json.loads(line).items() if "seconds" not in key} for line in lines]


@pytest.mark.parametrize("label", EXACT)
class TestTwoAreLikeOne:
    def test_parameters_queues_and_averages_end_the_same(self, trained, label):
        one, two = state(trained, label, ONE), state(trained, label, TWO)
        assert one.keys() == two.keys()
        for name, tensor in one.items():
            assert torch.allclose(tensor.double(), two[name].double(), rtol=1e-4, atol=1e-5), name

    def test_losses_and_scores_are_the_same(self, trained, label):
        one, two = records(trained, label, 1), records(trained, label, 2)
        assert [sorted(record) for record in one] == [sorted(record) for record in two]
        assert {"loss", "dev"} <= {key for record in one for key in record}
        for first, second in zip(one, two, strict=True):
            assert first == pytest.approx(second, rel=1e-5, abs=1e-6)

    def test_both_have_the_same_bits(self, trained, label):
        own, other = state(trained, label, TWO), state(trained, label, OTHER)
        assert all(torch.equal(own[name], other[name]) for name in own)


@pytest.mark.parametrize("label", RANDOM)
class TestWithDropout:
    def test_both_have_the_same_bits(self, trained, label):
        own, other = state(trained, label, TWO), state(trained, label, OTHER)
        assert all(torch.equal(own[name], other[name]) for name in own)

    def test_resumed_equals_uninterrupted(self, trained, label):
        """One process was told to stop; both did, and both resumed from the first one's checkpoint."""
        whole, pieced = state(trained, label, TWO), state(trained, f"{label}-resumed", OTHER)
        assert all(torch.equal(whole[name], pieced[name]) for name in whole)


class TestShares:
    def view(self, sizes=(3, 1, 4), seed=0):
        """Row i of the batch has i for every token."""
        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(sum(sizes), generator=generator)
        laid = torch.empty(sum(sizes), dtype=torch.int64)
        laid[order] = torch.arange(sum(sizes))
        ids = [part[:, None].repeat(1, 2 + number) for number, part in enumerate(laid.split(sizes))]
        return View(tuple((rows, rows + 100) for rows in ids), order, tuple(rows + 200 for rows in ids))

    def rows(self, view):
        chunks = zip(view.chunks, view.token_types, strict=True)
        laid = [torch.stack([ids[:, 0], mask[:, 0], types[:, 0]], dim=1) for (ids, mask), types in chunks]
        return torch.cat(laid)[view.order]

    @pytest.mark.parametrize("count", [1, 2, 4, 8])
    @pytest.mark.parametrize("seed", range(3))
    def test_concatenated_shares_are_the_batch(self, count, seed):
        view = self.view(seed=seed)
        shares = [view.share(place, count) for place in range(count)]
        assert [len(share.order) for share in shares] == [8 // count] * count
        laid = torch.cat([self.rows(share) for share in shares])
        assert torch.equal(laid, self.rows(view))
        assert laid.tolist() == [[row, row + 100, row + 200] for row in range(8)]
        assert all(len(ids) for share in shares for ids, _ in share.chunks)

    def test_an_uneven_share_is_refused(self, monkeypatch):
        monkeypatch.setattr(processes, "count", lambda: 3)
        with pytest.raises(ConfigError, match=r"3 processes cannot share optim\.batch_size = 8 evenly"):
            train(None, None, stage_config(optim=OptimConfig(batch_size=8), seed=0), None, RunControl())


class TestAlone:
    """A single process communicates with no other."""

    def test_collectives_are_the_identity(self):
        rows = torch.ones(2, 3)
        assert processes.gather(rows) is rows
        assert (processes.count(), processes.rank(), processes.first()) == (1, 0, True)
        assert processes.agree(True)
        assert not processes.agree(False)
        assert processes.from_first(lambda: 3.5) == 3.5

    def test_torchrun_with_one_process_is_no_group(self, monkeypatch):
        monkeypatch.setenv("WORLD_SIZE", "1")
        with processes.group("cpu"):
            assert processes.count() == 1
