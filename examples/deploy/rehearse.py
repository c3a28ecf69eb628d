"""The Dockerfile and the compose file without Docker, in a bare Debian: what can be tried where no daemon runs.

    python -m build --wheel
    python examples/deploy/rehearse.py dist/embedkit_onnx-*.whl ROOT

Runs as root on Linux, with debootstrap, unshare and setpriv. It installs Debian and a virtual environment in the
folder ROOT in place of the image ``python:3.12-slim``, runs the Dockerfile's RUN lines there, and starts its
ENTRYPOINT with the compose file's command as the compose file says: as nobody, with a read-only root, without
capabilities, with a temporary file system as ``/tmp``. Then it runs the HEALTHCHECK, sends a request with and
without a key, and stops the server with SIGTERM. Prints a line for each step, and fails at the first that does not
do what it should. Limits on processors and memory, ports and restarts are Docker's, and not tried.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

HERE = Path(__file__).parent
KEY = "a-key-for-the-rehearsal"
PATH = "/venv/bin:/usr/sbin:/usr/bin:/sbin:/bin"
CERTIFICATES = "etc/ssl/certs/ca-certificates.crt"
PACKAGES = "python3,python3-venv,ca-certificates"
START_S = 60.0


def instructions(name: str) -> list[str]:
    """Return the arguments of an instruction of the Dockerfile, one string for each line that has it."""
    return re.findall(rf"^{name} (.*)$", (HERE / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)


def inside(root: Path, *command: str, nobody: bool = False) -> list[str]:
    """Return a command that runs another one in the root, as its root or as nobody."""
    user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--no-new-privs", "--bounding-set=-all"]
    return [
        "chroot",
        str(root),
        "env",
        "-i",
        f"PATH={PATH}",
        f"PIP_CERT=/{CERTIFICATES}",
        *(user if nobody else []),
        *command,
    ]


def install(root: Path, wheel: Path) -> None:
    """Make the root, and run the Dockerfile's RUN lines in it."""
    if not (root / "venv").exists():
        options = ["--variant=minbase", f"--include={PACKAGES}"]
        subprocess.run(["debootstrap", *options, "bookworm", str(root)], check=True)  # noqa: S607 - of this system
        subprocess.run(inside(root, "python3", "-m", "venv", "/venv"), check=True)
    for file in ("etc/resolv.conf", CERTIFICATES):  # a proxy may have certificates of its own
        shutil.copy(Path("/", file), root / file)
    shutil.rmtree(root / "wheels", ignore_errors=True)
    (root / "wheels").mkdir()
    shutil.copy(wheel, root / "wheels")
    for command in instructions("RUN"):
        subprocess.run(inside(root, "sh", "-c", command), check=True)


def fill(root: Path) -> None:
    """Put the files in place that the compose file mounts: a bundle, a collection and keys."""
    shutil.rmtree(root / "data", ignore_errors=True)
    (root / "data").mkdir()
    (root / "run/secrets").mkdir(parents=True, exist_ok=True)
    (root / "run/secrets/keys.toml").write_text(f'[keys.site]\nkey = "{KEY}"\n', encoding="utf-8")
    script = (
        "import shutil; from embedkit import Collection, Encoder; "
        "from embedkit.runtime.find import find_model; "
        "shutil.copy(find_model('tiny'), '/data/model.onnx'); "
        "Collection.build([('a', 'Bees dance.')], encoder=Encoder.load('/data/model.onnx'), path='/data/idx')"
    )
    subprocess.run(inside(root, "python3", "-c", script), check=True)


@contextlib.contextmanager
def server(root: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run the server in namespaces of its own, with a read-only root."""
    command = [*json.loads(instructions("ENTRYPOINT")[0]), *compose()["command"]]
    mounts = f"mount --bind {root} {root} && mount -t proc proc {root}/proc && mount -t tmpfs tmpfs {root}/tmp"  # noqa: S108
    mounts += f' && mount -o remount,bind,ro {root} && exec "$@"'
    process = subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", mounts, "sh", *inside(root, *command, nobody=True)]  # noqa: S607
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def compose() -> dict[str, Any]:
    """Return the service of the compose file."""
    service: dict[str, Any] = yaml.safe_load((HERE / "compose.yaml").read_text(encoding="utf-8"))["services"][
        "embedkit"
    ]
    return service


def ask(path: str, content: object = None, key: str | None = None) -> int:
    """Return the status of a request."""
    headers = {"content-type": "application/json", **({"authorization": f"Bearer {key}"} if key else {})}
    body = None if content is None else json.dumps(content).encode()
    try:
        with urllib.request.urlopen(
            urllib.request.Request(f"http://127.0.0.1:8080{path}", body, headers)
        ) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def check(step: str, holds: bool) -> None:  # noqa: FBT001 - the condition itself
    """Print a step, and end unless its condition holds."""
    print(f"{'ok' if holds else 'FAILED'}: {step}", flush=True)
    if not holds:
        raise SystemExit(1)


def main() -> None:
    """Install, start, probe and stop."""
    wheel, root = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    install(root, wheel)
    fill(root)
    check("the Dockerfile's RUN lines", True)
    with server(root) as process:
        probe = inside(root, "sh", "-c", instructions("HEALTHCHECK CMD")[0], nobody=True)
        began = time.monotonic()
        while subprocess.run(probe, stderr=subprocess.DEVNULL, check=False).returncode:
            if process.poll() is not None or time.monotonic() > began + START_S:
                check("the server starts", False)
            time.sleep(0.5)
        check(f"HEALTHCHECK, {time.monotonic() - began:.1f} s after the start", True)
        status = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii")
        check("it runs as nobody", "\nUid:\t65534\t65534" in status)
        check(
            "it has no capabilities, and can get none",
            "CapBnd:\t0000000000000000" in status and "NoNewPrivs:\t1" in status,
        )
        check("a request without a key gets 401", ask("/v1/embeddings", {"input": "a"}) == 401)
        check("a request with the key gets 200", ask("/v1/embeddings", {"input": "a"}, KEY) == 200)
        check("a search gets 200", ask("/v1/search", {"query": "bees"}, KEY) == 200)
        grace_s = float(str(compose()["stop_grace_period"]).removesuffix("s"))
        process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        code = process.wait(grace_s)
        check(f"SIGTERM ends it with code 0 after {time.monotonic() - began:.1f} of {grace_s:.0f} s", code == 0)


if __name__ == "__main__":
    main()
