"""`embedkit doctor`: capabilities and problems of this machine and installation."""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
from collections.abc import Iterator
from typing import Any

from embedkit import __version__
from embedkit.errors import EmbedkitError
from embedkit.extras import DISTRIBUTION, install_command

HELP = "check the installation, the machine's features and the bundled models"
EXAMPLES = """
embedkit doctor
embedkit doctor --json > doctor.json
"""

_FAISS = ("faiss-cpu", "faiss-gpu", "faiss-gpu-cu11", "faiss-gpu-cu12")
_REQUIREMENT_OF_EXTRA = re.compile(r"(?P<package>[\w.-]+)[^;]*;.*\bextra == ['\"](?P<extra>\w+)['\"]")

Report = dict[str, Any]


def configure(parser: argparse.ArgumentParser) -> None:
    """Add no arguments."""


def run(arguments: argparse.Namespace) -> int:
    """Print the report; return 1 if there are problems. A missing extra is not a problem."""
    report = _examine()
    print(json.dumps(report, indent=2) if arguments.json else "\n".join(_to_lines(report)))
    return 1 if report["problems"] else 0


def _examine() -> Report:
    from embedkit.evaluation.speed.plan import cpu_features
    from embedkit.extras import explain_conflict, installed_versions
    from embedkit.kernels import built
    from embedkit.threads import available_threads

    problems: list[str] = []
    _check_namesake(problems)
    runtime = _examine_runtime(problems)
    faiss = installed_versions(_FAISS)
    if len(faiss) > 1:
        problems.append(explain_conflict(faiss))
    return {
        "embedkit": __version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "onnxruntime": runtime,
        "faiss": faiss,
        "threads": {"usable": available_threads(), "processors": os.cpu_count() or 1},
        "kernels": built(),
        "instructions": _instructions(problems),
        "cpu_features": cpu_features(),
        "extras": _missing_by_extra(),
        "bundled": _check_bundled(problems) if runtime["providers"] else {},
        "problems": problems,
    }


def _check_namesake(problems: list[str]) -> None:
    """Another project's package named ``embedkit`` installs into the same folder as this one."""
    from importlib import metadata

    try:
        namesake = metadata.distribution("embedkit")
    except metadata.PackageNotFoundError:
        return
    if any(file.parts[0] == "embedkit" for file in namesake.files or ()):
        problems.append(
            f"the package embedkit {namesake.version}, another project, is installed in the folder of "
            f"{DISTRIBUTION}, and each overwrites the other's files; remove both with "
            f"`pip uninstall -y embedkit {DISTRIBUTION}`, then run `pip install {DISTRIBUTION}`"
        )


def _examine_runtime(problems: list[str]) -> Report:
    from embedkit.extras import explain_missing_onnxruntime, installed_onnxruntime

    distributions = installed_onnxruntime()
    if len(distributions) > 1:
        problems.append(explain_missing_onnxruntime())
    try:
        from embedkit.runtime.onnx_backend import available_providers

        providers = available_providers()
    except EmbedkitError as error:
        providers = []
        if len(distributions) <= 1:
            problems.append(str(error))
    return {"distributions": distributions, "providers": providers}


def _instructions(problems: list[str]) -> dict[str, Any]:
    """The instruction set that the kernel of graphs runs on, and all that it could run on here."""
    from embedkit.runtime.kernel_backend import choose_instructions, native_instructions

    names = list(native_instructions())
    try:
        chosen = choose_instructions() if names else None
    except EmbedkitError as error:
        problems.append(str(error))
        chosen = None
    return {"chosen": chosen, "found": names}


def _missing_by_extra() -> dict[str, list[str]] | None:
    """Extra -> packages of it that are not installed; None when embedkit runs from a plain folder."""
    from importlib import metadata

    from embedkit.extras import installed_versions

    try:
        requirements = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return None
    missing: dict[str, list[str]] = {}
    for requirement in requirements:
        match = _REQUIREMENT_OF_EXTRA.match(requirement)
        if match and match["package"] != DISTRIBUTION:
            absent = missing.setdefault(match["extra"], [])
            if not installed_versions((match["package"],)):
                absent.append(match["package"])
    return missing


def _check_bundled(problems: list[str]) -> dict[str, Report]:
    from embedkit.runtime.bundle import read_bundle
    from embedkit.runtime.cross_encoder import CrossEncoder
    from embedkit.runtime.encoder import Encoder
    from embedkit.runtime.find import bundled_names, find_model

    checks: dict[str, Report] = {}
    for name in bundled_names():
        try:
            bundle = read_bundle(find_model(name))
            model = Encoder(bundle) if bundle.manifest.kind == "encoder" else CrossEncoder(bundle)
            check = model.verify()
        except EmbedkitError as error:
            problems.append(f"the bundled model {name} cannot be used: {error}")
            continue
        checks[name] = dict(check)
        if not check["passed"]:
            problems.append(
                f"the results of the bundled model {name} differ on this machine: "
                f"by {check['difference']:.1e}, where at most {check['tolerance']:.1e} is allowed"
                + ("; the bundle records other bits" if check["same_bits"] is False else "")
            )
    return checks


def _to_lines(report: Report) -> Iterator[str]:
    """The verdict and its reasons, a line for each."""
    problems, runtime, instructions = report["problems"], report["onnxruntime"], report["instructions"]
    if problems:
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        yield f"embedkit {report['embedkit']} has {count} on this machine:"
        yield from (f"  problem     {text}" for text in problems)
    else:
        yield f"embedkit {report['embedkit']} works on this machine: no problems found"
    yield f"  python      {report['python']} on {report['platform']}"
    versions = [f"{name} {version}" for name, version in {**runtime["distributions"], **report["faiss"]}.items()]
    providers = ", ".join(runtime["providers"]) or "no execution providers"
    yield f"  packages    {', '.join(versions) or 'no onnxruntime'} ({providers})"
    threads, features = report["threads"], report["cpu_features"]
    names = "instruction sets unknown" if features is None else " ".join(features) or "no int8 instructions"
    yield f"  processor   {threads['usable']} of {threads['processors']} cores usable; {names}"
    compiled = [name for name, there in report["kernels"].items() if there]
    missing = [name for name, there in report["kernels"].items() if not there]
    on = f" on {instructions['chosen']}" if instructions["chosen"] else ""
    kernels = [f"{', '.join(compiled)}{on}"] if compiled else []
    kernels += [f"{', '.join(missing)} not compiled: encoding is slower"] if missing else []
    yield f"  kernels     {'; '.join(kernels)}"
    for name, check in report["bundled"].items():
        same = "bit for bit" if check["same_bits"] else f"to within {check['difference']:.1e}"
        good = f"reproduces the results recorded at export {same}"
        yield f"  model       {name}: {good if check['passed'] else 'WRONG RESULTS, see the problem above'}"
    extras = report["extras"]
    if extras is None:
        yield "  extras      unknown: embedkit runs from a folder and is not installed"
        return
    complete = [name for name, packages in extras.items() if not packages]
    lacking = [name for name, packages in extras.items() if packages]
    yield f"  extras      installed: {', '.join(complete) or 'none'}"
    if lacking:
        yield f"  extras      not installed: {', '.join(lacking)}"
        yield f"  extras      to add one: {install_command('NAME')}"
