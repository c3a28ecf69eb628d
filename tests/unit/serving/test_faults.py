"""The scripts of benchmarks/faults, with few rounds; by hand they run with many."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("faiss")

ROOT = Path(__file__).parents[3]


def run(script, *options):
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "faults" / script, *options],
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.skipif(sys.platform == "win32", reason="kills with SIGKILL")
def test_kills_at_random_moments_leave_a_consistent_state(tmp_path):
    assert "4 kills" in run("kills.py", "--kills", "4", "--folder", tmp_path)


@pytest.mark.skipif(sys.platform == "win32", reason="kills with SIGKILL")
def test_single_documents_survive_kills_beside_a_reader(tmp_path):
    assert "4 kills during 150 single" in run("kills.py", "--singles", "150", "--kills", "4", "--folder", tmp_path)


def test_hostile_bundles_are_refused_or_harmless(toy_bundle, toy_cross_bundle):
    for bundle in (toy_bundle, toy_cross_bundle):
        assert "30 mutations, 0 failures" in run("bundles.py", "--mutations", "30", "--bundle", bundle)


def test_flipped_bits_are_found(tmp_path):
    assert "200 flips: " in run("flips.py", "--flips", "200", "--folder", tmp_path)


def test_flipped_bits_of_large_files_are_found_by_verify(tmp_path):
    options = "--flips", "26", "--documents", "3000", "--index", "hnsw"
    assert "26 flips: " in run("flips.py", *options, "--folder", tmp_path)


def test_random_damage_is_an_error_or_harmless(tmp_path):
    assert "40 mutations" in run("fuzz.py", "--mutations", "40", "--no-bundle", "--folder", tmp_path)
