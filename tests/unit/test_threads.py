"""The number of threads follows the affinity and the control group, in both versions."""

from __future__ import annotations

import os

import pytest

from embedkit.threads import available_threads


@pytest.fixture(autouse=True)
def sixteen_processors(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)), raising=False)


def lay(root, files):
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


V1 = "3:cpuset:/a\n2:cpu,cpuacct:/a/b\n0::/\n"


@pytest.mark.parametrize(
    ("files", "threads"),
    [
        ({}, 16),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max": "max 100000\n"}, 16),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/cpu.max": "300000 100000\n"}, 3),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/cpu.max": "250000 100000\n"}, 2),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "50000 100000\n"}, 1),
        ({"proc/self/cgroup": "0::/../..\n", "sys/fs/cgroup/cpu.max": "200000 100000\n"}, 2),
        (
            {
                "proc/self/cgroup": "0::/a\n",
                "sys/fs/cgroup/a/cpu.max": "800000 100000\n",
                "sys/fs/cgroup/cpu.max": "500000 100000\n",
            },
            5,
        ),
        (
            {
                "proc/self/cgroup": V1,
                "sys/fs/cgroup/cpu/a/b/cpu.cfs_quota_us": "700000\n",
                "sys/fs/cgroup/cpu/a/b/cpu.cfs_period_us": "100000\n",
            },
            7,
        ),
        ({"proc/self/cgroup": "nonsense\n\n::\n", "sys/fs/cgroup/cpu.max": "\n"}, 16),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "100000 0\n"}, 16),
    ],
)
def test_the_quota_of_the_group_or_one_above_counts(tmp_path, files, threads):
    assert available_threads(lay(tmp_path, files)) == threads


def test_the_affinity_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 5})
    assert available_threads(tmp_path) == 2


def test_without_affinity_the_processors_count(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert available_threads(tmp_path) == 8
